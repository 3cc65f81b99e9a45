"""MatMul, Gemm and Einsum: constants beside them go into their weights and bias, and simpler operators replace them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

from graphopt.base.dtype import DType
from graphopt.rule import App, Rule, Term, TermLike, Var, attributes, const, fn, integer, integers, op, real, tensor
from graphopt.rules.affine import Affine, affine, batch_normalization

# Axes: *b batch, M rows, K contracted, N columns.
x, w = tensor("x", "*b M K"), const("w", "K N")
c, d = const("c", "N"), const("d", "N")
after, before = affine("N"), affine("K")
bn, bn_in = batch_normalization("N"), batch_normalization("K")
rest = attributes("rest")


def column(value: Term, size: str) -> App:
    """Return a constant as a column: one number for each row."""
    return op.Reshape(value, fn.sizes(f"{size} 1"))


def transpose(operand: Term, *perm: int) -> App:
    return op.Transpose(operand, perm=perm)


def has_float_type(hole: Var) -> Term:
    return fn.is_float(fn.dtype(hole))


def runs_as_gemm(hole: Var) -> Term:
    """Return the condition that Gemm is fast: in half precision runtimes lack it where they have MatMul, or convert."""
    return fn.is_in(fn.dtype(hole), (int(DType.FLOAT), int(DType.DOUBLE)))


# -- MatMul --------------------------------------------------------------------------------------------------------

left_weights, right, per_row = const("w", "M K"), tensor("x", "*b K N"), const("c", "M 1")

MATMUL = (
    Rule(
        "fuse_mul_into_matmul",
        (x @ w) * c,
        x @ (w * c),
        when=has_float_type(x),
        why="After a product with weights, a factor per column goes into the weights.",
    ),
    Rule(
        "fuse_mul_into_matmul_add",
        ((x @ w) + d) * c,
        (x @ (w * c)) + d * c,
        when=has_float_type(x),
        why="After a product with weights and a bias, a factor per column goes into both: what scales a layer is one.",
    ),
    Rule(
        "fuse_mul_into_left_matmul",
        (left_weights @ right) * per_row,
        (left_weights * per_row) @ right,
        when=has_float_type(right),
        why="After a product of weights with a value, a factor per row goes into the weights.",
    ),
)

rows, columns = tensor("x", "M K"), tensor("w", "K N")
batched, target = tensor("x", "B M K"), integers("target")

TO_GEMM = (
    Rule(
        "fuse_matmul_add_bias_into_gemm",
        (rows @ columns) + c,
        op.Gemm(rows, columns, c),
        when=runs_as_gemm(rows),
        why="A product of matrices and a bias are one operator.",
    ),
    Rule(
        "fuse_matmul_add_into_gemm",
        (rows @ columns) + tensor("t", "M N"),
        op.Gemm(rows, columns, tensor("t", "M N")),
        when=runs_as_gemm(rows),
        why="A product of matrices and a sum with a third are one operator.",
    ),
    Rule(
        "fuse_bn_into_matmul",
        bn.apply(rows @ w),
        op.Gemm(rows, w * bn.factor, bn.shift),
        when=(runs_as_gemm(rows), *bn.same_type_conditions(rows)),
        why="A batch normalization after a product with weights is folded into them and a bias.",
    ),
    Rule(
        "fuse_bn_after_reshape_into_matmul",
        bn.apply(op.Reshape(batched @ w, target)),
        op.Gemm(op.Reshape(batched, fn.concat(-1, fn.size("K"))), w * bn.factor, bn.shift),
        when=(
            fn.eq(fn.length(target), 2),
            fn.eq(fn.compose(target, fn.concat(1)), fn.concat(fn.size("N"))),
            fn.lt(0, fn.size("N")),
            fn.lt(0, fn.size("K")),
            runs_as_gemm(batched),
            *bn.same_type_conditions(batched),
        ),
        why="A batch normalization of the rows of a product with weights is folded into them and a bias.",
    ),
    Rule(
        "fuse_bn_before_matmul",
        bn_in.apply(rows) @ w,
        op.Gemm(rows, w * column(bn_in.factor, "K"), bn_in.shift @ w),
        when=(runs_as_gemm(rows), *bn_in.same_type_conditions(rows)),
        why="A batch normalization before a product with weights is folded into them and a bias.",
    ),
    Rule(
        "fuse_transpose_into_left_of_matmul",
        op.Transpose(tensor("x", "K M"), perm=(1, 0)) @ columns,
        op.Gemm(tensor("x", "K M"), columns, transA=1),
        when=runs_as_gemm(columns),
        why="Gemm reads its left operand transposed at no cost.",
    ),
    Rule(
        "fuse_transpose_into_right_of_matmul",
        rows @ op.Transpose(tensor("w", "N K"), perm=(1, 0)),
        op.Gemm(rows, tensor("w", "N K"), transB=1),
        when=runs_as_gemm(rows),
        why="Gemm reads its right operand transposed at no cost.",
    ),
)

# -- Gemm ----------------------------------------------------------------------------------------------------------

b = const("b", "N", default=0)
alpha, beta = real("alpha"), real("beta")
any_rows, shape = tensor("x", "_ _"), integers("shape")


class _Weights(NamedTuple):
    """The two ways in which Gemm holds its weights: the attribute, the hole, and constants beside its two axes."""

    suffix: str
    transposed: int
    hole: Var
    by_column: Callable[[Term], Term]
    by_row: Callable[[Term], Term]
    product: Callable[[Term], App]
    """A row vector times the weights."""

    def gemm(self, *inputs: Term, **attrs: TermLike) -> App:
        return op.Gemm(*inputs, transB=self.transposed, **attrs)


_plain, _flipped = const("w", "K N"), const("w", "N K")
WEIGHTS = (
    _Weights("", 0, _plain, lambda v: v, lambda v: column(v, "K"), lambda v: v @ _plain),
    _Weights("_transposed", 1, _flipped, lambda v: column(v, "N"), lambda v: v, lambda v: _flipped @ v),
)

GEMM = (
    *(
        Rule(
            f"fuse_{this.name}_into_gemm{held.suffix}",
            this.apply(held.gemm(any_rows, held.hole, b, rest, beta=beta)),
            held.gemm(any_rows, this.weights(held.hole, held.by_column), this.bias(b * beta), rest, beta=1.0),
            when=(has_float_type(any_rows), *this.when(any_rows)),
            why=f"After a Gemm, {this.what} per column goes into its weights and bias.",
        )
        for this in after
        for held in WEIGHTS
    ),
    *(
        Rule(
            f"fuse_{this.name}_into_reshaped_gemm{held.suffix}",
            this.apply(op.Reshape(held.gemm(any_rows, held.hole, b, rest, beta=beta), shape)),
            op.Reshape(
                held.gemm(any_rows, this.weights(held.hole, held.by_column), this.bias(b * beta), rest, beta=1.0),
                shape,
            ),
            when=(has_float_type(any_rows), fn.eq(fn.item(shape, -1), fn.size("N"))),
            why=f"After a Gemm and a Reshape that keeps columns, {this.what} goes into its weights and bias.",
        )
        for this in after
        for held in WEIGHTS
        if this.name != "bn"
    ),
    *(
        Rule(
            f"fuse_add_of_matrix_into_gemm{suffix}",
            op.Gemm(rows, weights, rest, transA=0, transB=transposed, beta=beta) + tensor("t", "M N"),
            op.Gemm(rows, weights, tensor("t", "M N"), rest, transA=0, transB=transposed, beta=1.0),
            when=has_float_type(rows),
            why="A Gemm without a third operand adds one at little cost.",
        )
        for suffix, transposed, weights in (("", 0, columns), ("_transposed", 1, tensor("w", "N K")))
    ),
)

# -- what stands before a product ----------------------------------------------------------------------------------
# These trade: scale and shift of a layer normalization that is written out stand there too, and a runtime that
# recognises it needs both in their places. A batch normalization is none, and goes where it can.

scale_before, *shifts_before, normalized = before


def into_gemm(this: Affine, held: _Weights) -> Rule:
    """Return the rule that takes an operator before a Gemm into its weights and bias."""
    return Rule(
        f"fuse_{this.name}_before_gemm{held.suffix}",
        held.gemm(this.apply(rows), held.hole, b, alpha=alpha, beta=beta),
        held.gemm(
            rows,
            this.weights(held.hole, held.by_row),
            this.carry_bias(b * beta, lambda v: held.product(v) * alpha),
            alpha=alpha,
            beta=1.0,
        ),
        when=(has_float_type(rows), *this.when(rows)),
        why=f"Before a Gemm, {this.what} goes through its weights into its bias.",
    )


NORMALIZED = tuple(into_gemm(normalized, held) for held in WEIGHTS)
BEFORE = (
    Rule(
        "fuse_mul_before_matmul",
        scale_before.apply(x) @ w,
        x @ scale_before.weights(w, lambda v: column(v, "K")),
        when=has_float_type(x),
        why="Before a product with weights, a factor per row of the weights goes into them.",
    ),
    *(
        Rule(
            f"fuse_mul_before_gemm{held.suffix}",
            held.gemm(scale_before.apply(rows), held.hole, b, rest, transA=0),
            held.gemm(rows, scale_before.weights(held.hole, held.by_row), b, rest, transA=0),
            when=has_float_type(rows),
            why="Before a Gemm, a factor goes into its weights.",
        )
        for held in WEIGHTS
    ),
    *(
        rule
        for this in shifts_before
        for rule in (
            Rule(
                f"fuse_{this.name}_before_matmul_add",
                (this.apply(x) @ w) + d,
                (x @ this.weights(w, lambda v: v)) + this.carry_bias(d, lambda v: v @ w),
                when=has_float_type(x),
                why=f"Before a product with weights, {this.what} goes through it into the shift that follows.",
            ),
            *(into_gemm(this, held) for held in WEIGHTS),
        )
    ),
)

trans = integer("trans")
flag = fn.any_of(fn.eq(trans, 0), fn.eq(trans, 1))
left, third = tensor("x", "_ _"), tensor("c")

TRANSPOSES = tuple(
    rule
    for suffix, bias in (("", ()), ("_with_bias", (third,)))
    for rule in (
        Rule(
            f"fuse_transpose_into_gemm_left{suffix}",
            op.Gemm(op.Transpose(left, perm=(1, 0)), tensor("w"), *bias, rest, transA=trans),
            op.Gemm(left, tensor("w"), *bias, rest, transA=fn.sub(1, trans)),
            when=flag,
            why="Gemm reads its left operand transposed at no cost.",
        ),
        Rule(
            f"fuse_transpose_into_gemm_right{suffix}",
            op.Gemm(left, op.Transpose(tensor("w", "_ _"), perm=(1, 0)), *bias, rest, transB=trans),
            op.Gemm(left, tensor("w", "_ _"), *bias, rest, transB=fn.sub(1, trans)),
            when=flag,
            why="Gemm reads its right operand transposed at no cost.",
        ),
    )
)

# -- one product after another ---------------------------------------------------------------------------------------
# Two products with weights are one where that multiplies no more numbers: K columns become L, and those N.

narrow, inner, outer = const("c", "L"), const("w", "K L"), const("v", "L N")
no_more = fn.le(
    fn.mul(fn.size("K"), fn.size("N")),
    fn.add(fn.mul(fn.size("K"), fn.size("L")), fn.mul(fn.size("L"), fn.size("N"))),
)
inner_bias, outer_bias = const("c", "L", default=0), const("d", "N", default=0)


def as_product(name: str, axes: str, flipped: int) -> tuple[Var, Term]:
    """Return the weights as a Gemm holds them, and as a factor on the right."""
    held = const(name, " ".join(reversed(axes.split())) if flipped else axes)
    return held, op.Transpose(held, perm=(1, 0)) if flipped else held


CHAINS = (
    Rule(
        "fuse_consecutive_matmuls",
        (x @ inner) @ outer,
        x @ (inner @ outer),
        when=has_float_type(x),
        pays=no_more,
        why="The product of two weights is known when the model is compiled.",
    ),
    Rule(
        "fuse_consecutive_matmuls_with_add",
        ((x @ inner) + narrow) @ outer,
        (x @ (inner @ outer)) + (narrow @ outer),
        when=has_float_type(x),
        pays=no_more,
        why="Products of weights, and of a bias and weights, are known when the model is compiled.",
    ),
    *(
        Rule(
            f"fuse_consecutive_gemms{'_transposed' * first_flipped}{'_then_transposed' * second_flipped}",
            op.Gemm(op.Gemm(rows, first, inner_bias, transB=first_flipped), second, outer_bias, transB=second_flipped),
            op.Gemm(rows, first_factor @ second_factor, (inner_bias @ second_factor) + outer_bias),
            pays=no_more,
            why="Products of weights, and of a bias and weights, are known when the model is compiled.",
        )
        for first_flipped in (0, 1)
        for second_flipped in (0, 1)
        for first, first_factor in (as_product("w", "K L", first_flipped),)
        for second, second_factor in (as_product("v", "L N", second_flipped),)
    ),
)

# -- products that are added up --------------------------------------------------------------------------------------
# Adapters of low rank (LoRA) are exported beside the weights that they change.

added, down, up = const("v", "K N"), const("u", "K L"), const("v", "L N")
PARTS: Mapping[str, tuple[Callable[[Var], App], Term]] = {
    "matmul": (lambda x: x @ added, added),
    "low_rank": (lambda x: (x @ down) @ up, down @ up),
}
"""Operators that add a part, of the value that both products read, and the weights that it stands for."""
SUMS = tuple(
    rule
    for name, (part, its_weights) in PARTS.items()
    for rule in (
        Rule(
            f"fuse_add_of_matmul_and_{name}",
            (x @ w) + part(x),
            x @ (w + its_weights),
            when=has_float_type(x),
            why="Products of one value with weights that are added up are one with the sum of the weights.",
        ),
        Rule(
            f"fuse_add_of_matmul_add_and_{name}",
            ((x @ w) + c) + part(x),
            (x @ (w + its_weights)) + c,
            when=has_float_type(x),
            why="Products of one value with weights that are added up are one with the sum of the weights.",
        ),
        *(
            Rule(
                f"fuse_add_of_gemm{held.suffix}_and_{name}",
                held.gemm(rows, held.hole, c) + part(rows),
                held.gemm(rows, held.hole + (transpose(its_weights, 1, 0) if held.transposed else its_weights), c),
                when=runs_as_gemm(rows),
                why="Products of one value with weights that are added up are one with the sum of the weights.",
            )
            for held in WEIGHTS
        ),
    )
)

# -- a factor behind views of the product --------------------------------------------------------------------------

# Attention scales its queries and keys after they were split into heads; the factor can be in the weights.
perm, view = integers("perm"), attributes("view")
one_for_all, batch = const("c", ""), tensor("x", "B M K")
HEADS: Mapping[str, Callable[[Term], App]] = {
    "transpose": lambda value: op.Transpose(value, perm=perm),
    "reshape": lambda value: op.Reshape(value, target, view),
    "heads": lambda value: op.Transpose(op.Reshape(value, target, view), perm=(0, 2, 1, 3)),
    "transposed_heads": lambda value: op.Transpose(op.Reshape(value, target, view), perm=(0, 2, 3, 1)),
}
SCALED: Mapping[str, tuple[Var, App, App]] = {
    "matmul": (batch, batch @ w, batch @ (w * one_for_all)),
    "matmul_add": (batch, (batch @ w) + d, (batch @ (w * one_for_all)) + d * one_for_all),
    **{
        f"gemm{held.suffix}": (
            any_rows,
            held.gemm(any_rows, held.hole, b, rest),
            held.gemm(any_rows, held.hole * one_for_all, b * one_for_all, rest),
        )
        for held in WEIGHTS
    },
}
"""Products by name: what they read, and the product without and with a factor in its weights and bias."""

VIEWED = tuple(
    Rule(
        f"fuse_mul_after_{heads}_into_{name}",
        seen(plain) * one_for_all,
        seen(scaled),
        when=has_float_type(operand),
        why="Moving elements does not change them: a factor for all of them goes into the weights.",
    )
    for name, (operand, plain, scaled) in SCALED.items()
    for heads, seen in HEADS.items()
)

one_factor, other_factor, other = const("c", ""), const("d", ""), tensor("y")
FACTORS = (
    Rule(
        "fuse_factors_of_matmul",
        (tensor("x") * one_factor) @ (other * other_factor),
        (tensor("x") * (one_factor * other_factor)) @ other,
        when=has_float_type(tensor("x")),
        why="One factor for all elements of either operand is as good as one for each.",
    ),
    Rule(
        "fuse_factors_of_matmul_transposed",
        (tensor("x") * one_factor) @ op.Transpose(other * other_factor, perm=perm),
        (tensor("x") * (one_factor * other_factor)) @ op.Transpose(other, perm=perm),
        when=has_float_type(tensor("x")),
        why="One factor for all elements of either operand is as good as one for each.",
    ),
)

queries, keys = tensor("x", "B H M K"), tensor("y", "B H K N")
lengths, per_head = tensor("d", "B H M 1"), const("c", "H 1 1")
COSINES = (
    Rule(
        "fuse_mul_after_matmul_into_quotient",
        ((queries / lengths) @ keys) * per_head,
        (queries * (per_head / lengths)) @ keys,
        when=has_float_type(queries),
        why="A temperature of cosines, which Swin V2 has for each head, is a factor of the lengths, which are few.",
    ),
)

# -- Einsum: letters are named in the order in which they appear ---------------------------------------------------


def operands(equation: str) -> list[Var]:
    """Return the operands of an equation, with an axis for each letter: Einsum itself would let sizes of 1
    broadcast."""
    terms = equation.partition("->")[0].split(",")
    return [tensor(name, " ".join(letters.upper())) for name, letters in zip("xy", terms, strict=False)]


PRODUCTS: Mapping[str, Callable[[Term, Term], App]] = {
    # matrices and stacks of them
    "ab,bc->ac": lambda x, y: x @ y,
    "ab,cb->ac": lambda x, y: x @ transpose(y, 1, 0),
    "ab,ac->bc": lambda x, y: transpose(x, 1, 0) @ y,
    "abc,cd->abd": lambda x, y: x @ y,
    "abc,dc->abd": lambda x, y: x @ transpose(y, 1, 0),
    "abcd,de->abce": lambda x, y: x @ y,
    "abcd,ed->abce": lambda x, y: x @ transpose(y, 1, 0),
    "abc,acd->abd": lambda x, y: x @ y,
    "abc,adc->abd": lambda x, y: x @ transpose(y, 0, 2, 1),
    "abc,abd->acd": lambda x, y: transpose(x, 0, 2, 1) @ y,
    "abcd,abde->abce": lambda x, y: x @ y,
    "abcd,abed->abce": lambda x, y: x @ transpose(y, 0, 1, 3, 2),
    "abcd,abce->abde": lambda x, y: transpose(x, 0, 1, 3, 2) @ y,
    # attention with the heads behind the sequence: scores, then the weighted sum
    "abcd,aecd->acbe": lambda x, y: transpose(x, 0, 2, 1, 3) @ transpose(y, 0, 2, 3, 1),
    "abcd,adbe->acbe": lambda x, y: transpose(x @ transpose(y, 0, 2, 1, 3), 0, 2, 1, 3),
}
TRANSPOSITIONS: Mapping[str, tuple[int, ...]] = {
    "ab->ba": (1, 0),
    "abc->acb": (0, 2, 1),
    "abc->bac": (1, 0, 2),
    "abcd->abdc": (0, 1, 3, 2),
    "abcd->acbd": (0, 2, 1, 3),
    "abcd->acdb": (0, 2, 3, 1),
    "abcd->adbc": (0, 3, 1, 2),
}


def as_matrix_product(equation: str) -> App | Var:
    """Return a product of two operands, of which one letter is summed, as one of stacks of matrices, with the fewest
    transpositions.

    A letter that one operand has alone is its rows or columns. Others of that operand are in front, then those of both:
    so MatMul broadcasts.
    """
    given, result = equation.split("->")
    x, y = zip(operands(equation), given.split(","), strict=True)
    (summed,) = {*x[1]} & {*y[1]} - {*result}
    products = chain(_matrix_products(x, y, summed, result), _matrix_products(y, x, summed, result))
    return min(products, key=itemgetter(0))[1]


def _matrix_products(
    left: tuple[Var, str], right: tuple[Var, str], summed: str, result: str
) -> Iterator[tuple[int, App | Var]]:
    """Yield products of stacks of matrices that equal an Einsum, each with its number of transpositions: one for each
    choice of the letters of rows and columns."""
    shared = "".join(letter for letter in result if letter in left[1] and letter in right[1])
    of_left, of_right = (
        [letter for letter in result if letter in own and letter not in shared] for _, own in (left, right)
    )
    for row, column in ((row, column) for row in of_left for column in of_right):
        above = "".join(letter for letter in of_left if letter != row)
        beside = "".join(letter for letter in of_right if letter != column)
        if above and beside:
            continue
        rows, columns = f"{above}{shared}{row}{summed}", f"{beside}{shared}{summed}{column}"
        made = f"{above}{beside}{shared}{row}{column}"
        transpositions = (left[1] != rows) + (right[1] != columns) + (made != result)
        yield transpositions, reorder(reorder(*left, rows) @ reorder(*right, columns), made, result)


def reorder(value: App | Var, letters: str, order: str) -> App | Var:
    """Return a value whose axes have letters with these axes in another order."""
    return value if letters == order else transpose(value, *map(letters.index, order))


CONTRACTIONS = (
    # heads behind a sequence that comes first (XLNet)
    *("abcd,ebcd->bcae", "abcd,dabe->cabe"),
    # relative positions: of heads (Funnel), of queries, of keys (BERT), of rows of an image (MViT, SAM)
    *("abcd,ecd->acbe", "abcd,ced->abce", "abcd,ecd->abec", "abcd,bed->abce"),
    # each head with weights of its own
    *("abc,bcd->abd", "abc,bdc->abd", "abcd,cde->abce"),
    # nodes of graphs: attention with the heads last, and a matrix of neighbours; coefficients of Fourier series
    *("abcd,acde->abde", "abcd,ce->abed", "abcd,becd->aecd"),
    # state spaces in chunks (Mamba-2)
    *("abcde,abcdf->abdfe", "abcde,abfde->abcfd", "abcde,abdef->abcef", "abcde,abdfe->abcdf", "abcd,abdef->acdef"),
)


def _equation_suffix(equation: str) -> str:
    return equation.replace(",", "_").replace("->", "_to_")


heads_in, heads_out = const("y", "C H D"), const("y", "H D E")
tokens, per_head = tensor("x", "A B C"), tensor("x", "A B H D")

not_empty = (fn.lt(0, fn.size("H")), fn.lt(0, fn.size("D")))  # a 0 in a shape would mean something else

EINSUM = (
    *(
        Rule(
            f"replace_einsum_{_equation_suffix(equation)}",
            op.Einsum(*operands(equation), equation=equation),
            product,
            when=has_float_type(operands(equation)[0]),
            why="MatMul and Transpose have faster kernels than Einsum, and are fused further.",
        )
        for equation, product in (
            *((equation, apply(*operands(equation))) for equation, apply in PRODUCTS.items()),
            *((equation, as_matrix_product(equation)) for equation in CONTRACTIONS),
        )
    ),
    *(
        Rule(
            f"replace_einsum_{_equation_suffix(equation)}",
            op.Einsum(*operands(equation), equation=equation),
            transpose(operands(equation)[0], *perm),
            why="An Einsum that only moves axes is a Transpose.",
        )
        for equation, perm in TRANSPOSITIONS.items()
    ),
    Rule(
        "replace_einsum_a_b_to_ab",
        op.Einsum(tensor("x", "A"), tensor("y", "B"), equation="a,b->ab"),
        op.Unsqueeze(tensor("x", "A"), (1,)) * tensor("y", "B"),
        when=has_float_type(tensor("x", "A")),
        why="An outer product is a broadcast multiplication.",
    ),
    Rule(
        "replace_einsum_abc_cde_to_abde",
        op.Einsum(tokens, heads_in, equation="abc,cde->abde"),
        op.Reshape(
            tokens @ op.Flatten(heads_in, axis=1),
            fn.concat((0, 0), fn.sizes("H D")),
        ),
        when=(has_float_type(tokens), *not_empty),
        why="A projection onto several heads is one product with flattened weights.",
    ),
    Rule(
        "replace_einsum_abcd_cde_to_abe",
        op.Einsum(per_head, heads_out, equation="abcd,cde->abe"),
        op.Reshape(per_head, fn.concat((0, 0), fn.mul(fn.size("H"), fn.size("D")))) @ op.Flatten(heads_out, axis=2),
        when=(has_float_type(per_head), *not_empty),
        why="A projection from several heads is one product with flattened weights.",
    ),
)

RULES = (*MATMUL, *SUMS, *TO_GEMM, *GEMM, *NORMALIZED, *TRANSPOSES, *CHAINS, *VIEWED, *FACTORS, *EINSUM)
TRADES = (*BEFORE, *COSINES)
SWEEPS = {"shifts through products": BEFORE, "temperatures of cosines": COSINES}

"""Operators that work on each element alone: arithmetic with constants, unit elements, bounds, comparisons, Where."""

from collections.abc import Mapping
from itertools import product

from graphopt.base.dtype import DType
from graphopt.rule import App, Rule, Var, const, fn, op, tensor
from graphopt.rules.names import snake_case

x, y, z = tensor("x"), tensor("y"), tensor("z")
a, b, c, zeros, ones = const("a"), const("b"), const("c"), const("zeros"), const("ones")
is_float, is_integer = fn.is_float(fn.dtype(x)), fn.is_integer(fn.dtype(x))
is_bool = fn.eq(fn.dtype(x), int(DType.BOOL))


def broadcasts_to(kept: Var, *others: Var) -> App:
    """Return whether the others broadcast to the shape of `kept`, so that it alone has the shape of the result."""
    shape = fn.shape(kept)
    return fn.all_of(*(fn.eq(fn.broadcast(shape, fn.shape(other)), shape) for other in others))


# -- unit elements -------------------------------------------------------------------------------------------------

# x + 0 is x but for -0.0, which becomes 0.0: a difference that only a division by it, or its bits, can tell.
UNITS = {
    "Add": zeros,
    "Sub": zeros,
    "Mul": ones,
    "Div": ones,
    "Pow": ones,
    "And": ones,
    "Or": zeros,
    "Xor": zeros,
}
NEUTRAL = (
    *(
        Rule(
            f"eliminate_nop_with_unit_{snake_case(name)}",
            getattr(op, name)(x, unit),
            x,
            when=(fn.is_zero(unit) if unit is zeros else fn.is_one(unit), broadcasts_to(x, unit)),
            why=f"{name} with {'zero' if unit is zeros else 'one'} changes nothing.",
        )
        for name, unit in UNITS.items()
    ),
    Rule(
        "eliminate_equal_true",
        op.Equal(x, ones),
        x,
        when=(is_bool, fn.is_one(ones), broadcasts_to(x, ones)),
        why="What equals true is true.",
    ),
    Rule(
        "replace_equal_false",
        op.Equal(x, zeros),
        op.Not(x),
        when=(is_bool, fn.is_zero(zeros), broadcasts_to(x, zeros)),
        why="What equals false is not true.",
    ),
    *(
        Rule(
            f"eliminate_{snake_case(name)}_of_one",
            getattr(op, name)(x),
            x,
            why=f"{name} of a single operand is that operand.",
        )
        for name in ("Sum", "Mean", "Max", "Min")
    ),
    *(
        Rule(
            f"eliminate_{snake_case(name)}_with_itself",
            getattr(op, name)(x, x),
            x,
            why=f"{name} of a value and itself is that value.",
        )
        for name in ("Max", "Min", "And", "Or")
    ),
)

# -- an operator twice ---------------------------------------------------------------------------------------------

TWICE = (
    *(
        Rule(
            f"eliminate_consecutive_idempotent_ops_{snake_case(name)}",
            getattr(op, name)(getattr(op, name)(x)),
            getattr(op, name)(x),
            why=f"{name} changes nothing the second time.",
        )
        for name in ("Abs", "Sign")
    ),
    *(
        Rule(
            f"eliminate_{snake_case(outer)}_of_{snake_case(inner)}",
            getattr(op, outer)(getattr(op, inner)(x)),
            getattr(op, inner)(x),
            why="A whole number need not be rounded.",
        )
        for outer, inner in product(("Ceil", "Floor", "Round"), repeat=2)
    ),
    *(
        Rule(
            f"eliminate_{snake_case(name)}_of_{snake_case(name)}",
            getattr(op, name)(getattr(op, name)(x)),
            x,
            why=f"{name} undoes itself.",
        )
        for name in ("Neg", "Not", "BitwiseNot")
    ),
    Rule(
        "eliminate_reciprocal_of_reciprocal",
        op.Reciprocal(op.Reciprocal(x)),
        x,
        when=is_float,
        why="The reciprocal undoes itself, up to rounding.",
    ),
    Rule("eliminate_abs_of_relu", op.Abs(op.Relu(x)), op.Relu(x), why="What is not negative has itself as magnitude."),
    Rule("eliminate_relu_of_abs", op.Relu(op.Abs(x)), op.Abs(x), why="A magnitude is not negative."),
    Rule("eliminate_neg_before_abs", op.Abs(op.Neg(x)), op.Abs(x), why="The sign does not count."),
    Rule("fuse_sqrt_of_square", op.Sqrt(x * x), op.Abs(x), when=is_float, why="The root of a square is a magnitude."),
    Rule(
        "fuse_sqrt_of_pow",
        op.Sqrt(op.Pow(x, 2)),
        op.Abs(x),
        when=is_float,
        why="The root of a square is a magnitude.",
    ),
)

# -- chains of constants -------------------------------------------------------------------------------------------

# Joined constants must not be larger than the larger one: a column and a row would become a matrix.
joinable = fn.any_of(broadcasts_to(a, b), broadcasts_to(b, a))
CHAINS: Mapping[str, tuple[App, App, App | tuple[()]]] = {
    "fuse_consecutive_adds": ((x + a) + b, x + (a + b), ()),
    "fuse_sub_add": ((a - x) + b, (a + b) - x, ()),
    "fuse_add_sub": (a - (x + b), (a - b) - x, ()),
    "fuse_consecutive_subs": (a - (b - x), x + (a - b), ()),
    "fuse_consecutive_muls": ((x * a) * b, x * (a * b), ()),
    "fuse_quotient_mul": ((a / x) * b, (a * b) / x, is_float),
    "fuse_div_by_product": (a / (x * b), (a / b) / x, is_float),
    "fuse_div_by_quotient": (a / (b / x), x * (a / b), is_float),
    "fuse_sum_of_multiples": (x * a + x * b, x * (a + b), ()),
    "fuse_difference_of_multiples": (x * a - x * b, x * (a - b), ()),
}
CONSTANTS = (
    *(
        Rule(
            name,
            lhs,
            rhs,
            when=when,
            pays=joinable,
            why="What the constants do together is computed when the model is compiled.",
        )
        for name, (lhs, rhs, when) in CHAINS.items()
    ),
    Rule(
        "fuse_residual_into_mul",
        x * a + x,
        x * (a + 1),
        why="x·a + x is x times one more than a.",
    ),
    Rule(
        "fuse_mul_into_residual",
        x - x * a,
        x * (1 - a),
        why="x − x·a is x times what a lacks to one.",
    ),
    Rule(
        "replace_sub_by_add",
        x - c,
        x + (-c),
        when=is_float,
        why="An addition commutes, and is what ONNX Runtime folds into a convolution.",
    ),
    Rule("fuse_neg_into_mul", (-x) * a, x * (-a), why="The sign moves into the constant."),
    Rule("fuse_mul_into_neg", -(x * a), x * (-a), why="The sign moves into the constant."),
    Rule("fuse_add_into_neg", -(x + a), (-a) - x, why="The sign moves into the constant."),
)

# -- factors that are smaller than what they multiply --------------------------------------------------------------
# A global response normalization (https://arxiv.org/abs/2301.00808) scales an image by one number for each channel,
# again by a weight for each channel, and adds the image itself: what concerns channels alone is done with one each.

is_larger = (broadcasts_to(x, y), fn.product(fn.shape(y)) < fn.product(fn.shape(x)))
FACTORS = (
    *(
        Rule(
            f"combine_factors_{where}_mul",
            product,
            x * (y * c),
            pays=(broadcasts_to(y, c), *is_larger),
            why="A constant multiplies the smaller factor.",
        )
        for where, product in (("before", (x * y) * c), ("around", (x * c) * y))
    ),
    Rule(
        "fuse_residual_into_factor",
        x * y + x,
        x * (y + 1),
        when=is_float,
        pays=is_larger,
        why="x·y + x is x times one more than y, which is smaller.",
    ),
    Rule(
        "fuse_residual_into_factor_and_shift",
        (x * y + c) + x,
        x * (y + 1) + c,
        when=is_float,
        pays=is_larger,
        why="x·y + c + x is x times one more than y, which is smaller, and the shift.",
    ),
)

# -- signs, reciprocals and powers ---------------------------------------------------------------------------------

INVERSES = (
    Rule("fuse_neg_into_add", x + (-y), x - y, why="Adding the opposite is subtracting."),
    Rule("fuse_neg_into_sub", x - (-y), x + y, why="Subtracting the opposite is adding."),
    Rule("fuse_sub_into_neg", -(x - y), y - x, why="The opposite of a difference is the other difference."),
    Rule("eliminate_neg_mul_neg", (-x) * (-y), x * y, why="Two signs cancel."),
    Rule("eliminate_neg_div_neg", (-x) / (-y), x / y, when=is_float, why="Two signs cancel."),
    Rule(
        "fuse_reciprocal_into_mul",
        x * op.Reciprocal(y),
        x / y,
        when=is_float,
        why="One division is faster than a reciprocal and a product, and rounds once.",
    ),
    Rule(
        "fuse_quotient_into_mul",
        x * (1 / y),
        x / y,
        when=is_float,
        why="One division is faster than a reciprocal and a product, and rounds once.",
    ),
    Rule(
        "fuse_reciprocal_into_div",
        x / op.Reciprocal(y),
        x * y,
        when=is_float,
        why="Dividing by a reciprocal is multiplying.",
    ),
    Rule(
        "fuse_div_into_reciprocal",
        op.Reciprocal(x / y),
        y / x,
        when=is_float,
        why="The reciprocal of a quotient is the other quotient.",
    ),
    # pow(-0.0, ½) is 0.0 and pow(-inf, ½) is inf, where Sqrt gives -0.0 and NaN: no finite number but zero differs.
    Rule(
        "replace_pow_by_sqrt",
        op.Pow(x, 0.5),
        op.Sqrt(x),
        when=is_float,
        why="ONNX Runtime computes a square root some 30 times faster than a power.",
    ),
    Rule(
        "replace_pow_by_reciprocal",
        op.Pow(x, -1),
        op.Reciprocal(x),
        when=is_float,
        why="ONNX Runtime computes a reciprocal some 25 times faster than a power.",
    ),
    Rule(
        "replace_pow_by_reciprocal_sqrt",
        op.Pow(x, -0.5),
        op.Reciprocal(op.Sqrt(x)),
        when=is_float,
        why="ONNX Runtime computes a square root and a reciprocal some 15 times faster than a power.",
    ),
    Rule("replace_sum_by_add", op.Sum(x, y), x + y, why="Add is the operator that everything else is written for."),
)

# -- Max, Min and comparisons --------------------------------------------------------------------------------------

NEGATED = {"Less": "GreaterOrEqual", "LessOrEqual": "Greater", "Greater": "LessOrEqual", "GreaterOrEqual": "Less"}
ORDER = (
    Rule("eliminate_nop_clip", op.Clip(x), x, why="Without bounds nothing is cut off, infinities aside."),
    *(
        Rule(
            f"fuse_consecutive_{name.lower()}",
            getattr(op, name)(getattr(op, name)(x, a), b),
            getattr(op, name)(x, getattr(op, name)(a, b)),
            pays=joinable,
            why="One bound is as good as two.",
        )
        for name in ("Max", "Min")
    ),
    *(
        Rule(
            f"fuse_not_of_{snake_case(name)}",
            op.Not(getattr(op, name)(x, y)),
            getattr(op, negated)(x, y),
            when=is_integer,
            why="The opposite comparison; of integers, for a NaN compares to nothing.",
        )
        for name, negated in NEGATED.items()
    ),
)

# -- Where ---------------------------------------------------------------------------------------------------------

condition = tensor("condition")
WHERES = (
    Rule(
        "rewrite_where",
        op.Where(op.Not(condition), x, y),
        op.Where(condition, y, x),
        why="Swapping the branches negates the condition.",
    ),
    Rule(
        "eliminate_where_of_same",
        op.Where(condition, x, x),
        x,
        when=broadcasts_to(x, condition),
        why="The branches are the same.",
    ),
    Rule(
        "eliminate_where_true",
        op.Where(ones, x, y),
        x,
        when=(fn.is_one(ones), broadcasts_to(x, ones, y)),
        why="Only the first branch is ever taken.",
    ),
    Rule(
        "eliminate_where_false",
        op.Where(zeros, x, y),
        y,
        when=(fn.is_zero(zeros), broadcasts_to(y, zeros, x)),
        why="Only the second branch is ever taken.",
    ),
    Rule(
        "fuse_where_in_first_branch",
        op.Where(condition, op.Where(condition, x, y), z),
        op.Where(condition, x, z),
        when=broadcasts_to(z, condition, x, y),
        why="Where the condition holds already, the inner Where has its first branch.",
    ),
    Rule(
        "fuse_where_in_second_branch",
        op.Where(condition, x, op.Where(condition, y, z)),
        op.Where(condition, x, z),
        when=broadcasts_to(x, condition, y, z),
        why="Where the condition does not hold, the inner Where has its second branch.",
    ),
)

# -- small powers --------------------------------------------------------------------------------------------------
# Fusions of ONNX Runtime look for them, so they are no products from the outset.

TRADES = (
    Rule(
        "replace_square_with_product",
        op.Pow(x, 2.0),
        x * x,
        when=is_float,
        why="ONNX Runtime computes a product twice as fast as a power.",
    ),
    Rule(
        "replace_cube_with_products",
        op.Pow(x, 3.0),
        (x * x) * x,
        when=is_float,
        why="ONNX Runtime computes two products faster than a power.",
    ),
    Rule(
        "replace_pow_by_two_roots",
        op.Pow(x, 0.75),
        op.Sqrt(x) * op.Sqrt(op.Sqrt(x)),
        when=is_float,
        why="ONNX Runtime computes two square roots and a product some five times faster than a power.",
    ),
)

RULES = (*NEUTRAL, *TWICE, *CONSTANTS, *FACTORS, *INVERSES, *ORDER, *WHERES)
SWEEPS = {"powers as products": TRADES}

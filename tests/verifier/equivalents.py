"""Mutants of the denotations that compute the same, by the reason why."""

from collections.abc import Mapping, Sequence

RATIO = "lambda a, b: a / b"
QUOTIENT = '(lambda a, b: call("Quotient", a, b))'
VALUE = "value.ints() if isinstance(value, Constant) else None"
WITHIN = "(quotient(m, Mg), remainder(m, Mg))"

EQUIVALENT: Mapping[str, Sequence[str]] = {
    "A truth value is 0 or 1: it is positive where it is not 0.": [
        "elementwise.IsInf: nonzero -> positive",
        "elementwise.ELEMENTWISE: nonzero -> positive",
    ],
    "A difference is 0 in either order.": [
        "elementwise.ELEMENTWISE: a - b -> (b - a)",
        "reductions.Hardmax: place - integer(index[axis]) -> (integer(index[axis]) - place)",
        "placing.OneHot: where - integer(place) -> (integer(place) - where)",
        "movement._run: end - other -> (other - end)",
    ],
    "With m the mean of x, the means of (x - m)(x + m) and of (x - m)x are that of (x - m)(x - m): the variance.": [
        "normalizations.standardized: others(k) - average -> (others(k) + average)",
        "normalizations.standardized: others(k) - average -> others(k)",
    ],
    "What is no float is a named function in either model (`Node.is_exact`), and floats ask for fmod.": [
        'elementwise.Mod: "FMod" if kind else "Mod" -> ("FMod")',
        "elementwise.Mod: \"Mod\" -> 'FMod'",
    ],
    "Of one group the place within the group is the place, and no channel precedes: it keeps an index short.": [
        "windows.convolution: 0 if group == 1 else quotient(m, Mg) * Cg -> (quotient(m, Mg) * Cg)",
        "windows.Conv: 1 -> (0)",
        f"windows.ConvTranspose: (0, m) if group == 1 else {WITHIN} -> ({WITHIN})",
        "windows.ConvTranspose: 1 -> (0)",
    ],
    "Of what is proved all types are known; inference, which may not know one, asks for no sum.": [
        "quantization._distance: not x.dtype.is_integer -> False",
    ],
    "A cap is not negative, which was refused before.": ["attention._capped: nonzero -> positive"],
    "-1 is odd, and an odd number of elements is refused.": ["attention.RotaryEmbedding: 0 -> (-1)"],
    "A pad is not negative and shorter than the kernel, which is not 0 then.": ["windows.pool: 1 -> (0)"],
    "A number that is added to all scores is lost in their softmax, and the scores that are shown are those before.": [
        "attention._mask: mask is None or truths -> ((mask is None))",
        "attention._mask: 0 -> 1",
        "attention._mask: 0 -> (-1)",
    ],
    "Products with weights are equal only where what is named is: of that it is asked whether it is NaN.": [
        "attention.Attention: current().arithmetic is None -> False",
    ],
    "The operands have one rank, and the caches one shape.": [
        "attention.Attention: 0 -> 1",
        "attention.RotaryEmbedding: 0 -> 1",
    ],
    "Where no operand is absent, to say so of each says how many there are, which is known.": [
        "elementwise.EXACT: absent if any(absent) else () -> (absent)",
    ],
    "A step is not 0, which was refused before.": [
        "movement._run: 1 -> (0)",
        "movement._run: lt -> le",
        "movement._run: 0 -> 1",
        "placing._steps: step > 0 -> (step >= 0)",
        "placing._steps: 0 -> (-1)",
    ],
    "A whole number that is rounded is that number.": ["placing.OneHot: asked.dtype.is_float -> True"],
    "Of an index with too many places `stretched` takes the last, so that of the row is left out anyway.": [
        "reductions.matrix_product: () if row else rest[:1] -> (rest[:1])",
    ],
    "Lists that are longer, and axes beyond the last, are refused or like others: to try them shows no more.": [
        "movement._slice_numbers: 1 -> 2",
        "views.Flatten: 1 -> 2",
    ],
    "A slice that ends before it begins is empty, wherever its end is.": ["movement._run: 0 -> (-1)"],
    "Divided by 1 a number stays as it is; so does an index by the size that it is below.": [
        "movement._run: span if step == 1 else quotient(span + by - 1, by) -> (quotient(span + by - 1, by))",
        "movement.Tile: i if r == 1 else remainder(i, s) if s != 0 else 0 -> (remainder(i, s) if s != 0 else 0)",
        "movement.Tile: 1 -> (0)",
    ],
    "At the border a number is what it is clamped to.": ["movement._clamped: le -> lt"],
    "Of one row the index is 0 on the right, too, where it was shown to be in range.": [
        "movement._gather_tensor: x.shape[axis] == 1 and node.assuming -> ((x.shape[axis] == 1))",
    ],
    "What does not depend on the place is the same wherever it is looked up.": [
        "movement.looked_up: place not in value.symbols -> False",
    ],
    "An attribute is the same wherever an element is.": [
        "movement.looked_up: place not in symbols(p) -> (place in symbols(p))",
    ],
    "As many windows fit as there are strides where it is padded for that, and none of them reaches beyond the end.": [
        'windows.Window: tuple(map(self._strides, range(rank))) if mode.startswith("SAME") else fitting -> (fitting)',
        "windows.Window: large if upper else small -> (large)",
    ],
    "Proofs have no such attribute, output or function of integers: `tests/test_infer.py` asks of these.": [
        f"elementwise.Div: {QUOTIENT} if node.dtype.is_integer else {RATIO} -> ({RATIO})",
        "windows.pool: 1 -> 2",
        f"movement.ConstantOfShape: (0,) if value is None else {VALUE} -> ((0,))",
        f"movement.ConstantOfShape: {VALUE} -> (value.ints())",
        f"movement.ConstantOfShape: {VALUE} -> (None)",
        "movement.ConstantOfShape: numbers is None -> False",
    ],
    "An operator of another domain that nothing defines is refused in a rule, before it is asked what it computes.": [
        "semantics.denote: node.domain or node.op not in OPERATORS -> ((node.op not in OPERATORS))",
    ],
    "What has as many elements as the whole is not stretched.": ["elementwise._common_base: all -> any"],
    "Each denotation looks at all attributes, which `test_every_attribute_is_looked_at` asks of each.": [
        "semantics.denote: (unread := node.unasked()) is not None -> False",
    ],
    "An index along an axis that is not padded is inside of it.": [
        "movement.Pad: a in begin -> True",
        "movement.Pad: _mirrored(mode, i, x.shape[a]) if a in begin else i -> (_mirrored(mode, i, x.shape[a]))",
    ],
    "Of one output the first is the last.": ["movement.Resize: 0 -> (-1)"],
    "What does not say whether it keeps its axes is no reduction along some.": [
        "opaque.opaque: 0 -> 1",
        "opaque.opaque: 0 -> (-1)",
    ],
    "A size that broadcasts with a number that is not 1 is that number.": [
        "broadcasting.common_size: b if isinstance(b, int) else node.shared(a, b) -> (node.shared(a, b))",
    ],
    "What is a view of nothing is its own base.": [
        "elementwise._common_base: same and any(t.view_of for t in whole) -> ((same))",
        "elementwise._common_base: any -> all",
    ],
    "None of the sizes that meet what is asked for is negative: one that is inferred is a quotient of such.": [
        "views._answers: size != -1 -> True",
        "views._answers: 1 -> (0)",
        "views._answers: conj(ge(size, -1), ge(own)) -> conj(ge(size, -1))",
    ],
    "A vector has one axis, which is the first and the last.": ["reductions.MatMul: 1 -> (0)"],
    "Of an empty tensor no element is asked, so it does not matter which one it would be.": [
        "movement.Tile: 0 -> 1",
        "movement.Tile: 0 -> (-1)",
        "movement._mirrored: 0 -> 1",
        "movement._mirrored: 0 -> (-1)",
        "views.SpaceToDepth: 0 -> 1",
        "views.SpaceToDepth: 0 -> (-1)",
        "views.unflattened: 0 -> 1",
        "views.unflattened: 0 -> (-1)",
    ],
    "Axes of size 1 and equal axes are left out to keep an index short: the number is the same with them.": [
        "views.unflattened: not same(size, 1) -> True",
        "views.unflattened: 1 -> (0)",
    ],
    "An inferred size is made so that the number of elements is that of the input, which may be said once more.": [
        "views._answers: -1 not in asked -> True",
        "views._answers: 1 -> 2",
    ],
}

REASONS: Mapping[str, str] = {mutant: why for why, mutants in EQUIVALENT.items() for mutant in mutants}

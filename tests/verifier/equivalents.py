"""Mutants of the denotations that compute the same, by the reason why."""

from collections.abc import Mapping, Sequence

EQUIVALENT: Mapping[str, Sequence[str]] = {
    "A truth value is 0 or 1: it is positive where it is not 0.": [
        "elementwise_ops.IsInf: is_nonzero -> is_positive",
        "elementwise_ops.ELEMENTWISE_OPERATORS: is_nonzero -> is_positive",
    ],
    "A difference is 0 in either order.": [
        "elementwise_ops.ELEMENTWISE_OPERATORS: a - b -> (b - a)",
        "reduction_ops.Hardmax: place - integer_value(index[axis]) -> (integer_value(index[axis]) - place)",
        "indexing_ops.OneHot: where - integer_value(place) -> (integer_value(place) - where)",
        "movement_ops._slice_range: end - other -> (other - end)",
    ],
    "With m the mean of x, the means of (x - m)(x + m) and of (x - m)x are that of (x - m)(x - m): the variance.": [
        "normalization_ops.standardize: others(k) - average -> (others(k) + average)",
        "normalization_ops.standardize: others(k) - average -> others(k)",
    ],
    "What is no float is a named function in either model (`Node.is_exact`), and floats ask for fmod.": [
        'elementwise_ops.Mod: "FMod" if kind else "Mod" -> ("FMod")',
        "elementwise_ops.Mod: \"Mod\" -> 'FMod'",
    ],
    "Of one group the place within the group is the place, and no channel precedes: it keeps an index short.": [
        "window_ops.convolution: 0 if group == 1 else quotient(m, Mg) * Cg -> (quotient(m, Mg) * Cg)",
        "window_ops.Conv: 1 -> (0)",
        (
            "window_ops.ConvTranspose: (0, m) if group == 1 else (quotient(m, Mg), remainder(m, Mg)) "
            "-> ((quotient(m, Mg), remainder(m, Mg)))"
        ),
        "window_ops.ConvTranspose: 1 -> (0)",
    ],
    "Of what is proved all types are known; inference, which may not know one, asks for no sum.": [
        "quantization_ops._max_distance: not x.dtype.is_integer -> False",
    ],
    "0 is even, and an even number of channels is refused; a number is odd where its remainder by 2 is at least 1.": [
        "normalization_ops.LRN: 1 -> (0)",
        "normalization_ops.LRN: eq -> ge",
    ],
    "A cap is not negative, which was refused before.": [
        "attention_ops._soft_cap: is_nonzero -> is_positive",
    ],
    "-1 is odd, and an odd number of elements is refused.": [
        "attention_ops.RotaryEmbedding: 0 -> (-1)",
    ],
    "A pad is not negative and shorter than the kernel, which is not 0 then.": [
        "window_ops.pool_denotation: 1 -> (0)",
    ],
    "A number that is added to all scores is lost in their softmax, and the scores that are shown are those before.": [
        "attention_ops._mask: mask is None or truths -> ((mask is None))",
        "attention_ops._mask: 0 -> 1",
        "attention_ops._mask: 0 -> (-1)",
    ],
    "Products with weights are equal only where what is named is: of that it is asked whether it is NaN.": [
        "attention_ops.Attention: current_session().arithmetic is None -> False",
    ],
    "The operands have one rank, and the caches one shape.": [
        "attention_ops.Attention: 0 -> 1",
        "attention_ops.RotaryEmbedding: 0 -> 1",
    ],
    "Where no operand is absent, to say so of each says how many there are, which is known.": [
        "elementwise_ops.exact_function: absent if any(absent) else () -> (absent)",
    ],
    "A step is not 0, which was refused before.": [
        "movement_ops._slice_range: 1 -> (0)",
        "movement_ops._slice_range: lt -> le",
        "movement_ops._slice_range: 0 -> 1",
        "indexing_ops._range_length: step > 0 -> (step >= 0)",
        "indexing_ops._range_length: 0 -> (-1)",
    ],
    "A whole number that is rounded is that number.": [
        "indexing_ops.OneHot: asked.dtype.is_float -> True",
    ],
    "Of an index with too many places `stretched` takes the last, so that of the row is left out anyway.": [
        "reduction_ops.matrix_product: () if row else rest[:1] -> (rest[:1])",
    ],
    "Lists that are longer, and axes beyond the last, are refused or like others: to try them shows no more.": [
        "movement_ops._slice_numbers: 1 -> 2",
        "view_ops.Flatten: 1 -> 2",
    ],
    "A slice that ends before it begins is empty, wherever its end is.": [
        "movement_ops._slice_range: 0 -> (-1)",
    ],
    "Divided by 1 a number stays as it is; so does an index by the size that it is below.": [
        (
            "movement_ops._slice_range: span if step == 1 else quotient(span + by - 1, by) -> "
            "(quotient(span + by - 1, by))"
        ),
        "movement_ops.Tile: i if r == 1 else remainder(i, s) if s != 0 else 0 -> (remainder(i, s) if s != 0 else 0)",
        "movement_ops.Tile: 1 -> (0)",
    ],
    "At the border a number is what it is clamped to.": [
        "movement_ops._clamp: le -> lt",
    ],
    "Of one row the index is 0 on the right, too, where it was shown to be in range.": [
        (
            "movement_ops._gather_with_unknown_indices: x.shape[axis] == 1 and node.assumes_defined -> "
            "((x.shape[axis] == 1))"
        ),
    ],
    "What does not depend on the place is the same wherever it is looked up.": [
        "movement_ops.lookup_element: place not in value.free_symbols -> False",
    ],
    "An attribute is the same wherever an element is.": [
        "movement_ops.lookup_element: place not in free_symbols(p) -> (place in free_symbols(p))",
    ],
    "As many windows fit as there are strides where it is padded for that, and none of them reaches beyond the end.": [
        (
            'window_ops.Window: tuple(map(self._stride_count, range(rank))) if mode.startswith("SAME") '
            "else fitting -> (fitting)"
        ),
        "window_ops.Window: large if upper else small -> (large)",
    ],
    "Proofs have no such attribute, output or function of integers: `tests/test_infer.py` asks of these.": [
        (
            'elementwise_ops.Div: (lambda a, b: call_function("Quotient", a, b)) if '
            "node.dtype.is_integer else lambda a, b: a / b -> (lambda a, b: a / b)"
        ),
        "window_ops.pool_denotation: 1 -> 2",
        (
            "movement_ops.ConstantOfShape: (0,) if value is None else value.int_values() if "
            "isinstance(value, Constant) else None -> ((0,))"
        ),
        (
            "movement_ops.ConstantOfShape: value.int_values() if isinstance(value, Constant) else None "
            "-> (value.int_values())"
        ),
        "movement_ops.ConstantOfShape: value.int_values() if isinstance(value, Constant) else None -> (None)",
        "movement_ops.ConstantOfShape: numbers is None -> False",
    ],
    "An operator of another domain that nothing defines is refused in a rule, before it is asked what it computes.": [
        "semantics.denote: node.domain or node.op not in OPERATORS -> ((node.op not in OPERATORS))",
    ],
    "What has as many elements as the whole is not stretched.": [
        "elementwise_ops._common_base_shape: all -> any",
    ],
    "Each denotation looks at all attributes, which `test_every_attribute_is_looked_at` asks of each.": [
        "semantics.denote: (unread := node.find_unread_parameter()) is not None -> False",
    ],
    "An index along an axis that is not padded is inside of it.": [
        "movement_ops.Pad: a in begin -> True",
        (
            "movement_ops.Pad: _pad_source_index(mode, i, x.shape[a]) if a in begin else i -> "
            "(_pad_source_index(mode, i, x.shape[a]))"
        ),
    ],
    "Of one output the first is the last.": [
        "movement_ops.Resize: 0 -> (-1)",
    ],
    "What does not say whether it keeps its axes is no reduction along some.": [
        "opaque_ops.opaque_output: 0 -> 1",
        "opaque_ops.opaque_output: 0 -> (-1)",
    ],
    "A size that broadcasts with a number that is not 1 is that number.": [
        (
            "shape_constraints._join_sizes: b if isinstance(b, int) else "
            "node.broadcast_size(a, b) -> (node.broadcast_size(a, b))"
        ),
    ],
    "What is a view of nothing is its own base.": [
        "elementwise_ops._common_base_shape: same and any(t.view_of for t in whole) -> ((same))",
        "elementwise_ops._common_base_shape: any -> all",
    ],
    "None of the sizes that meet what is asked for is negative: one that is inferred is a quotient of such.": [
        "view_ops._reshape_conditions: size != -1 -> True",
        "view_ops._reshape_conditions: 1 -> (0)",
        "view_ops._reshape_conditions: conjunction(ge(size, -1), ge(own)) -> conjunction(ge(size, -1))",
    ],
    "A vector has one axis, which is the first and the last.": [
        "reduction_ops.MatMul: 1 -> (0)",
    ],
    "Of an empty tensor no element is asked, so it does not matter which one it would be.": [
        "movement_ops.Tile: 0 -> 1",
        "movement_ops.Tile: 0 -> (-1)",
        "movement_ops._pad_source_index: 0 -> 1",
        "movement_ops._pad_source_index: 0 -> (-1)",
        "view_ops.SpaceToDepth: 0 -> 1",
        "view_ops.SpaceToDepth: 0 -> (-1)",
        "view_ops.reshape_index: 0 -> 1",
        "view_ops.reshape_index: 0 -> (-1)",
    ],
    "Axes of size 1 and equal axes are left out to keep an index short: the number is the same with them.": [
        "view_ops.reshape_index: not same(size, 1) -> True",
        "view_ops.reshape_index: 1 -> (0)",
    ],
    "An inferred size is made so that the number of elements is that of the input, which may be said once more.": [
        "view_ops._reshape_conditions: -1 not in asked -> True",
        "view_ops._reshape_conditions: 1 -> 2",
    ],
}

REASONS: Mapping[str, str] = {mutant: why for why, mutants in EQUIVALENT.items() for mutant in mutants}

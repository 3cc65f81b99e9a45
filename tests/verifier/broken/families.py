"""Wrong rules with holes for operators: true of some operators of the class, or of none."""

from graphopt.rule import (
    App,
    Rule,
    Term,
    binary,
    const,
    fn,
    integer,
    integers,
    op,
    pointwise,
    reduction,
    tensor,
    tensors,
)

f, h, g = pointwise("f"), pointwise("h"), binary("g")
r, q, called_sum = reduction("r"), reduction("q"), reduction("ReduceSum")
x, y, z, v, c = tensor("x"), tensor("y"), tensor("z"), tensor("v"), tensor("c")
row, matrix, image, square = tensor("x", "N"), tensor("x", "M N"), tensor("x", "N C H W"), tensor("x", "N N")
w = const("w", "N N")
first, second, perm, axes = integers("first"), integers("second"), integers("perm"), integers("axes")
shape, pads, sizes = integers("shape"), integers("pads"), integers("sizes")
xs, ys, zs, other_axis = tensors("xs"), tensors("ys"), tensors("zs"), integer("other_axis")
starts, ends, steps = integers("starts"), integers("ends"), integers("steps")
axis = integer("axis")


def pool(value: Term) -> App:
    return op.MaxPool(value, kernel_shape=(2, 2))


parts = op.Split.split(2, x, sizes, axis=axis)
taken = op.Slice(op.Concat(*xs, x, *ys, axis=axis), starts, ends, axes, steps)
length = fn.item(fn.shape(x), axis)
along_axis = (
    fn.eq(steps, 1),
    fn.eq(fn.normalize_indices(axes, fn.rank(x)), fn.normalize_indices(fn.concat(axis), fn.rank(x))),
)
begins, last = fn.eq(starts, fn.extent(xs)), fn.eq(ends, fn.extent(xs) + length)
cut, more = integers("cut"), integers("more")
one, next_one = op.Slice(x, starts, cut, (0,)), op.Slice(x, more, ends, (0,))
both = op.Slice(x, starts, ends, (0,))

REFUTED = (
    # what is not an element of the operand
    Rule("any_over_pad", f(op.Pad(row, pads)), op.Pad(f(row), pads)),
    Rule("any_before_pad", op.Pad(f(row), pads), f(op.Pad(row, pads))),
    Rule("any_of_zeros", f(x * 0.0), x * 0.0),
    # more is known of the function than that it is one; what stands beside it says that it keeps the element type
    Rule("any_is_identity", f(x) + x, x + x),
    Rule("any_is_idempotent", f(f(x)), f(x)),
    Rule("any_undoes_itself", f(f(x)), x),
    Rule("any_is_odd", f(-x) + x, x - f(x)),
    Rule("any_is_linear", f(x + y) + x, (f(x) + f(y)) + x),
    Rule("any_is_homogeneous", f(x * y) + x, f(x) * y + x),
    Rule("any_is_monotone", op.Max(f(x), f(y), x), op.Max(f(op.Max(x, y)), x)),
    Rule(
        "any_of_largest", op.ReduceMax(f(matrix)) + op.ReduceMax(matrix), f(op.ReduceMax(matrix)) + op.ReduceMax(matrix)
    ),
    Rule("any_of_sum", op.ReduceSum(f(matrix)) + op.ReduceSum(matrix), f(op.ReduceSum(matrix)) + op.ReduceSum(matrix)),
    Rule("any_of_pool", op.Concat(pool(f(image)), pool(image), axis=0), op.Concat(f(pool(image)), pool(image), axis=0)),
    Rule("any_before_product", f(square @ w) + square, f(square) @ w + square),
    Rule("any_two_commute", (f(h(x)) + f(x)) + x, (h(f(x)) + f(x)) + x),
    Rule("any_two_are_one", op.Concat(f(x), h(y), axis=0), f(op.Concat(x, y, axis=0))),
    Rule("any_two_are_one_of_a_type", op.Concat(f(x), h(x), axis=0), f(op.Concat(x, x, axis=0))),
    Rule("any_two_change_places", f(x) - h(x), h(x) - f(x)),
    Rule("any_pair_commutes", g(x, y), g(y, x)),
    Rule("any_pair_of_a_type_commutes", op.Concat(g(x, y), x, y, axis=0), op.Concat(g(y, x), x, y, axis=0)),
    Rule("any_pair_associates", g(g(x, y), z), g(x, g(y, z))),
    Rule("any_pair_of_the_same", g(x, x) + x, x + x),
    Rule("any_pair_of_the_same_is_any", g(x, f(x)), g(f(x), x)),
    # elements of other places
    Rule(
        "any_between_transposes_in_other_order",
        op.Transpose(f(op.Transpose(x, perm=first)), perm=second),
        f(op.Transpose(x, perm=fn.compose(second, first))),
    ),
    Rule("any_of_swapped_parts", tuple(map(f, parts)), tuple(map(f, parts[::-1]))),
    Rule("any_of_transposed", f(op.Transpose(matrix, perm=(1, 0))), op.Reshape(f(matrix), fn.sizes("N M"))),
    # any number of tensors
    Rule("any_number_turned", op.Concat(*xs, *ys, axis=axis), op.Concat(*ys, *xs, axis=axis)),
    Rule("any_number_forgotten", op.Concat(x, *xs, axis=axis), x),
    Rule("any_number_twice", op.Concat(*xs, axis=axis), op.Concat(*xs, *xs, axis=axis)),
    Rule(
        "any_number_joined_within_along_another_axis",
        op.Concat(*xs, op.Concat(*ys, axis=other_axis), axis=axis),
        op.Concat(*xs, *ys, axis=axis),
    ),
    Rule("any_number_joined_along_another_axis", op.Concat(*xs, axis=0), op.Concat(*xs, axis=1)),
    Rule(
        "any_number_in_another_order",
        op.Concat(*xs, op.Concat(*ys, axis=0), *zs, axis=0),
        op.Concat(*xs, *zs, *ys, axis=0),
    ),
    Rule("any_of_some_of_any_number", op.Concat(f(xs), *ys, axis=axis), f(op.Concat(*xs, *ys, axis=axis))),
    Rule("any_two_of_any_number", op.Concat(f(xs), h(ys), axis=0), f(op.Concat(*xs, *ys, axis=0))),
    Rule("any_of_any_number_is_transposed", op.Transpose(op.Concat(*xs, axis=0)), op.Concat(*xs, axis=0)),
    # along two axes: for one tensor, of the one or the other, it holds
    Rule(
        "any_number_along_two_axes",
        op.Shape(op.Concat(op.Concat(*xs, axis=0), op.Concat(*xs, axis=1), axis=0)),
        op.Shape(op.Concat(op.Concat(*xs, axis=0), op.Concat(*xs, axis=0), axis=0)),
    ),
    Rule("any_number_of_one", op.Shape(op.Concat(*xs, axis=0)), op.Shape(op.Concat(*xs, axis=1))),
    # reductions: of other axes, of other elements, of those in another order
    Rule("any_reduction_along_other_axes", r(x, axes, keepdims=1), r(x, (0,), keepdims=1)),
    Rule("any_reduction_of_all", r(matrix, (0,), keepdims=1), r(matrix, (0, 1), keepdims=1)),
    Rule(
        "any_reduction_of_any",
        r(f(x), axes, keepdims=0) + r(x, axes, keepdims=0),
        f(r(x, axes, keepdims=0)) + r(x, axes, keepdims=0),
    ),
    Rule("any_reduction_of_a_sum", r(matrix + matrix, (1,), keepdims=0), r(matrix, (1,), keepdims=0) * 2.0),
    Rule("any_reduction_is_odd", r(-matrix, (1,), keepdims=0), -r(matrix, (1,), keepdims=0)),
    Rule("any_reduction_twice", r(r(matrix, (1,), keepdims=1), (0,), keepdims=1), r(matrix, (0, 1), keepdims=1)),
    Rule("any_reduction_of_one", r(row, (0,), keepdims=1), row, when=fn.eq(fn.size("N"), 1)),
    Rule(
        "any_reduction_of_joined", r(op.Concat(matrix, matrix, axis=1), (1,), keepdims=0), r(matrix, (1,), keepdims=0)
    ),
    Rule("any_reduction_squeezed", op.Squeeze(r(x, axes, keepdims=1), perm), r(x, axes, keepdims=0)),
    Rule("any_reduction_is_a_sum", called_sum(matrix, (1,), keepdims=0), op.ReduceSum(matrix, (1,), keepdims=0)),
    Rule(
        "any_two_reductions",
        r(x, axes, keepdims=0) - q(x, axes, keepdims=0),
        q(x, axes, keepdims=0) - r(x, axes, keepdims=0),
    ),
    # how long any number of tensors are together
    Rule("any_length_of_others", taken, x, when=(*along_axis, fn.eq(starts, fn.extent(ys)), last)),
    Rule("any_length_and_one", taken, x, when=(*along_axis, fn.eq(starts, fn.extent(xs) + 1), last)),
    Rule("any_length_of_the_start_alone", taken, x, when=(*along_axis, begins)),
    Rule("any_length_of_the_end_alone", taken, x, when=(*along_axis, last)),
    Rule("any_length_and_more", taken, x, when=(*along_axis, begins, fn.le(fn.extent(xs) + length, ends))),
    Rule("any_length_backwards", taken, x, when=(*along_axis[1:], begins, last)),
    Rule("any_length_along_another_axis", taken, x, when=(along_axis[0], begins, last)),
    Rule(
        "any_length_that_is_cut",
        op.Slice(op.Concat(*xs, axis=0), starts, ends, (0,), (1,)),
        op.Concat(*xs, axis=0),
        when=fn.eq(ends, fn.extent(xs)),
    ),
    Rule(
        "any_slices_turned",
        op.Concat(*xs, one, next_one, *ys, axis=0),
        op.Concat(*xs, both, *ys, axis=0),
        when=(fn.eq(starts, more), fn.le(0, cut)),
    ),
    Rule(
        "any_slices_apart",
        op.Concat(*xs, one, next_one, *ys, axis=0),
        op.Concat(*xs, both, *ys, axis=0),
        when=(fn.le(0, starts), fn.le(cut, more)),
    ),
    # element types, which an operator may change, or ask for
    Rule("any_of_cast", f(op.Cast(x, to=1)), op.Cast(f(x), to=1)),
    Rule("any_keeps_types", f(x) + y, f(x + y - y)),
    # what is the same real number and another float
    Rule("any_of_a_difference", f((x + y) - y), f(x)),
    # other sizes
    Rule(
        "any_pair_of_transposed",
        op.Transpose(g(x, y), perm=perm),
        g(op.Transpose(x, perm=perm), op.Transpose(y, perm=perm)),
    ),
    Rule("any_pair_of_reshaped", g(op.Reshape(x, shape), op.Reshape(y, shape)), op.Reshape(g(x, y), shape)),
    Rule("any_pair_of_expanded", g(op.Expand(x, sizes), y), g(x, y)),
    Rule("any_pair_of_tiled", g(op.Tile(x, sizes), y), g(x, y)),
    Rule("any_pair_with_the_same", op.Concat(g(x, z), g(y, z), axis=0), g(op.Concat(x, y, axis=0), z)),
    Rule(
        "any_pair_of_joined",
        op.Concat(g(x, y), g(z, v), axis=0),
        g(op.Concat(x, z, axis=0), op.Concat(y, v, axis=0)),
    ),
    Rule(
        "any_pair_of_sliced",
        op.Slice(g(x, y), starts, ends, axes, steps),
        g(op.Slice(x, starts, ends, axes, steps), op.Slice(y, starts, ends, axes, steps)),
    ),
)
"""That these are wrong is shown by an operator of the class."""

UNPROVED = (
    # floats that are added in another order
    Rule(
        "any_reduction_of_transposed",
        r(op.Transpose(matrix, perm=(1, 0)), (0, 1), keepdims=0),
        r(matrix, (0, 1), keepdims=0),
    ),
    Rule("any_reduction_of_flat", r(op.Reshape(matrix, (-1,)), (0,), keepdims=0), r(matrix, (0, 1), keepdims=0)),
    # how long others are, and along which axis
    Rule(
        "any_slices_joined_along_another_axis",
        op.Concat(*xs, one, op.Slice(x, cut, ends, (0,)), *ys, axis=1),
        op.Concat(*xs, op.Slice(x, starts, ends, (0,)), *ys, axis=1),
        when=(fn.le(0, starts), fn.le(starts, cut)),
    ),
    Rule("any_length_is_0", op.Concat(*xs, x, *ys, axis=axis), x, when=fn.eq(fn.extent(xs), 0)),
    # other ranks
    Rule("any_pair_of_squeezed", g(op.Squeeze(x, axes), op.Squeeze(y, axes)), op.Squeeze(g(x, y), axes)),
    # computed where it need not be defined
    Rule("any_of_all", f(op.Slice(x, starts, ends, axes, steps)), op.Slice(f(x), starts, ends, axes, steps)),
    Rule("any_of_first", f(op.Gather(x, 0, axis=0)), op.Gather(f(x), 0, axis=0)),
    Rule("any_of_one_branch", f(op.Where(c, x, y)), op.Where(c, f(x), f(y))),
    Rule("any_of_one_part", f(parts[0]), op.Split.split(2, f(x), sizes, axis=axis)[0]),
    Rule("any_of_another", op.Shape(f(x)), op.Shape(f(x + 1.0))),
    # the same real number is another float, before which the function may jump
    Rule("any_of_a_sum_of_three", f((x + y) + z), f(x + (y + z))),
    Rule("any_of_a_product_of_three", f((x * y) * z), f(x * (y * z))),
    Rule("any_of_a_scaled_product", f((square @ w) * 2.0), f(square @ (w * 2.0))),
)
"""These are right for most operators, and not for all."""

"""Channels that need not be computed: dead ones, as their readers multiply them by zeros or they are zero, and
duplicates.

Pruned networks keep them: `fn.nonzero_indices` says where the weights hold anything but zeros, `fn.unique_indices`
where they differ from those of all channels before. What is read of an image elsewhere, or added to it, keeps its
channels: only those between two convolutions or products are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
from typing import NamedTuple, TypeAlias

from graphopt.rule import App, Rule, Term, TermLike, Var, const, fn, integer, integers, op, real, tensor
from graphopt.rules.branches import eye
from graphopt.rules.cache_aliasing import LINE, PERIOD
from graphopt.rules.convolution import BLOCK


class Activation(NamedTuple):
    """Operator behind a convolution or a product."""

    name: str
    apply: Callable[[Term], Term]


NOTHING, RELU = Activation("", lambda y: y), Activation("_relu", op.Relu)
CLIP, RELU6 = (
    Activation("_clip", lambda y: op.Clip(y, real("low"), real("high"))),
    Activation("_relu6", lambda y: op.Clip(y, 0.0, 6.0)),
)
HARD_SWISH, GELU = Activation("_hard_swish", op.HardSwish), Activation("_gelu", op.Gelu)
SILU, TANH = Activation("_silu", lambda y: y * op.Sigmoid(y)), Activation("_tanh", op.Tanh)
SIGMOID = Activation("_sigmoid", op.Sigmoid)
ERF_GELU = Activation("_erf_gelu", lambda y: (y * 0.5) * (op.Erf(y * fn.truediv(1.0, fn.sqrt(2.0))) + 1.0))
"""Gelu as exporters write it where the opset has none."""

ChannelSelector: TypeAlias = Callable[[Term, App, int], Term]
"""Weights for the channels at some places along an axis, instead of all."""


def select_channels(value: Term, places: App, axis: int = 0) -> App:
    """Return the weights of some channels along an axis."""
    return op.Gather(value, places, axis=axis)


def sum_equal_channels(value: Term, places: App, axis: int) -> App:
    """Return the weights, a matrix, of some channels along an axis, each with those of the channels equal to it
    added."""
    # as weights by unit vectors, and not the other way round: what is computed has the type of the first
    units = op.Gather(eye(value, fn.length(places)), fn.inverse_indices(*places.operands), axis=0)
    turned = (1, 0)
    return value @ units if axis else op.Transpose(op.Transpose(value, perm=turned) @ units, perm=turned)


def sum_equal_filter_channels(value: Term, places: App, _: int) -> App:
    """Do as `sum_equal_channels` for filters, along their second axis."""
    turned = op.Transpose(op.Reshape(value, fn.concat(fn.sizes("M C"), -1)), perm=(0, 2, 1))
    sums = op.Transpose(sum_equal_channels(turned, places, 1), perm=(0, 2, 1))
    return op.Reshape(sums, fn.concat(fn.size("M"), fn.length(places), fn.sizes("*q")))


class PrunableChannels(NamedTuple):
    """Channels that need not be made.

    With those that are left, others stay up to a multiple of a block: of depthwise convolutions that fill none ONNX
    Runtime computes 61 channels in twice the time of 64, and in that of 144.
    """

    name: str
    why: str
    places: Callable[[str, Iterable[Var], Var], App]
    """Indices of the other channels, along an axis of what makes them and of what reads them."""
    read: ChannelSelector = select_channels


UNREAD = PrunableChannels(
    "unread",
    "Channels that are multiplied by zeros alone need not be made.",
    lambda axis, _, readers: fn.nonzero_indices(axis, BLOCK, readers),
)
ZERO = PrunableChannels(
    "zero", "Channels that are zero add nothing.", lambda axis, makers, _: fn.nonzero_indices(axis, BLOCK, *makers)
)
EQUAL = PrunableChannels(
    "equal",
    "Of channels that are equal one is made, and read with the sum of what they are multiplied by.",
    lambda axis, makers, _: fn.unique_indices(axis, BLOCK, *makers),
    sum_equal_channels,
)


def is_proper_selection(places: App, axis: str) -> tuple[App, ...]:
    """Return the conditions that some channels are selected, and not all: no convolution is of no channels."""
    return fn.lt(0, fn.length(places)), fn.lt(fn.length(places), fn.size(axis))


# -- convolutions --------------------------------------------------------------------------------------------------
# Axes: N batch, I channels that are read, C those between, M those that are made, *s space, *k *r *q kernels.

image = tensor("x", "N I *s")
filters, bias = const("w", "C I *k"), const("b", "C", default=0)
single, single_bias = const("d", "C 1 *r"), const("e", "C", default=0)
readers, last = const("v", "M C *q"), const("c", "M", default=0)
group = integer("group")


def geometry(of: str) -> dict[str, TermLike]:
    return {name: integers(f"{name}_{of}") for name in ("strides", "pads", "dilations")}


def two_convs(between: Activation, *weights: Term) -> App:
    """Return a convolution of another."""
    filters, bias, readers = weights
    made = op.Conv(image, filters, bias, group=1, **geometry("first"))
    return op.Conv(between.apply(made), readers, last, group=1, **geometry("last"))


def three_convs(before: Activation, after: Activation, *weights: Term, count: TermLike) -> App:
    """Return a depthwise convolution of so many channels between two others."""
    filters, bias, single, single_bias, readers = weights
    made = before.apply(op.Conv(image, filters, bias, group=1, **geometry("first")))
    filtered = op.Conv(made, single, single_bias, group=count, **geometry("single"))
    return op.Conv(after.apply(filtered), readers, last, group=1, **geometry("last"))


def of_readers(kind: PrunableChannels) -> ChannelSelector:
    return sum_equal_filter_channels if kind is EQUAL else kind.read


def prune_between_convs(what: Activation, kind: PrunableChannels) -> Rule:
    """Return the rule for channels between two convolutions."""
    places = kind.places("C", (filters, bias), readers)

    fewer = select_channels(filters, places), select_channels(bias, places), of_readers(kind)(readers, places, 1)
    return Rule(
        f"drop_{kind.name}_channels_between_convs{what.name}",
        two_convs(what, filters, bias, readers),
        two_convs(what, *fewer),
        when=is_proper_selection(places, "C"),
        why=kind.why,
    )


def prune_around_depthwise(what: Activation, kind: PrunableChannels) -> Rule:
    """Return the rule for channels that a depthwise convolution between the two filters one by one."""
    filtered_by = (single, single_bias)
    places = kind.places("C", (filters, bias, *filtered_by) if kind is EQUAL else filtered_by, readers)

    fewer = (select_channels(value, places) for value in (filters, bias, single, single_bias))
    return Rule(
        f"drop_{kind.name}_channels_around_depthwise_conv{what.name}",
        three_convs(what, what, filters, bias, single, single_bias, readers, count=group),
        three_convs(what, what, *fewer, of_readers(kind)(readers, places, 1), count=fn.length(places)),
        when=(fn.eq(group, fn.size("C")), *is_proper_selection(places, "C")),
        why=kind.why,
    )


def with_max_pool(what: Activation) -> Activation:
    """Return an activation with the greatest of each window behind it, as VGG has it."""
    window = {"kernel_shape": integers("window"), "strides": integers("steps"), "pads": integers("around")}
    return Activation(f"{what.name}_max_pool", lambda y: op.MaxPool(what.apply(y), **window))


# Behind what does not keep zero, such as a sigmoid or a Clip to other numbers, channels that are zero add something.
# Not here, for their proofs take too long: LeakyRelu, Elu, SiLU and HardSwish on both sides of a depthwise one, and
# means of windows.
CONVS = (
    *(
        prune_between_convs(what, kind)
        for kind in (UNREAD, EQUAL)
        for what in (
            NOTHING,
            RELU,
            CLIP,
            HARD_SWISH,
            SILU,
            GELU,
            TANH,
            SIGMOID,
            with_max_pool(NOTHING),
            with_max_pool(RELU),
        )
    ),
    *(prune_between_convs(what, ZERO) for what in (NOTHING, RELU, RELU6, HARD_SWISH, SILU, GELU, TANH)),
    *(prune_around_depthwise(what, kind) for kind in (UNREAD, EQUAL) for what in (NOTHING, RELU, CLIP)),
    *(prune_around_depthwise(what, ZERO) for what in (NOTHING, RELU, RELU6)),
)

# -- products ------------------------------------------------------------------------------------------------------
# Axes: M rows, K features that are read, H those between, P those that are made.


class FeatureProduct(NamedTuple):
    """A product with weights, one side of which is H."""

    name: str
    weights: str
    """Their axes."""
    apply: Callable[[Term, Term, Term], Term]
    """Product of a value, the weights and a bias."""
    bias: Var | None = None


rows, matrix = tensor("x", "*b M K"), tensor("x", "M K")
b, optional, final = const("b", "H"), const("b", "H", default=0), const("c", "P", default=0)
ADDED = FeatureProduct("matmul_add", "K H", lambda x, w, b: x @ w + b, b)
BARE = FeatureProduct("matmul", "K H", lambda x, w, _: x @ w)
GEMM = FeatureProduct("gemm", "K H", op.Gemm, optional)
FLIPPED = FeatureProduct("transposed_gemm", "H K", lambda x, w, b: op.Gemm(x, w, b, transB=1), optional)
THEN_BARE = FeatureProduct("matmul", "H P", lambda x, w, _: x @ w)
THEN_GEMM = FeatureProduct("gemm", "H P", lambda x, w, _: op.Gemm(x, w, final))
THEN_FLIPPED = FeatureProduct("transposed_gemm", "P H", lambda x, w, _: op.Gemm(x, w, final, transB=1))
AFTER_EACH_OTHER = (
    *((rows, first, THEN_BARE) for first in (ADDED, BARE)),
    *((matrix, GEMM, second) for second in (THEN_BARE, THEN_GEMM)),
    *((matrix, FLIPPED, second) for second in (THEN_BARE, THEN_FLIPPED)),
)


def is_summable_selection(places: App, kind: PrunableChannels) -> tuple[App, ...]:
    """Return the conditions of `is_proper_selection`, that more goes than keeps rows apart in the cache, and that there
    are weights to add up."""
    count = fn.length(places)
    is_worth = fn.any_of(fn.lt(count + LINE, fn.size("H")), fn.ne(count % PERIOD, 0))
    return *is_proper_selection(places, "H"), is_worth, *((fn.lt(0, fn.size("P")),) if kind is EQUAL else ())


def prune_between_products(
    x: Term, first: FeatureProduct, second: FeatureProduct, what: Activation, kind: PrunableChannels
) -> Rule:
    """Return the rule for features between two products."""
    w, v = const("w", first.weights), const("v", second.weights)
    bias = first.bias or optional  # which a bare product leaves out
    makers = (w,) if first.bias is None else (w, first.bias)
    places = kind.places("H", makers, v)

    def products(w: Term, b: Term, v: Term) -> Term:
        return second.apply(what.apply(first.apply(x, w, b)), v, final)

    own, further = first.weights.split().index("H"), second.weights.split().index("H")
    return Rule(
        f"drop_{kind.name}_features_of_{first.name}_before_{second.name}{what.name}",
        products(w, bias, v),
        products(select_channels(w, places, own), select_channels(bias, places), kind.read(v, places, further)),
        when=is_summable_selection(places, kind),
        why=kind.why,
    )


PRODUCTS = tuple(
    prune_between_products(x, first, second, what, kind)
    for (x, first, second), what, kind in product(
        AFTER_EACH_OTHER, (NOTHING, RELU, SILU, GELU, ERF_GELU, TANH), (UNREAD, ZERO, EQUAL)
    )
)

gates = const("u", "K H")


def prune_gated_products(what: Activation, kind: PrunableChannels) -> Rule:
    """Return the rule for features that a product with others gates, as those of Llama."""
    w, v = const("w", BARE.weights), const("v", THEN_BARE.weights)
    places = kind.places("H", (w, gates) if kind is EQUAL else (w,), v)

    def products(gates: Term, w: Term, v: Term) -> App:
        return (what.apply(rows @ gates) * (rows @ w)) @ v

    return Rule(
        f"drop_{kind.name}_gated_features{what.name}",
        products(gates, w, v),
        products(select_channels(gates, places, 1), select_channels(w, places, 1), kind.read(v, places, 0)),
        when=is_summable_selection(places, kind),
        why=kind.why,
    )


GATED = tuple(
    prune_gated_products(what, kind)
    for what, kind in product((SILU, GELU, ERF_GELU, RELU, SIGMOID), (UNREAD, ZERO, EQUAL))
)

RULES = (*CONVS, *PRODUCTS, *GATED)

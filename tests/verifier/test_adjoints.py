"""The gradients of linear operators are their adjoints, for all sizes: ⟨A x, dy⟩ = ⟨x, Aᵀ dy⟩."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from graphopt.language.gradient import Gradient
from graphopt.language.proof import Verdict
from graphopt.language.terms import App, Lit, Term, TermLike, Var, term
from graphopt.operators.gradient_table import GRADIENTS
from graphopt.operators.product_gradients import einsum_gradient
from graphopt.rule import Rule, fn, integers, op, tensor
from graphopt.verifier.prove import prove

LETTERS = "abcdefg"


def substituted(part: Term, bound: Mapping[str, Term]) -> Term:
    match part:
        case Var(name=name):
            return bound.get(name, part)
        case App():
            args = tuple(None if arg is None else substituted(arg, bound) for arg in part.args)
            attrs = tuple((name, substituted(value, bound)) for name, value in part.attrs)
            return App(part.op, args, attrs, part.domain, part.output, part.outputs)
    return part


def inner_product(one: Term, other: Term, rank: int) -> App:
    """The sum of the products of all elements, of two tensors of one shape."""
    letters = LETTERS[:rank]
    return op.Einsum(one, other, equation=f"{letters},{letters}->")


def adjoint_rule(gradient: Gradient, by: str, said: Mapping[str, TermLike], *when: Term) -> Rule:
    """The equation of an operator that is linear in an input; texts name axes, and other things are attributes."""
    bound = {name: tensor(name, axes) if isinstance(axes, str) else term(axes) for name, axes in said.items()}
    head, back = substituted(gradient.head, bound), substituted(dict(gradient.terms)[by], bound)
    x, dy = bound[by], bound["dy"]
    assert isinstance(x, Var) and isinstance(dy, Var) and x.axes is not None and dy.axes is not None
    return Rule(
        f"adjoint_of_{gradient.head.op.lower()}",
        inner_product(head, dy, len(dy.axes)),
        inner_product(x, back, len(x.axes)),
        when=(*(substituted(condition, bound) for condition in gradient.when), fn.is_float(fn.dtype(dy)), *when),
    )


def positive(axes: str) -> tuple[Term, ...]:
    return tuple(fn.lt(0, fn.size(axis)) for axis in axes.split())


def window_count(image: str, kernel: str, axis: int, axes: int) -> App:
    """The size of a convolution's output along one of its spatial axes."""
    pads, dilations, strides = integers("pads"), integers("dilations"), integers("strides")
    padded = fn.size(image) + fn.item(pads, axis) + fn.item(pads, axes + axis)
    span = (fn.size(kernel) - 1) * fn.item(dilations, axis) + 1
    return fn.floordiv(padded - span, fn.item(strides, axis)) + 1


def larger_than_one(axes: str) -> tuple[Term, ...]:
    """Conditions under which no axis of an inner product is broadcast."""
    return tuple(fn.lt(1, fn.size(axis)) for axis in axes.split())


def convolution_rule(gradient: Gradient, by: str, axes: int) -> Rule:
    """The equation of a convolution along one axis of space or two, with its pads in numbers."""
    images, windows, results = ("H W"[: 2 * axes - 1], "K L"[: 2 * axes - 1], "Y X"[: 2 * axes - 1])
    said: Mapping[str, TermLike] = {
        "x": f"N C {images}",
        "w": f"M C {windows}",
        "dy": f"N M {results}",
        "auto_pad": Lit("NOTSET"),
    }
    sizes = zip(*(names.split() for names in (images, windows, results)), strict=True)
    counted = [fn.eq(fn.size(y), window_count(h, k, i, axes)) for i, (h, k, y) in enumerate(sizes)]
    least = larger_than_one if by == "x" else positive
    return adjoint_rule(gradient, by, said, *counted, *least(f"N C {images} M {windows} {results}"))


LARGER = larger_than_one("A B C")
POINTWISE, _, FILTERS, IMAGES_OF, _, CONV = [each for each in GRADIENTS["Conv"] if len(each.head.inputs) == 2][:6]
OPEN_IMAGES = next(
    each
    for each in reversed(GRADIENTS["Conv"])
    if len(each.head.inputs) == 2 and dict(each.head.attrs)["group"] == Lit(1)
)
"""The gradient for images of any size, which cuts off what strides leave over."""
ONE: Mapping[str, TermLike] = {
    "kernel": (1, 1),
    "strides": (1, 1),
    "dilations": (1, 1),
    "pads": (0, 0, 0, 0),
    "auto_pad": Lit("NOTSET"),
}
IMAGES = {"x": "N C H W", "w": "M C 1 1", "dy": "N M H W"}
MATMUL, GEMM = GRADIENTS["MatMul"], GRADIENTS["Gemm"]
(EINSUM,) = einsum_gradient("abc,adc->abd")
RULES = [
    adjoint_rule(MATMUL[0], "a", {"a": "M K", "b": "K N", "dy": "M N"}),
    adjoint_rule(MATMUL[0], "b", {"a": "M K", "b": "K N", "dy": "M N"}),
    adjoint_rule(MATMUL[0], "b", {"a": "B M K", "b": "K N", "dy": "B M N"}, *positive("B M K N")),
    adjoint_rule(MATMUL[1], "a", {"a": "A B M K", "b": "A B K N", "dy": "A B M N"}),
    adjoint_rule(MATMUL[1], "b", {"a": "A B M K", "b": "A B K N", "dy": "A B M N"}),
    adjoint_rule(GEMM[0], "a", {"a": "M K", "b": "K N", "dy": "M N"}),
    adjoint_rule(GEMM[1], "a", {"a": "K M", "b": "K N", "dy": "M N"}),
    adjoint_rule(GEMM[2], "b", {"a": "M K", "b": "K N", "dy": "M N"}),
    adjoint_rule(GEMM[3], "b", {"a": "M K", "b": "N K", "dy": "M N"}),
    adjoint_rule(EINSUM, "x_0", {"x_0": "B I J", "x_1": "B K J", "dy": "B I K"}),
    *(adjoint_rule(POINTWISE, by, {**IMAGES, **ONE}, *positive("N C M H W")) for by in ("x", "w")),
    adjoint_rule(
        GRADIENTS["Slice"][0],
        "x",
        {"x": "A B", "dy": "Y B", "axes": (0,), "steps": (1,)},
        fn.eq(fn.size("Y"), fn.item(integers("ends"), 0) - fn.item(integers("starts"), 0)),
        fn.le(0, integers("starts")),
        fn.le(integers("ends"), fn.sizes("A")),
        *larger_than_one("A B Y"),
    ),
    adjoint_rule(
        GRADIENTS["Pad"][0],
        "x",
        {"x": "A", "dy": "Y", "axes": (0,)},
        fn.eq(fn.size("Y"), fn.size("A") + fn.item(integers("pads"), 0) + fn.item(integers("pads"), 1)),
        *larger_than_one("A Y"),
    ),
    adjoint_rule(
        GRADIENTS["Tile"][0],
        "x",
        {"x": "A", "dy": "Y"},
        fn.eq(fn.size("Y"), fn.size("A") * fn.item(integers("repeats"), 0)),
        *larger_than_one("A Y"),
    ),
    *(convolution_rule(each, "x", axes) for each in (CONV, OPEN_IMAGES) for axes in (1, 2)),
    adjoint_rule(GRADIENTS["GlobalAveragePool"][0], "x", {"x": "N C H W", "dy": "N C 1 1"}),
    adjoint_rule(GRADIENTS["ReduceMean"][0], "x", {"x": "A B", "dy": "A 1", "axes": (1,)}),
    adjoint_rule(GRADIENTS["ReduceMean"][1], "x", {"x": "A B", "dy": "A", "axes": (1,)}),
    adjoint_rule(GRADIENTS["Where"][0], "a", {"x": "A B", "a": "A B", "b": 0.0, "dy": "A B"}),
    adjoint_rule(GRADIENTS["Identity"][0], "x", {"x": "A B", "dy": "A B"}),
    adjoint_rule(GRADIENTS["Mul"][0], "a", {"a": "A B", "b": "A B", "dy": "A B"}),
    adjoint_rule(GRADIENTS["Div"][0], "a", {"a": "A B", "b": "A B", "dy": "A B"}),
    adjoint_rule(GRADIENTS["Neg"][0], "x", {"x": "A B", "dy": "A B"}),
    adjoint_rule(GRADIENTS["Transpose"][0], "x", {"x": "A B C", "dy": "D E F"}),
    adjoint_rule(GRADIENTS["Trilu"][0], "x", {"x": "A B", "dy": "A B"}),
    adjoint_rule(GRADIENTS["CumSum"][0], "x", {"x": "A B", "dy": "A B", "along": 1}),
    adjoint_rule(GRADIENTS["Expand"][0], "x", {"x": "A B", "dy": "A B", "shape": fn.sizes("A B")}),
    adjoint_rule(GRADIENTS["ReduceSum"][0], "x", {"x": "A B", "dy": "A 1", "axes": (1,)}),
    adjoint_rule(GRADIENTS["ReduceSum"][1], "x", {"x": "A B", "dy": "A", "axes": (1,)}),
    adjoint_rule(GRADIENTS["Reshape"][0], "x", {"x": "A B", "dy": "C", "shape": (-1,)}, *LARGER),
    adjoint_rule(GRADIENTS["Unsqueeze"][0], "x", {"x": "A B", "dy": "A 1 B", "axes": (1,)}, *positive("A B")),
    adjoint_rule(GRADIENTS["Squeeze"][0], "x", {"x": "A 1 B", "dy": "A B", "axes": (1,)}, *positive("A B")),
]

CONVOLUTIONS = [
    *(convolution_rule(CONV, "w", axes) for axes in (1, 2)),
    convolution_rule(IMAGES_OF, "x", 1),
    convolution_rule(FILTERS, "w", 1),
]


@pytest.mark.parametrize("rule", [*RULES, *(pytest.param(rule, marks=pytest.mark.slow) for rule in CONVOLUTIONS)])
def test_the_gradient_is_the_adjoint(rule: Rule) -> None:
    proof = prove(rule)
    assert proof.verdict is Verdict.PROVED, proof.detail


def test_what_is_no_adjoint_is_refuted() -> None:
    wrong = Gradient(MATMUL[1].head, (("a", op.Neg(dict(MATMUL[1].terms)["a"])),), MATMUL[1].when)
    rule = adjoint_rule(wrong, "a", {"a": "A B M K", "b": "A B K N", "dy": "A B M N"})
    assert prove(rule).verdict is Verdict.REFUTED

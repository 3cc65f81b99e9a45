"""The facts that a row of the table of operators states are those of the kernels, and make it a member of classes."""

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import parser

from graphopt.io import onnx_io
from graphopt.ir import schemas
from graphopt.ir.graph import Graph, Node
from graphopt.language.definition import define
from graphopt.language.rule import Operators, Rule, binary, fn, integers, op, pointwise, real, tensor
from graphopt.operators import inference
from graphopt.operators.elementwise_ops import ExtraOperands
from graphopt.operators.node_evaluation import evaluate_node
from graphopt.operators.operator import MagnitudeEffect
from graphopt.operators.operator_classes import extra_operands, is_broadcasting
from graphopt.operators.semantics import OPERATORS
from graphopt.rewrite.build import build_patch
from graphopt.rewrite.gate import Gate
from graphopt.rewrite.matching import find_matches
from graphopt.rewrite.sites import Site

Array = NDArray[np.generic]
ELEMENTWISE = sorted(name for name in OPERATORS if extra_operands(name) is ExtraOperands.MULTIDIRECTIONAL)


def results(name: str, *inputs: Array) -> list[Array]:
    """What an operator makes of arrays, in the first of their element types that it takes."""
    given: dict[str, dict[str, int | str]] = {"BitShift": {"direction": "LEFT"}, "Cast": {"to": 1}, "Mod": {"fmod": 1}}
    for dtype in (np.float32, np.int64, np.uint8, np.bool_):
        made = Node(name, (), ("y",), (None,), given.get(name, {}), version=schemas.newest_version(name))
        found = evaluate_node(made, [array.astype(dtype) for array in inputs])
        if found is not None:
            return list(found)
    raise AssertionError(name)


def numbers(*among: float) -> tuple[Array, Array]:
    """Each pair of some numbers once."""
    first, second = np.meshgrid(np.array(among), np.array(among))
    return first.ravel(), second.ravel()


PAIRS = [name for name in ELEMENTWISE if is_broadcasting(name)]


@pytest.mark.parametrize("name", PAIRS)
def test_what_commutes_gives_the_same_for_swapped_operands(name: str) -> None:
    one, other = numbers(0, 1, 2, 3, 5)
    swapped = np.array_equal(results(name, one, other), results(name, other, one), equal_nan=True)
    assert swapped == OPERATORS[name].is_commutative


def test_of_which_zeros_the_greatest_depends_on_their_order() -> None:
    rounded = {name for name in PAIRS if not OPERATORS[name].is_exactly_commutative}
    assert {name for name in rounded if OPERATORS[name].is_commutative} == {"Max", "Min"}


def of_tensors(name: str) -> tuple[Array, ...]:
    """Operands of an elementwise operator."""
    schema = schemas.schema(name)
    assert schema is not None
    count = 2 if is_broadcasting(name) else len(schema.inputs)
    values, _ = numbers(-3, -1, 0, 0.5, 1, 2)
    return tuple(np.roll(values, 5 * i) for i in range(count))


FLOATING = [name for name in ELEMENTWISE if name not in ("IsInf", "IsNaN", "Where")]


@pytest.mark.parametrize("name", FLOATING)
def test_only_what_has_poles_makes_infinities_of_ordinary_numbers(name: str) -> None:
    (found,) = results(name, *of_tensors(name))
    if found.dtype.kind == "f" and np.isinf(found).any():
        assert OPERATORS[name].has_poles


@pytest.mark.parametrize(
    "name", [name for name in FLOATING if OPERATORS[name].magnitude_effect is MagnitudeEffect.BOUNDED]
)
def test_what_is_bounded_is_finite_whatever_it_reads(name: str) -> None:
    (found,) = results(name, np.array([-np.inf, np.inf, 3e38, -3e38, 0]))
    assert not np.isinf(found).any()


KEPT: dict[str, tuple[Array, ...]] = {
    "Transpose": (), "Flatten": (), "Identity": (), "Squeeze": (),
    "Reshape": (np.array([-1]),), "Unsqueeze": (np.array([0]),), "Gather": (np.array([1, 0]),),
    "Expand": (np.array([2, 1, 1]),), "Tile": (np.array([1, 2]),), "Slice": (np.array([0]), np.array([1])),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_what_is_kept_are_elements_of_the_first_input(name: str) -> None:
    data = np.arange(6, dtype=np.float32).reshape(2, 3)
    (found,) = (
        evaluate_node(Node(name, (), ("y",), (None,), {}, version=schemas.newest_version(name)), [data, *KEPT[name]])
        or ()
    )
    assert OPERATORS[name].selects_elements and np.isin(found, data).all()
    assert OPERATORS[name].is_view == np.array_equal(found.ravel(), data.ravel())


# -- operators that are declared by a term -----------------------------------------------------------------------------

own = Operators("tests.classes")
x, y, k = tensor("x"), tensor("y"), real("k")
f, g = pointwise("f"), binary("g")
first, second, sizes = integers("first"), integers("second"), integers("sizes")

MEET = Rule(
    "own_transposes_meet",
    op.Transpose(f(op.Transpose(x, perm=first)), perm=second),
    f(op.Transpose(x, perm=fn.compose(first, second))),
)
NEEDLESS = Rule(
    "own_expand_needlessly",
    g(op.Expand(x, sizes), y),
    g(x, y),
    when=fn.eq(fn.broadcast(fn.shape(x), fn.shape(y)), fn.broadcast(sizes, fn.shape(y))),
)

define(own.Gated(x, k=k), x * op.Sigmoid(k * x), k=1.0)
define(own.Twice(x), own.Gated(own.Gated(x, k=2.0), k=1.0))
define(own.Between(x, y), (x + y) / 2)


def graph(body: str, made: str = "float[2, 3] z", given: str = "float[2, 3] x") -> Graph:
    opsets = '["" : 21, "tests.classes" : 1, "com.microsoft" : 1]'
    text = f"<ir_version: 10, opset_import: {opsets}> m ({given}) => ({made}) {{ {body} }}"
    loaded = onnx_io.load_model(parser.parse_model(text)).graph
    inference.infer_graph(loaded)
    return loaded


def rewritten(rule: Rule, given: Graph) -> Counter[str] | None:
    """The operators after the rule was applied once, None where it does not match."""
    match = next(find_matches(rule, given), None)
    if match is None:
        return None
    given.apply(build_patch(given, match))
    given.check_invariants()
    return Counter(given.operator_counts())


def around(body: str) -> Graph:
    """Something between two transpositions that undo each other."""
    return graph(f"a = Transpose <perm = [1, 0]> (x) {body} z = Transpose <perm = [1, 0]> (b)")


MEMBERS = {
    "a function of each element": "b = tests.classes.Gated (a)",
    "with an attribute": "b = tests.classes.Gated <k = 1.5> (a)",
    "made of one that is declared": "b = tests.classes.Twice (a)",
    "of two, beside a number": "c = Constant <value = float {2.0}> () b = tests.classes.Between (c, a)",
}


@pytest.mark.parametrize("what", MEMBERS)
def test_a_declared_operator_is_a_member_by_what_it_means(what: str) -> None:
    found = rewritten(MEET, around(MEMBERS[what]))
    assert found is not None and found["Transpose"] == 1


def test_a_declared_operator_of_two_tensors_broadcasts_them() -> None:
    text = "s = Constant <value = int64[2] {2, 3}> () a = Expand (x, s) z = tests.classes.Between (a, y)"
    assert rewritten(NEEDLESS, graph(text, given="float[1] x, float[2, 3] y")) == {"tests.classes.Between": 1}


NO_MEMBERS: dict[str, Callable[[], object]] = {
    "Spread": lambda: define(own.Spread(x), op.Softmax(x)),
    "Summed": lambda: define(own.Summed(x), op.ReduceSum(x, -1) * x),
    "Turned": lambda: define(own.Turned(x), op.Relu(op.Transpose(x, perm=(1, 0)))),
    "Squared": lambda: define(own.Squared(x), x @ x),
    "Named": lambda: define(own.Named(tensor("x", "A B")), tensor("x", "A B") * 2.0),
    "Sized": lambda: define(own.Sized(x), x * fn.rank(x)),
    "Ranked": lambda: define(own.Ranked(x), op.Relu(x), when=fn.eq(fn.rank(x), 2)),
    "Wide": lambda: define(own.Wide(x), op.Relu(x), when=fn.eq(fn.item(fn.shape(x), 0), 3)),
    "Joined": lambda: define(own.Joined(x), op.Concat(x, x, axis=0)),
    "Reached": lambda: (NO_MEMBERS["Spread"](), define(own.Reached(x), own.Spread(x) + 1.0)),
    "Placed": lambda: define(own.Placed(x), op.Add(x, op.CumSum(x, 0))),
    "Kept": lambda: define(own.Kept(x), op.Mul(x, op.Shape(x))),
}
"""Operators that are none of a class: what is made of one element hangs on others, or on where it is."""


@pytest.mark.parametrize("name", NO_MEMBERS)
def test_what_is_declared_otherwise_is_no_member(name: str) -> None:
    NO_MEMBERS[name]()
    assert rewritten(MEET, around(f"b = tests.classes.{name} (a)")) is None


RELIEVED = Rule("own_without_two_negations", f(op.Neg(op.Neg(x))), f(x))


def is_allowed(body: str, *, exact: bool = False) -> bool:
    given = graph(f"n = Neg (x) a = Neg (n) {body} z = Flatten (b)")
    return Gate(exact=exact).allows(Site.from_match(given, next(find_matches(RELIEVED, given))))


def test_of_a_kernel_of_which_nothing_is_known_bits_are_not_promised() -> None:
    assert is_allowed("b = tests.classes.Gated (a)")
    assert not is_allowed("b = tests.classes.Gated (a)", exact=True)
    assert is_allowed("b = Relu (a)", exact=True)


def test_an_operator_whose_kernel_is_not_what_is_declared_is_believed_no_member(forget: Callable[[str], None]) -> None:
    forget("FastGelu")
    microsoft = Operators("com.microsoft")
    define(microsoft.FastGelu(y), y * op.Sigmoid(y))
    assert not is_allowed("b = com.microsoft.FastGelu (a)")

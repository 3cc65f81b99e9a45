"""The instances of a rule: every rank and every choice of an attribute up to a bound, all sizes symbolic.

Evaluating the left side asks for what a rule leaves open (a rank, an axis, a mode); each answer is one path, and all
paths are walked. What can be a symbol stays one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from math import isinf
from typing import Any

from graphopt.base.integers import (
    FALSE,
    TRUE,
    Fact,
    Formula,
    Size,
    choice,
    disj,
    eq,
    fresh,
    ge,
    le,
    negate,
    product,
    symbol,
)
from graphopt.base.notes import Noted, noting
from graphopt.base.symbolic import ZERO, Index, Piece, Read, Value, call, fold, guarded, integer, lift, number
from graphopt.base.tensors import Tensor, as_size, boolean
from graphopt.base.types import DType
from graphopt.language.rule import Rule
from graphopt.language.scalar import FACTS, FUNCTIONS, LONGEST, PROPERTIES, PYTHON, Misused, Unknown, apply
from graphopt.language.term import (
    SCALAR,
    App,
    Lit,
    Term,
    Var,
    constants_of,
    is_scalar,
    position_of,
    said_axes,
    tells_contents,
)
from graphopt.operators.classes import is_quantized
from graphopt.operators.node import MAX_RANK, Undefined, Unsupported, as_tensor, real
from graphopt.operators.semantics import denote
from graphopt.operators.views import unflattened
from graphopt.verifier import dtypes
from graphopt.verifier.choices import Choices, flat
from graphopt.verifier.contents import Listed, Told, looked_up, of_lists, told
from graphopt.verifier.context import Context, context
from graphopt.verifier.dtypes import Mistyped, Typing
from graphopt.verifier.logic import LOGIC, is_real, truth_value
from graphopt.verifier.meant import Meant
from graphopt.verifier.said import (
    ROUNDING,
    as_said,
    asks,
    compares_rounded,
    is_plain,
    properties_of,
    speaks_of_longest,
    unfulfilled,
)
from graphopt.verifier.solver import Effort


@dataclass(frozen=True)
class Elements:
    """The elements of a tensor, with what has to be true of each for an operator to be defined."""

    of: Tensor
    below: Size | None
    """Each is an index of so many elements; None: each is a divisor, not 0."""
    reason: str
    from_end: bool = True
    """Indices may be negative, and are then counted from the end."""


@dataclass
class Instance:
    """One rule at one path: what is bound, what is assumed, and what has to be shown."""

    rule: Rule
    exact: bool
    choices: Choices
    effort: Effort
    typing: Typing
    max_rank: int = MAX_RANK
    extended: bool = False
    """Whether values may be infinite."""
    sizes: dict[str, Size] = field(default_factory=dict)
    packs: dict[str, tuple[Size, ...]] = field(default_factory=dict)
    holes: dict[str, Any] = field(default_factory=dict)
    facts: list[Formula] = field(default_factory=list)
    demands: list[tuple[Formula, str]] = field(default_factory=list)
    known_elements: list[Elements] = field(default_factory=list)
    """What the left side says of elements, being defined."""
    wanted_elements: list[Elements] = field(default_factory=list)
    """What the right side asks of them."""
    typings: Sequence[Typing] = ()
    """All choices of element types, of which `typing` is one."""
    properties: Mapping[str, frozenset[str]] = field(default_factory=dict)
    is_bounded: bool = False
    """Whether the rule needs to know how large a size may be."""
    assuming: bool = True
    unmet: str = ""
    """Why the left side does not occur, where it does not."""
    tensors: dict[Term, tuple[Tensor, ...]] = field(default_factory=dict)
    answers: dict[tuple[Size, Size], Size] = field(default_factory=dict)
    """The sizes that a Reshape of the left side gives, by what is asked for and the number of elements."""
    integers: dict[Value, Size] = field(default_factory=dict)
    """The elements of tensors that are sizes or places, as unknown integers."""
    ignored: set[tuple[str, str, Any]] = field(default_factory=set)
    """The attributes of the left side that say how to compute, by operator and name, with their values."""
    along: dict[str, int] = field(default_factory=dict)
    """Of the tensors that stand for any number of them, along which axis these are joined."""
    absences: dict[str, bool] = field(default_factory=dict)
    """Of the constants with a default, whether they are optional inputs that are absent."""
    built: tuple[set[Noted], set[Noted]] = field(default_factory=lambda: (set(), set()))
    """What has no value everywhere and was computed for the tensors of each side, before any element was asked for."""
    scalars: dict[Term, Any] = field(default_factory=dict)
    """What was computed of the numbers of the rule."""
    settled: Context | None = None
    """What is known when elements are compared."""
    plainly: bool = False
    """Whether sizes are taken for equal only where that is plain."""
    compared: bool = False
    """Whether it was asked of sizes that are not plainly equal."""

    def __post_init__(self) -> None:  # denotations ask for them: constants that are all ones say how much to enlarge
        self.properties = properties_of(self.rule)
        self.is_bounded = speaks_of_longest(self.rule)

    @property
    def known(self) -> Context:
        return context(self.facts, self.effort)

    def simplified(self, shape: Iterable[Size]) -> tuple[Size, ...]:
        """Sizes by what is known when elements are compared."""
        return tuple(shape) if self.settled is None else tuple(map(self.settled.simplify, shape))

    def same(self, one: Size, other: Size) -> bool:
        """Return whether two sizes are known to be equal."""
        if one == other or self.settled is None or self.plainly:
            self.compared = self.compared or one != other
            return one == other
        return self.settled.proves(eq(one, other))

    def require(self, condition: Formula, reason: str) -> None:
        """Take what has to hold for an operator to be defined: assumed on the left side, to be shown on the right."""
        if condition == FALSE:
            raise Undefined(reason)
        if self.assuming:
            self.facts.append(condition)
        elif condition != TRUE:
            self.demands.append((condition, reason))

    def require_elements(self, elements: Elements) -> None:
        """As `require`, of elements of which nothing is known but where they come from."""
        (self.known_elements if self.assuming else self.wanted_elements).append(elements)

    # -- holes

    def size(self, axis: str) -> Size:
        """Return the size of a named axis."""
        if axis.isdigit():
            return int(axis)
        if axis == "_":
            return self._new_size("_")
        if axis not in self.sizes:
            self.sizes[axis] = symbol(axis)
            self._assume_size(self.sizes[axis])
        return self.sizes[axis]

    def _new_size(self, name: str) -> Size:
        size = fresh(name)
        self._assume_size(size)
        return size

    def _assume_size(self, size: Size) -> None:
        """Sizes are 64-bit integers; a rule that speaks of no number so large need not know."""
        self.facts.append(ge(size))
        if self.is_bounded:
            self.facts.append(le(size, LONGEST))

    def shape(self, axes: Iterable[str]) -> tuple[Size, ...]:
        """Return the sizes of axes, packs included."""
        axes = tuple(axes)
        shape: list[Size] = []
        for axis in axes:
            if "*" in axis:
                pack = self.pack(axis.partition("*")[2], len(axes) - 1)
                shape += [1] * len(pack) if axis.startswith("1*") else pack
            else:
                shape.append(self.size(axis))
        return tuple(shape)

    def pack(self, name: str, others: int) -> tuple[Size, ...]:
        if name not in self.packs:
            most = max(min(2, self.max_rank), self.max_rank - others)
            length = self.choices.choose(f"pack {name}", range(most + 1))
            self.packs[name] = tuple(self._new_size(f"{name}{i}") for i in range(length))
        return self.packs[name]

    def is_absent(self, var: Var) -> bool:
        """Return whether a hole is an optional input that is absent: both are tried where it has a default."""
        if var.default is None:
            return False
        if var.name not in self.absences:
            self.absences[var.name] = self.choices.choose(f"absent {var.name}", (False, True))
        return self.absences[var.name]

    def assume_absences(self) -> None:
        """Assume that what is absent has a shape that other holes say: without one the left side does not match."""
        present = [hole for hole in self.rule.holes.values() if not self.absences.get(hole.name)]
        said = {axis.removeprefix("1") for hole in present for axis in hole.axes or ()} - {"_"}
        for name, absent in self.absences.items():
            if absent and not all(axis.removeprefix("1") in said or axis.isdigit() for axis in self.axes_of(name)):
                raise Undefined(f"nothing says the shape of {name}, which is absent")

    def axes_of(self, name: str) -> tuple[str, ...]:
        """Return the axes that a hole declares; without any it matches no input that is absent."""
        axes = self.rule.holes[name].axes
        return ("_",) if axes is None else axes

    def hole(self, var: Var) -> Tensor:
        """Return the tensor that a hole stands for: a function of indices of which nothing is known, or its default."""
        if self.is_absent(var) and self.assuming:
            raise Undefined(f"{var.name} is absent")
        if var.name not in self.holes:
            if var.axes is not None:
                shape = self.shape(var.axes)
            else:
                rank = self.choices.choose(f"rank {var.name}", range(self.max_rank + 1))
                shape = tuple(self._new_size(f"{var.name}{i}") for i in range(rank))
            dtype = self.typing.types.get(var.name, DType.FLOAT)
            counts = self.rule.counting.get(var.name)
            at = self._reader(var.name, dtype) if counts is None else self._counting(counts, shape)
            if self.is_absent(var):
                at = partial(_constant, real(self._written(var.default)))
            self.holes[var.name] = Tensor(shape, at, dtype, dtype)
        found: Tensor = self.holes[var.name]
        return found

    def _reader(self, name: str, dtype: DType) -> Callable[[Index], Value]:
        """Return the element at an index: a number where the conditions say that all elements are that number."""
        told_ = list(self._told_of(name))

        def at(index: Index) -> Value:
            properties = self.properties.get(name, ())
            if "is_zero" in properties or "is_one" in properties:
                return number(0 if "is_zero" in properties else 1)
            inside, own = looked_up(index, told_)
            read = guarded(inside, lift(Read(name, own)))
            if dtype is DType.BOOL:
                return boolean(Fact(read, True))
            if not (self.exact and is_quantized(self.rule)):
                return read
            if "is_scale" in properties:
                return call("Scale", read)
            return call("OfType", read, params=(dtype,)) if dtype.is_integer else read

        return at

    def _told_of(self, name: str) -> Iterator[Told]:
        """Yield what is told of a constant: over the reals only.

        What is multiplied with zeros may be infinite, and zeros may have a sign.
        """
        said = ((app, hole) for app in self.rule.contents for hole in constants_of(app) if hole.name == name)
        for app, hole in () if self.exact or self.extended else said:
            axes = said_axes(app)
            yield told(app, self.shape(axes))._replace(axes=[position_of(axis, hole.axes or ()) for axis in axes])

    def _counting(self, counts: App, shape: tuple[Size, ...]) -> Callable[[Index], Value]:
        """Return the element at an index of a tensor that counts."""

        def at(index: Index) -> Value:
            if len(counts.args) == 1:
                return integer(unflattened(self.same, index, shape, (product(shape),))[0])
            place = unflattened(self.same, index[:-1], shape[:-1], self.scalar(counts.operands[1]))
            return integer(place[LOGIC.known(index[-1])])

        return at

    def open_hole(self, part: Term | None) -> Var | None:
        """Return the hole for a number that a term is, where nothing is bound to it yet."""
        if isinstance(part, Var) and part.kind not in ("tensor", "const") and part.name not in self.holes:
            return part
        return None

    def bind(self, name: str, value: Any) -> None:
        """Binds a hole for numbers, and assumes the conditions that can be told by now: fewer paths are left."""
        for condition in self.rule.conditions:
            match condition:
                case App("eq", (Var(name=other), Lit() | App() as said)) if other == name and self._can_tell(said):
                    with suppress(Unsupported):
                        value = as_said(value, self.scalar(said))
        self.holes[name] = value
        for condition in self.rule.conditions:
            if name in asks(condition)[0] and self._can_tell(condition):
                with suppress(Unsupported):  # as of lists that an operator is still to refuse; asked again in the end
                    self.require(truth_value(self.scalar(condition)), unfulfilled(condition))

    def _can_tell(self, part: Term) -> bool:
        """Return whether all that a scalar term speaks of is bound."""
        names, packs = asks(part)
        return names <= self.holes.keys() and packs <= self.packs.keys()

    def admits(self, name: str, value: Any) -> bool:
        """Return whether the conditions that can be told once a hole is bound to a value do not refuse it."""
        self.holes[name] = value
        told = (c for c in self.rule.conditions if is_plain(c) and self._can_tell(c))
        facts, scalars = len(self.facts), self.scalars
        self.scalars = dict(scalars)
        try:
            return not any(truth_value(self.scalar(condition)) == FALSE for condition in told)
        except Unsupported:  # as of lists that an operator is still to refuse
            return True
        except Undefined:
            return False
        finally:
            del self.holes[name], self.facts[facts:]
            self.scalars = scalars

    # -- scalar terms

    def scalar(self, part: Term) -> Any:
        """Return the value of an attribute or condition: an int, an Int, a Value, a text, a formula or a tuple of
        them."""
        match part:
            case Lit(value=value):
                return self._written(value)
            case Var(name=name):
                if name not in self.holes:
                    self.holes[name] = self._first_computed(part)
                return self.holes[name]
            case App(domain=domain) if domain == SCALAR:
                if part not in self.scalars:
                    self.scalars[part] = self._apply(part)
                return self.scalars[part]
        raise Unsupported(f"{part} is no number")

    def _first_computed(self, hole: Var) -> Any:
        """Return what stands for a hole that the meaning of an operator computes with: no operator asks for it as it
        is."""
        if not (self.assuming and isinstance(self.rule, Meant)):
            raise Unsupported(f"{hole.name} is used before it is bound")
        return self._open_number(hole)

    def _written(self, value: Any) -> Any:
        """Return a number that the rule writes: the real model is of real numbers."""
        if not self.exact and isinstance(value, float) and isinf(value):
            raise Unsupported(f"real arithmetic with {value}")
        return value

    def _apply(self, app: App) -> Any:
        if app.op in PROPERTIES:
            return self._assumed(app)
        if app.op in FACTS:
            return self._fact(app)
        args = [self.scalar(arg) for arg in app.operands]
        if any(isinstance(arg, Listed) for arg in args):
            return of_lists(app.op, args)
        found = self._of_reals(app, args)
        if found is not None:
            return found
        if app.op in ("floordiv", "mod"):
            self._divisor(args[1], app)
        if app.op == "broadcast":
            return self._broadcast(*args)
        if app.op == "choose" and isinstance(args[1], tuple):
            return self._chosen(*args)
        try:
            return apply(app.op, LOGIC, *args)
        except Misused as error:
            raise Unsupported(str(error)) from error
        except Unknown as error:  # nor does it match
            raise Undefined(f"{app.op}: {error}") from error

    def _fact(self, app: App) -> Any:
        """Return what a hole or an axis is bound to says."""
        match app:
            case App() if tells_contents(app):
                said = told(app, self.shape(said_axes(app)))
                self.facts += said.of.facts
                return said.value
            case App(op="size" | "sizes", args=(Lit(value=axes),)):
                shape = self.shape(str(axes).split())
                return shape[0] if app.op == "size" else shape
            case App(op="shape" | "rank" | "dtype", args=(of,)) if of is not None:
                tensor = self.tensor(of)
                return {"shape": tensor.shape, "rank": tensor.rank, "dtype": tensor.dtype}[app.op]
        raise Unsupported(f"{app}, of which nothing is known here")

    def _of_reals(self, app: App, args: Sequence[Any]) -> Value | None:
        """Return what a scalar function gives of real numbers, None where it is not about them.

        In the exact model nothing is known of what it rounds: a rule computes in double precision when it is applied.
        """
        name = app.op
        if name not in ("truediv", "sqrt") and not any(is_real(arg) for arg in chain.from_iterable(map(flat, args))):
            return None
        if compares_rounded(app):
            raise Unsupported(f"{app}, which compares what is rounded when the rule is applied")
        if self.exact and name in ROUNDING:
            return call(f"{name}~", *map(real, args))
        with noting():  # nothing: where it has no value, the rule does not match
            return _REAL_FUNCTIONS[name](*map(real, args)) if name in _REAL_FUNCTIONS else None

    def _assumed(self, app: App) -> Formula:
        """Return a property that the conditions say is assumed of the elements of its constant: no formula about
        sizes."""
        of = app.operands[0]
        if not isinstance(of, Var) or app not in self.rule.asserted:
            raise Unsupported(f"{app}, which no condition says")
        if self.is_absent(of):
            return truth_value(PROPERTIES[app.op](PYTHON, of.default))
        return TRUE

    def _broadcast(self, left: Sequence[Size], right: Sequence[Size]) -> tuple[Size, ...]:
        """Return the shape that two shapes broadcast to; where they do not fit some other one, for it means nothing
        there."""
        found = FUNCTIONS["broadcast"](LOGIC, left, right)
        padded = ((1,) * (len(found) - len(shape)) + tuple(shape) for shape in (left, right))
        return tuple(
            choice(disj(eq(a, 1), eq(b, 1), eq(a, b)), size, fresh("unfit"))
            for a, b, size in zip(*padded, found, strict=True)
        )

    def _divisor(self, divisors: Any, app: App) -> None:
        for divisor in flat(divisors):
            if is_real(divisor):
                raise Unsupported(f"{app}: {app.op} is of whole numbers, `truediv` is of others")
            self.require(negate(eq(divisor)), "division by zero")

    def _chosen(self, condition: Any, then: Any, otherwise: Any) -> Any:
        if len(then) != len(otherwise):
            return LOGIC.choose(condition, then, otherwise)
        return tuple(LOGIC.choose(condition, a, b) for a, b in zip(then, otherwise, strict=True))

    def assume_conditions(self) -> None:
        """Make facts of the conditions of the rule."""
        for condition in self.rule.conditions:
            self.require(truth_value(self.scalar(condition)), unfulfilled(condition))

    # -- terms

    def tensor(self, part: Term) -> Tensor:
        """Return the tensor that a term denotes."""
        if isinstance(part, App) and part.domain != SCALAR:
            return self.outputs(part)[part.output]
        if isinstance(part, Var) and part.kind in ("tensor", "const"):
            return self.hole(part)
        if self.open_hole(part):
            assert isinstance(part, Var)
            self.holes[part.name] = self._open_number(part)
        found = self.scalar(part)
        return found.tensor if isinstance(found, Listed) else as_tensor(found)

    def _open_number(self, var: Var) -> Any:
        if var.kind == "integer":
            return fresh(var.name)
        if var.kind == "real":
            return lift(Read(var.name, ()))
        raise Unsupported(f"how long {var.name} is")

    def outputs(self, app: App) -> tuple[Tensor, ...]:
        """Return the outputs of an operator."""
        node = app.node
        if node not in self.tensors:
            from graphopt.verifier.node import RuleNode

            self.tensors[node] = self._typed(node, denote(RuleNode(self, node)))
            for size in chain.from_iterable(t.shape for t in self.tensors[node] if self.assuming):
                if self.is_bounded:
                    self.facts.append(le(size, LONGEST))
        return self.tensors[node]

    def _typed(self, app: App, found: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the outputs with their element types."""
        if len(found) < app.outputs:
            raise Unsupported(f"{app.op} with {app.outputs} outputs")
        try:
            types = self._types(app)
        except Mistyped as error:
            raise Undefined(str(error)) from error
        return tuple(tensor.typed(dtype) for tensor, dtype in zip(found, types, strict=False))

    def _types(self, app: App) -> tuple[DType, ...]:
        """Return the element types of the outputs of an operator."""
        if not self.assuming and app in self.typing.written:
            return self.typing.written[app]
        to = self.typing.target(app) if dtypes.is_told(app) else None
        inputs = [None if a is None or is_scalar(a) or self._lacks(a) else self.tensor(a).dtype for a in app.inputs]
        return dtypes.outputs_of(app, tuple(inputs), to)

    def _lacks(self, part: Term) -> bool:
        return self.assuming and isinstance(part, Var) and self.is_absent(part)

    def whole_number(self, element: Value) -> Size:
        """Return the element of a tensor of integers as an integer: one that is made of sizes, or some unknown one."""
        size = as_size(element)
        if size is not None:
            return size
        if element not in self.integers:
            self.integers[element] = fresh("element")
        return self.integers[element]

    def break_cycles(self) -> None:
        """Forget the elements of tensors, which refer to the instance, so that all is freed with it: collecting the
        garbage of cycles took a seventh of the time of proofs."""
        self.tensors.clear()
        self.known_elements.clear()
        self.wanted_elements.clear()
        nothing = partial(_constant, ZERO)
        for name, hole in self.holes.items():
            if isinstance(hole, Tensor):
                self.holes[name] = Tensor(hole.shape, nothing, hole.dtype)

    def hole_tensors(self) -> list[Tensor]:
        return [value for value in self.holes.values() if isinstance(value, Tensor)]


_REAL_FUNCTIONS: Mapping[str, Callable[..., Value]] = {
    "truediv": lambda a, b: a / b,
    "sqrt": lambda a: call("Sqrt", a),
    "maximum": lambda a, b: fold("max", [Piece((), TRUE, a), Piece((), TRUE, b)]),
    "minimum": lambda a, b: fold("min", [Piece((), TRUE, a), Piece((), TRUE, b)]),
}
"""The scalar functions on real numbers; the others compute with operators that values have too."""


def _constant(value: Value, _: Index) -> Value:
    """Return the element of a tensor that has the same one everywhere."""
    return value

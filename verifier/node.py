"""What a denotation is given: an operator with its inputs and attributes, as one instance has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import chain
from typing import Any, TypeAlias

from graphopt.base.types import DType
from graphopt.ir import ops
from graphopt.language.term import App, Term, Var, applications, is_scalar, walk
from graphopt.verifier.choices import OneOf, Symbols, Undefined, Unsupported
from graphopt.verifier.dtypes import Typing
from graphopt.verifier.extended import ARITHMETIC
from graphopt.verifier.instances import Elements, Instance, real
from graphopt.verifier.integers import Formula, Int, Size, eq, fresh, ge
from graphopt.verifier.symbolic import Index, Read, Tensor, Value, lift

Shape: TypeAlias = "tuple[Size, ...]"
Body: TypeAlias = "Callable[[Index], Value]"
Reduction: TypeAlias = "Callable[[Shape, Body], Value]"
Denotation: TypeAlias = "Callable[[Node], Tensor | tuple[Tensor, ...]]"


@dataclass(frozen=True)
class Node:
    """What a denotation sees of an operator: inputs, attributes, and where to say what it requires."""

    instance: Instance
    app: App
    used: dict[str, Any] = field(default_factory=dict)
    read: set[int] = field(default_factory=set)
    """The inputs of which the denotation read the numbers, which `used` then tells apart."""
    asked: set[str | int] = field(default_factory=set)
    """The attributes, by name, and the inputs, by position, that the denotation asked for."""

    def unasked(self) -> str | None:
        """An attribute or input that the operator has, or that a hole for the others may hold, and no one asked for."""
        named, schema = dict(self.app.attrs), ops.schema(self.op)
        hidden = schema.attributes if schema is not None and self.app.bundle is not None else ()
        names = (name for name in (*named, *hidden) if name not in self.asked and not self._is_elsewhere(name))
        inputs = (i for i in range(self.count) if self.has(i) and i not in self.asked)
        return next(chain(names, (f"input {i}" for i in inputs)), None)

    def _is_elsewhere(self, name: str) -> bool:
        """An attribute that cannot be in the hole for the others, for it is named beside it."""
        return name not in dict(self.app.attrs) and self._is_named_elsewhere(name)

    @property
    def op(self) -> str:
        return self.app.op

    def require(self, condition: Formula, reason: str) -> None:
        self.instance.require(condition, f"{self.op}: {reason}")

    def require_indices(self, indices: Tensor, size: Size, *, from_end: bool = True) -> None:
        """Each element is an index of so many elements, negative ones counted from the end or refused."""
        self.instance.require_elements(Elements(indices, size, f"{self.op}: an index is out of range", from_end))

    def require_divisors(self, divisors: Tensor) -> None:
        """No element is 0 where the operator computes in integers, which EXACT licenses."""
        if self.instance.exact and any(self._is_of_integers(typing) for typing in self.instance.typings):
            self.instance.require_elements(Elements(divisors, None, f"{self.op}: division of integers by 0"))

    def _is_of_integers(self, typing: Typing) -> bool:
        types = [typing.of(arg) for arg in self.app.operands if not is_scalar(arg)]
        return any(dtype is not None and dtype.is_integer for dtype in types)

    @property
    def folded(self) -> bool:
        """On the right side an operator on constants is computed when the rule is applied, in double precision."""
        return not self.instance.assuming and self._is_constant

    @property
    def _is_constant(self) -> bool:
        return not any(isinstance(part, Var) and part.kind == "tensor" for part in walk(self.app))

    @property
    def dtype(self) -> DType:
        """The element type that the operator computes in."""
        found = [self.input(i).dtype for i in range(self.count) if self.has(i) and not self.is_number(i)]
        return next((d for d in found if d is not DType.UNDEFINED), DType.UNDEFINED)

    @property
    def is_exact(self) -> bool:
        """Whether arithmetic is only what it is called: in the exact model, and on what is no float.

        With infinities so is all that is not arithmetic, but on constants, which are finite.
        """
        dtype = self.dtype
        if self.instance.exact or not (dtype.is_float or dtype is DType.UNDEFINED):
            return True
        return self.instance.extended and self.op not in ARITHMETIC and not self._is_constant

    # inputs

    @property
    def count(self) -> int:
        return len(self.app.inputs)

    def has(self, position: int) -> bool:
        """Whether there is such an input. A hole that is absent is so wherever an operator takes it as it is."""
        part = self.app.inputs[position] if position < self.count else None
        if isinstance(part, Var) and part.default is not None and ops.is_optional(self.op, self.app.domain, position):
            return not self.instance.is_absent(part)
        return part is not None

    def input(self, position: int) -> Tensor:
        self.asked.add(position)
        part = self.app.inputs[position] if self.has(position) else None
        if part is None:
            raise Undefined(f"{self.op} needs input {position}")
        return self.instance.tensor(part)

    def optional(self, position: int) -> Tensor | None:
        return self.input(position) if self.has(position) else None

    def is_number(self, position: int) -> bool:
        """The input is a number or a list of the rule, not a tensor."""
        part = self.app.inputs[position] if self.has(position) else None
        return part is not None and is_scalar(part)

    # attributes

    def _term(self, name: str) -> Term | None:
        self.asked.add(name)
        return dict(self.app.attrs).get(name)

    def attribute(self, name: str, propose: Callable[[], Any], default: Any = None) -> Any:
        """The value of an attribute; what an open hole may stand for is proposed, once.

        `default` is for attributes of which the schema says none.
        """
        part = self._term(name)
        if part is None and self.app.bundle is not None and not self._is_named_elsewhere(name):
            part = Var(f"{self.app.bundle.name}.{name}", "string")
        schema_default = _schema_default(self.op, name)
        usual = default if schema_default is None else schema_default
        value = usual if part is None else self._value(part, propose, usual)
        self.used[name] = value
        return value

    def _is_named_elsewhere(self, name: str) -> bool:
        """The left side names the attribute beside this hole for the others, which then does not hold it."""
        sides = (app for side in self.instance.rule.left for app in applications(side))
        return any(app.bundle == self.app.bundle and name in dict(app.attrs) for app in sides)

    def numbers(self, position: int, propose: Callable[[], Any]) -> Any:
        """The value of an input that is a number or a list of them, in the rule or when it runs."""
        self.asked.add(position)
        part = self.app.inputs[position]
        assert part is not None
        found = self._value(part, propose) if is_scalar(part) else self._elements(part)
        value = self._whole(found, f"input {position}")
        self.used[f"input{position}"] = value
        self.read.add(position)
        return value

    def _elements(self, part: Term) -> Any:
        """The elements of a scalar or vector of integers, each an unknown number."""
        tensor = self.instance.tensor(part)
        if tensor.dtype.is_float:
            raise Unsupported(f"{self.op} by numbers that may not be whole")
        if tensor.rank > 1:
            raise Undefined(f"{self.op} of a list with {tensor.rank} axes")
        if not tensor.rank:
            return self.instance.whole_number(tensor.at(()))
        return tuple(self.instance.whole_number(tensor.at((i,))) for i in range(self._length(part, tensor.shape[0])))

    def _length(self, part: Term, size: Size) -> int:
        """How many elements a vector has. Each number is tried of a hole, as of the lists that a rule writes."""
        length = self.instance.known.simplify(size)
        if isinstance(length, Int) and isinstance(part, Var) and self.instance.assuming:
            length = self.instance.choices.choose(f"elements {part.name}", range(self.instance.max_rank + 1))
            self.require(eq(size, length), f"{part.name} has another length")
        if not isinstance(length, int):
            raise Unsupported(f"{self.op} of a list whose length is not known")
        return length

    def list(self, position: int, propose: Callable[[], Any]) -> tuple[Size, ...]:
        """The value of an input that is a list: on the left a single number is as good as a list of one."""
        value = self.numbers(position, propose)
        if not isinstance(value, tuple) and not (self.instance.assuming and self.is_number(position)):
            raise Undefined(f"{self.op}: input {position} is a list, not the number {value}")
        return value if isinstance(value, tuple) else (value,)

    def _whole(self, value: Any, name: str) -> Any:
        """A whole number or a list of them; what is computed as a real number may lie between."""
        if not all(isinstance(item, int | Int) for item in (value if isinstance(value, tuple) else (value,))):
            raise Unsupported(f"{self.op} whose {name} is not known to be whole")
        return value

    def _value(self, part: Term, propose: Callable[[], Any], usual: Any = None) -> Any:
        hole = self.instance.open_hole(part)
        if hole is not None:
            if not self.instance.assuming:
                raise Unsupported(f"{hole.name} is open on the right side")
            self.instance.bind(hole.name, self._chosen(hole, propose(), usual))
        return self.instance.scalar(part)

    def _chosen(self, hole: Var, proposed: Any, usual: Any) -> Any:
        """What stands for a hole on this path; a hole for one number is no list, where an operator takes either."""
        choices, single = self.instance.choices, hole.kind == "integer"
        match proposed:
            case OneOf(options):
                if single:
                    options = [number for option in options for number in _single(option)]
                admitted = partial(self.instance.admits, hole.name)
                return choices.choose(f"value {hole.name}", options, admitted, usual)
            case Symbols(name, _) if single:
                return fresh(name)
            case Symbols(name, lengths):
                length = choices.choose(f"length {hole.name}", lengths)
                return tuple(fresh(name) for _ in range(length))
            case tuple() if single:
                if len(proposed) != 1:
                    raise Undefined(f"{self.op}: {hole.name} is one number")
                return proposed[0]
        return proposed

    def integer(self, name: str, least: int | None = None, default: int | None = None) -> Size:
        """An integer that stays a symbol."""
        value: Size = self._whole(self.attribute(name, lambda: fresh(name), default), name)
        if least is not None:
            self.require(ge(value, least), f"{name} is at least {least}")
        return value

    def some_size(self, key: Value) -> Size:
        """A size that the elements of tensors say: the same where they do, and one that the left side has."""
        if not self.instance.assuming and key not in self.instance.integers:
            raise Unsupported(f"{self.op} of a size that the left side does not have")
        size = self.instance.whole_number(key)
        self.require(ge(size), "a size is not negative")
        return size

    def natural(self, name: str) -> Size:
        """Some integer that is not negative."""
        new = fresh(name)
        self.instance.facts.append(ge(new))
        return new

    def flag(self, name: str) -> bool:
        value = self.attribute(name, lambda: OneOf((0, 1)))
        if not isinstance(value, int):
            raise Unsupported(f"{name} is a symbol")
        if value not in (0, 1):
            raise Undefined(f"{self.op}: {name} is 0 or 1")
        return bool(value)

    def text(self, name: str, options: Sequence[str]) -> str:
        value = self.attribute(name, lambda: OneOf(options))
        if value not in options:
            raise Unsupported(f"{self.op} with {name}={value}")
        return str(value)

    def target(self) -> DType:
        """The element type that a Cast is to."""
        found = self.instance.typing.target(self.app)
        self.attribute("to", lambda: int(found))
        return found

    def real(self, name: str) -> Value:
        value = self.attribute(name, lambda: self.unknown(name))
        if isinstance(value, str | tuple):
            raise Undefined(f"{self.op}: {name} is a number, not {value}")
        return real(value)

    def unknown(self, name: str) -> Value:
        """Some real number."""
        return lift(Read(f"{self.op}.{name}'{fresh(name)}", ()))

    def ignored(self, name: str) -> Any:
        """The value of an attribute that says how to compute, not what; two are the same only where that is known.

        The right side leaves it at what is usual or says what the left side says: runtimes refuse some of the others.
        """
        value = self.attribute(name, lambda: fresh(name))
        said = (self.op.removesuffix("Like"), name, value)  # a CastLike becomes a Cast that says the same
        if self.instance.assuming:
            self.instance.ignored.add(said)
        elif value != _schema_default(self.op, name) and said not in self.instance.ignored:
            raise Undefined(f"{self.op}: {name} is {value}, of which the left side says nothing")
        return value

    def not_beside(self, name: str, what: str) -> None:
        """An attribute that has no place beside something else."""
        if self._term(name) is not None:
            raise Undefined(f"{self.op}: {name} beside {what}")

    def absent(self, name: str) -> None:
        """An attribute with which the operator is not denoted."""
        if self.attribute(name, lambda: OneOf((None,))) is not None:
            raise Unsupported(f"{self.op} with {name}")

    def axis(self, name: str, rank: int) -> int:
        """An axis, counted from the start."""
        value = self.attribute(name, lambda: OneOf(range(-rank, rank)))
        return self.counted(value, rank)

    def counted(self, value: Any, rank: int) -> int:
        """An axis, counted from the start."""
        if isinstance(value, Int):
            value = self.instance.known.simplify(value)
        if not isinstance(value, int):
            raise Unsupported(f"{self.op} along an axis that is a symbol")
        if not -rank <= value < rank:
            raise Undefined(f"{self.op}: axis {value} of rank {rank}")
        return value % rank

    def axes(self, position: int, rank: int, count: int | None = None) -> tuple[int, ...]:
        """Axes that are an input: distinct, counted from the start; as many as `count` says."""
        axes = tuple(self.counted(v, rank) for v in self.list(position, lambda: OneOf(subsets(rank, count))))
        if len(set(axes)) < len(axes):
            raise Undefined(f"{self.op}: an axis twice")
        return axes

    def sizes(self, name: str, count: int, least: int) -> tuple[Size, ...]:
        """One integer for each axis of space, or two; they stay symbols. The least is also the default."""
        value = self.attribute(name, lambda: tuple(fresh(name) for _ in range(count)), (least,) * count)
        if not isinstance(value, tuple):
            raise Unsupported(f"{name} is no list")
        if len(value) != count:
            raise Undefined(f"{self.op}: {name} of {len(value)} numbers, not {count}")
        for item in self._whole(value, name):
            self.require(ge(item, least), f"{name} is at least {least}")
        return value


def _single(option: Any) -> Sequence[Any]:
    """A number as it is, that of a list of one, nothing of longer ones."""
    return (option,) if not isinstance(option, tuple) else option if len(option) == 1 else ()


@cache
def subsets(rank: int, count: int | None = None) -> list[tuple[int, ...]]:
    """Lists of (`count`) axes, counted from the start and from the end, and a few of two counted from both.

    Each set is tried in order, two axes backwards too, and three or more turned by one, which is no order backwards.
    """
    sets = [tuple(i for i in range(rank) if mask >> i & 1) for mask in range(1 << rank)]
    backwards = [axes[::-1] for axes in sets if len(axes) == 2]
    turned = [(*axes[1:], axes[0]) for axes in sets if len(axes) > 2]
    lists = sets + backwards + turned
    from_end = [tuple(i - rank for i in axes) for axes in sets + backwards if axes]
    pairs = [axes for axes in lists if len(axes) == 2]
    mixed = [(axes[0] - rank, axes[1]) for axes in dict.fromkeys(pairs[:1] + pairs[-2:])]
    mixed += [(axes[0], axes[1] - rank) for axes in pairs[:1]]
    return [axes for axes in lists + from_end + mixed if count in (None, len(axes))]


@ops.reads_schemas
def _schema_default(operator: str, name: str) -> Any:
    schema = ops.schema(operator)
    if schema is None or name not in schema.attributes:
        return None
    return ops.attribute_value(schema.attributes[name].default_value)

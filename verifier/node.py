"""An operator of a rule, with its inputs and attributes as one instance has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import chain
from typing import Any

from graphopt.base.integers import Formula, Int, Size, eq, fresh, ge
from graphopt.base.symbolic import Value
from graphopt.base.tensors import Tensor
from graphopt.base.types import DType
from graphopt.ir import ops
from graphopt.language.rule import Rule
from graphopt.language.term import App, Lit, Term, Var, applications, is_listed, is_scalar, is_whole, walk
from graphopt.operators.classes import entry
from graphopt.operators.families import Joined
from graphopt.operators.node import Node, OneOf, Shape, Symbols, Undefined, Unsupported, schema_default
from graphopt.operators.semantics import OPERATORS
from graphopt.verifier import dtypes
from graphopt.verifier.dtypes import Typing
from graphopt.verifier.instances import Elements, Instance


@dataclass(frozen=True)
class RuleNode(Node):
    """What a denotation sees of an operator of a rule."""

    instance: Instance
    app: App
    used: dict[str, Any] = field(default_factory=dict)
    read: set[int] = field(default_factory=set)
    """The inputs of which the denotation read the numbers, which `used` then tells apart."""
    asked: set[str | int] = field(default_factory=set)
    """The attributes, by name, and the inputs, by position, that the denotation asked for."""

    def unasked(self) -> str | None:
        """Return an attribute or input that the operator has, or that a hole for the others may hold, and no one asked
        for."""
        named, schema = dict(self.app.attrs), ops.schema(self.op)
        hidden = schema.attributes if schema is not None and self.app.bundle is not None else ()
        names = (name for name in (*named, *hidden) if name not in self.asked and not self._is_elsewhere(name))
        inputs = (i for i in range(self.count) if self.has(i) and i not in self.asked)
        return next(chain(names, (f"input {i}" for i in inputs)), None)

    def _is_elsewhere(self, name: str) -> bool:
        """Return whether an attribute cannot be in the hole for the others, for it is named beside it."""
        return name not in dict(self.app.attrs) and self._is_named_elsewhere(name)

    @property
    def op(self) -> str:
        return self.app.op

    @property
    def domain(self) -> str:
        return self.app.domain

    @property
    def outputs(self) -> int:
        return self.app.outputs

    @property
    def assuming(self) -> bool:
        return self.instance.assuming

    @property
    def max_rank(self) -> int:
        return self.instance.max_rank

    def simplified(self, size: Size) -> Size:
        return self.instance.known.simplify(size)

    def settled(self, shape: Shape) -> Shape:
        return self.instance.simplified(shape)

    def same(self, one: Size, other: Size) -> bool:
        return self.instance.same(one, other)

    def proves(self, condition: Formula) -> bool:
        known, plainly = self.instance.settled, self.instance.plainly
        self.instance.compared |= plainly
        return known is not None and not plainly and known.proves(condition)

    def require(self, condition: Formula, reason: str) -> None:
        self.instance.require(condition, f"{self.op}: {reason}")

    def require_indices(self, indices: Tensor, size: Size, *, from_end: bool = True) -> None:
        """Each element is an index of so many elements, negative ones counted from the end or refused."""
        self.instance.require_elements(Elements(indices, size, f"{self.op}: an index is out of range", from_end))

    def require_divisors(self, divisors: Tensor) -> None:
        """No element is 0 where the operator computes in integers, which EXACT licenses."""
        if self.instance.exact and any(self._is_of_integers(typing) for typing in self.instance.typings):
            self.instance.require_elements(Elements(divisors, None, f"{self.op}: division of integers by 0"))

    def require_some(self, truths: Tensor) -> None:
        """Each element is a truth value of which nothing is known: it holds if the left side asks for it, too."""
        self.instance.require_elements(Elements(truths, None, f"{self.op} is computed of what it may be undefined for"))

    def _is_of_integers(self, typing: Typing) -> bool:
        types = [typing.of(arg) for arg in self.app.operands if not is_scalar(arg)]
        return any(dtype is not None and dtype.is_integer for dtype in types)

    @property
    def folded(self) -> bool:
        """On the right side an operator on constants is computed when the rule is applied, in double precision."""
        return not self.instance.assuming and self._is_constant

    @property
    def _is_constant(self) -> bool:
        return _is_constant(self.app)

    @property
    def dtype(self) -> DType:
        """The element type that the operator computes in; of numbers alone, the type in which they are written."""
        found = super().dtype
        if found is not DType.UNDEFINED or not all(map(is_scalar, self.app.operands)):
            return found
        if self.op == "Range":  # the sums that it makes are those of any type
            return found
        return next(iter(self.instance.typing.written.get(self.app, ())), found)

    def _type(self, position: int) -> DType | None:
        """Return the element type of an operand. A number of the rule has, bit for bit, that in which it is written on
        the right side; on the left it matches numbers of any type that no other operand fixes."""
        part = self.app.inputs[position] if self.has(position) else None
        if part is None or not self.is_number(position) or not self.instance.exact or self._is_typed(position):
            return super()._type(position)
        others = [None if arg is None or is_scalar(arg) else self._type(i) for i, arg in enumerate(self.app.inputs)]
        written = ops.number_type(self.op, self.domain, position, others, DType.UNDEFINED, whole=is_whole(part))
        return DType.UNDEFINED if self.assuming else written

    def _is_typed(self, position: int) -> bool:
        """Return whether the operator takes one element type there, or that of another operand."""
        others = (i for i in range(self.count) if self.has(i) and not self.is_number(i))
        return not dtypes.is_free(self.app, position, others)

    @property
    def is_exact(self) -> bool:
        """Whether arithmetic is only what it is called: in the exact model, and on what is no float.

        With infinities so is all that is not arithmetic, but on constants, which are finite.
        """
        dtype = self.dtype
        if self.instance.exact or not (dtype.is_float or dtype is DType.UNDEFINED):
            return True
        return self.instance.extended and not OPERATORS[self.op].adds_products and not self._is_constant

    # inputs

    @property
    def count(self) -> int:
        return len(self.app.inputs)

    def has(self, position: int) -> bool:
        """Return whether there is such an input. A hole that is absent is so wherever an operator takes it as it is."""
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

    def is_number(self, position: int) -> bool:
        """Return whether the input is a number or a list of the rule, not a tensor."""
        part = self.app.inputs[position] if self.has(position) else None
        return part is not None and is_scalar(part) and not is_listed(part)

    # attributes

    def axis(self, name: str, rank: int) -> int:
        """Return an axis, counted from the start: for a tensor that stands for any number of them, the same
        everywhere."""
        found = super().axis(name, rank)
        rule = self.instance.rule
        for hole in (hole for arg in self.app.operands for hole in _parts(arg) if entry(self.op).joins):
            if isinstance(rule, Joined) and hole in rule.whole and self.instance.along.setdefault(hole, found) != found:
                raise Unsupported(f"what '*{hole}' stands for is joined along two axes")
        return found

    def _term(self, name: str) -> Term | None:
        self.asked.add(name)
        return dict(self.app.attrs).get(name)

    def attribute(self, name: str, propose: Callable[[], Any], default: Any = None) -> Any:
        """Return the value of an attribute; what an open hole may stand for is proposed, once.

        `default` is for attributes of which the schema says none.
        """
        part = self._term(name)
        if part is None and self.app.bundle is not None and not self._is_named_elsewhere(name):
            part = Var(f"{self.app.bundle.name}.{name}", "string")
        if part is None and ops.requires(self.op, name, self.domain):
            raise Undefined(f"{self.op} without {name}")
        said = schema_default(self.op, name, self.domain)
        usual = default if said is None else said
        value = usual if part is None else self._value(part, propose, usual)
        self.used[name] = value
        return value

    def _is_named_elsewhere(self, name: str) -> bool:
        """Return whether the left side names the attribute beside this hole for the others, which then does not hold
        it."""
        return (self.app.bundle, name) in _named_beside_holes(self.instance.rule)

    def numbers(self, position: int, propose: Callable[[], Any]) -> Any:
        """Return the value of an input that is a number or a list of them, in the rule or when it runs."""
        self.asked.add(position)
        part = self.app.inputs[position]
        assert part is not None
        found = self._value(part, propose) if is_scalar(part) else self._elements(part)
        value = self.whole(found, f"input {position}")
        self.used[f"input{position}"] = value
        self.read.add(position)
        return value

    def _elements(self, part: Term) -> Any:
        """Return the elements of a scalar or vector of integers, each an unknown number."""
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

    def _value(self, part: Term, propose: Callable[[], Any], usual: Any = None) -> Any:
        hole = self.instance.open_hole(part)
        if hole is not None:
            if not self.instance.assuming:
                raise Unsupported(f"{hole.name} is open on the right side")
            self.instance.bind(hole.name, self._chosen(hole, propose(), usual))
        return self.instance.scalar(part)

    def _chosen(self, hole: Var, proposed: Any, usual: Any) -> Any:
        """Return what stands for a hole on this path; a hole for one number is no list, where an operator takes
        either."""
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

    def asked_size(self, asked: Size, count: Size) -> Size:
        """Return an unknown on the left side; on the right what the left says, else what is asked for."""
        answers = self.instance.answers
        if self.assuming:
            answers[asked, count] = fresh("size")
        return answers.get((asked, count), asked)

    def most_indices(self) -> int:
        """Three, or one more than any small number that the rule could compare a length with."""
        return _most_indices(self.instance.rule)

    def some_size(self, key: Value) -> Size:
        """Return a size that the elements of tensors say: the same where they do, and one that the left side has."""
        if not self.instance.assuming and key not in self.instance.integers:
            raise Unsupported(f"{self.op} of a size that the left side does not have")
        size = self.instance.whole_number(key)
        self.require(ge(size), "a size is not negative")
        return size

    def natural(self, name: str) -> Size:
        """Return some integer that is not negative."""
        new = fresh(name)
        self.instance.facts.append(ge(new))
        return new

    def target(self) -> DType:
        """Return the element type that a Cast is to."""
        found = self.instance.typing.target(self.app)
        self.attribute("to", lambda: int(found))
        return found

    def ignored(self, name: str) -> Any:
        """Return the value of an attribute that says how to compute, not what; two are the same only where that is
        known.

        The right side leaves it at what is usual or says what the left side says: runtimes refuse some of the others.
        """
        value = self.attribute(name, lambda: fresh(name))
        said = (self.op.removesuffix("Like"), name, value)  # a CastLike becomes a Cast that says the same
        if self.instance.assuming:
            self.instance.ignored.add(said)
        elif value != schema_default(self.op, name) and said not in self.instance.ignored:
            raise Undefined(f"{self.op}: {name} is {value}, of which the left side says nothing")
        return value

    def not_beside(self, name: str, what: str) -> None:
        """Ask that an attribute has no place beside something else."""
        if self._term(name) is not None:
            raise Undefined(f"{self.op}: {name} beside {what}")


@cache
def _named_beside_holes(rule: Rule) -> frozenset[tuple[Var | None, str]]:
    """Return the names of attributes that the left side says, each with the hole for the others that it stands
    beside."""
    apps = (app for side in rule.left for app in applications(side))
    return frozenset((app.bundle, name) for app in apps for name, _ in app.attrs)


@cache
def _is_constant(app: App) -> bool:
    return not any(map(_varies, walk(app)))


def _varies(part: Term) -> bool:
    """Return whether it is computed when the model runs."""
    if isinstance(part, App):
        return not entry(part.op, part.domain).is_folded
    return isinstance(part, Var) and part.kind == "tensor"


def _parts(operand: Term) -> Iterator[str]:
    """Yield the hole that is joined as it is, or after an operator on elements."""
    match operand:
        case Var(name=name):
            yield name
        case App(domain=ops.ANY_POINTWISE):
            yield from chain.from_iterable(map(_parts, operand.operands))


def _single(option: Any) -> Sequence[Any]:
    """Return a number as it is, that of a list of one, nothing of longer ones."""
    return (option,) if not isinstance(option, tuple) else option if len(option) == 1 else ()


MAX_INDICES = 12
"""The longest list of indices that is tried, where a rule writes a number just below."""


@cache
def _most_indices(rule: Rule) -> int:
    parts = (part for side in (*rule.left, *rule.right, *rule.conditions) for part in walk(side))
    numbers = (part.value for part in parts if isinstance(part, Lit) and isinstance(part.value, int))
    return max([3, *(number + 1 for number in numbers if number < MAX_INDICES)])

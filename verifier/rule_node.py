"""An operator of a rule, with its inputs and attributes in one instance."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import chain
from typing import Any

from graphopt.base.dtype import DType
from graphopt.expr.expressions import Expr
from graphopt.expr.integers import Formula, Polynomial, Size, eq, fresh_symbol, ge
from graphopt.expr.symbolic_tensors import SymbolicTensor
from graphopt.ir import schemas
from graphopt.language.rule import Rule
from graphopt.language.terms import (
    App,
    Lit,
    Term,
    Var,
    is_index_list,
    is_scalar,
    is_whole_number,
    operator_applications,
    walk_term,
)
from graphopt.operators.op_context import (
    OneOf,
    OpContext,
    SymbolicShape,
    SymbolLists,
    UndefinedOperatorError,
    UnsupportedOperatorError,
    schema_default,
)
from graphopt.operators.operator_classes import lookup_operator
from graphopt.operators.rule_families import MergedPackRule
from graphopt.operators.semantics import OPERATORS
from graphopt.verifier import element_types
from graphopt.verifier.element_types import Typing
from graphopt.verifier.symbolic_instance import ElementObligation, SymbolicInstance


@dataclass(frozen=True)
class RuleNode(OpContext):
    """The `OpContext` of an operator of a rule."""

    instance: SymbolicInstance
    app: App
    read_values: dict[str, Any] = field(default_factory=dict)
    inputs_read_as_numbers: set[int] = field(default_factory=set)
    """The inputs of which the denotation read the numbers, which `used` then tells apart."""
    queried: set[str | int] = field(default_factory=set)
    """The attributes, by name, and the inputs, by position, that the denotation asked for."""

    def find_unread_parameter(self) -> str | None:
        """Return an attribute or input that the operator has, or that a hole for the others may hold, and no one asked
        for."""
        named, schema = dict(self.app.attrs), schemas.schema(self.op)
        hidden = schema.attributes if schema is not None and self.app.attributes_hole is not None else ()
        names = (
            name for name in (*named, *hidden) if name not in self.queried and not self._is_excluded_from_bundle(name)
        )
        inputs = (i for i in range(self.input_count) if self.has_input(i) and i not in self.queried)
        return next(chain(names, (f"input {i}" for i in inputs)), None)

    def _is_excluded_from_bundle(self, name: str) -> bool:
        """Return whether an attribute cannot be in the hole for the others, for it is named beside it."""
        return name not in dict(self.app.attrs) and self._is_named_beside_bundle(name)

    @property
    def op(self) -> str:
        return self.app.op

    @property
    def domain(self) -> str:
        return self.app.domain

    @property
    def output_count(self) -> int:
        return self.app.outputs

    @property
    def assumes_defined(self) -> bool:
        return self.instance.assuming

    @property
    def max_rank(self) -> int:
        return self.instance.max_rank

    def simplify(self, size: Size) -> Size:
        return self.instance.context.simplify(size)

    def simplify_shape(self, shape: SymbolicShape) -> SymbolicShape:
        return self.instance.simplify_shape(shape)

    def is_known_equal(self, one: Size, other: Size) -> bool:
        return self.instance.are_equal_sizes(one, other)

    def proves(self, condition: Formula) -> bool:
        known, plainly = self.instance.comparison_context, self.instance.compares_syntactically
        self.instance.has_unequal_comparison |= plainly
        return known is not None and not plainly and known.proves(condition)

    def require(self, condition: Formula, reason: str) -> None:
        self.instance.require(condition, f"{self.op}: {reason}")

    def require_indices(self, indices: SymbolicTensor, size: Size, *, from_end: bool = True) -> None:
        """Require each element to be a valid index below a size; negative ones count from the end or are refused."""
        self.instance.require_elements(
            ElementObligation(indices, size, f"{self.op}: an index is out of range", from_end)
        )

    def require_divisors(self, divisors: SymbolicTensor) -> None:
        """Require no element to be 0 where the operator computes in integers, which EXACT licenses."""
        if self.instance.exact and any(self._is_of_integers(typing) for typing in self.instance.typings):
            self.instance.require_elements(ElementObligation(divisors, None, f"{self.op}: division of integers by 0"))

    def require_opaque(self, truths: SymbolicTensor) -> None:
        """Require each element to be true, of which nothing is known: it holds if the left side requires it, too."""
        self.instance.require_elements(
            ElementObligation(truths, None, f"{self.op} is computed of what it may be undefined for")
        )

    def _is_of_integers(self, typing: Typing) -> bool:
        types = [typing.type_of(arg) for arg in self.app.operands if not is_scalar(arg)]
        return any(dtype is not None and dtype.is_integer for dtype in types)

    @property
    def is_constant_folded(self) -> bool:
        """True for an operator on constants on the right side: it is computed when the rule is applied, in double
        precision."""
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
        return next(iter(self.instance.typing.right_side_types.get(self.app, ())), found)

    def _operand_dtype(self, position: int) -> DType | None:
        """Return the element type of an operand. A number of the rule has, bit for bit, that in which it is written on
        the right side; on the left it matches numbers of any type that no other operand fixes."""
        part = self.app.inputs[position] if self.has_input(position) else None
        if part is None or not self.is_number(position) or not self.instance.exact or self._is_typed(position):
            return super()._operand_dtype(position)
        others = [
            None if arg is None or is_scalar(arg) else self._operand_dtype(i) for i, arg in enumerate(self.app.inputs)
        ]
        written = schemas.literal_dtype(
            self.op, self.domain, position, others, DType.UNDEFINED, whole=is_whole_number(part)
        )
        return DType.UNDEFINED if self.assumes_defined else written

    def _is_typed(self, position: int) -> bool:
        """Return whether the operator takes one element type there, or that of another operand."""
        others = (i for i in range(self.input_count) if self.has_input(i) and not self.is_number(i))
        return not element_types.accepts_other_types(self.app, position, others)

    @property
    def is_exact(self) -> bool:
        """True if arithmetic is only what it is called: in the exact model, and on what is no float.

        With infinities so is all that is not arithmetic, but on constants, which are finite.
        """
        dtype = self.dtype
        if self.instance.exact or not (dtype.is_float or dtype is DType.UNDEFINED):
            return True
        return self.instance.extended and not OPERATORS[self.op].is_sum_of_products and not self._is_constant

    # inputs

    @property
    def input_count(self) -> int:
        return len(self.app.inputs)

    def has_input(self, position: int) -> bool:
        """Return whether there is such an input. A hole that is absent is so wherever an operator takes it as it is."""
        part = self.app.inputs[position] if position < self.input_count else None
        if (
            isinstance(part, Var)
            and part.default is not None
            and schemas.is_optional_input(self.op, self.app.domain, position)
        ):
            return not self.instance.is_absent(part)
        return part is not None

    def input(self, position: int) -> SymbolicTensor:
        self.queried.add(position)
        part = self.app.inputs[position] if self.has_input(position) else None
        if part is None:
            raise UndefinedOperatorError(f"{self.op} needs input {position}")
        return self.instance.tensor(part)

    def is_number(self, position: int) -> bool:
        """Return whether the input is a number or a list of the rule, not a tensor."""
        part = self.app.inputs[position] if self.has_input(position) else None
        return part is not None and is_scalar(part) and not is_index_list(part)

    # attributes

    def axis(self, name: str, rank: int) -> int:
        """Return an axis, counted from the start: for a tensor that stands for any number of them, the same
        everywhere."""
        found = super().axis(name, rank)
        rule = self.instance.rule
        for hole in (
            hole
            for arg in self.app.operands
            for hole in _joined_holes(arg)
            if lookup_operator(self.op).is_concatenation
        ):
            if (
                isinstance(rule, MergedPackRule)
                and hole in rule.merged_packs
                and self.instance.join_axes.setdefault(hole, found) != found
            ):
                raise UnsupportedOperatorError(f"what '*{hole}' stands for is joined along two axes")
        return found

    def _term(self, name: str) -> Term | None:
        self.queried.add(name)
        return dict(self.app.attrs).get(name)

    def attribute(self, name: str, propose: Callable[[], Any], default: Any = None) -> Any:
        """Return the value of an attribute; what an open hole may stand for is proposed, once.

        `default` is for attributes of which the schema says none.
        """
        part = self._term(name)
        if part is None and self.app.attributes_hole is not None and not self._is_named_beside_bundle(name):
            part = Var(f"{self.app.attributes_hole.name}.{name}", "string")
        if part is None and schemas.is_required_attribute(self.op, name, self.domain):
            raise UndefinedOperatorError(f"{self.op} without {name}")
        said = schema_default(self.op, name, self.domain)
        usual = default if said is None else said
        value = usual if part is None else self._value(part, propose, usual)
        self.read_values[name] = value
        return value

    def _is_named_beside_bundle(self, name: str) -> bool:
        """Return whether the left side names the attribute beside this hole for the others, which then does not hold
        it."""
        return (self.app.attributes_hole, name) in _named_beside_holes(self.instance.rule)

    def numbers(self, position: int, propose: Callable[[], Any]) -> Any:
        """Return the value of an input that is a number or a list of them, in the rule or when it runs."""
        self.queried.add(position)
        part = self.app.inputs[position]
        assert part is not None
        found = self._value(part, propose) if is_scalar(part) else self._elements(part)
        value = self.require_integers(found, f"input {position}")
        self.read_values[f"input{position}"] = value
        self.inputs_read_as_numbers.add(position)
        return value

    def _elements(self, part: Term) -> Any:
        """Return the elements of a scalar or vector of integers, each an unknown number."""
        tensor = self.instance.tensor(part)
        if tensor.dtype.is_float:
            raise UnsupportedOperatorError(f"{self.op} by numbers that may not be whole")
        if tensor.rank > 1:
            raise UndefinedOperatorError(f"{self.op} of a list with {tensor.rank} axes")
        if not tensor.rank:
            return self.instance.to_integer(tensor.element(()))
        return tuple(self.instance.to_integer(tensor.element((i,))) for i in range(self._length(part, tensor.shape[0])))

    def _length(self, part: Term, size: Size) -> int:
        """How many elements a vector has. Each number is tried of a hole, as of the lists that a rule writes."""
        length = self.instance.context.simplify(size)
        if isinstance(length, Polynomial) and isinstance(part, Var) and self.instance.assuming:
            length = self.instance.choices.choose(f"elements {part.name}", range(self.instance.max_rank + 1))
            self.require(eq(size, length), f"{part.name} has another length")
        if not isinstance(length, int):
            raise UnsupportedOperatorError(f"{self.op} of a list whose length is not known")
        return length

    def _value(self, part: Term, propose: Callable[[], Any], usual: Any = None) -> Any:
        hole = self.instance.find_unbound_hole(part)
        if hole is not None:
            if not self.instance.assuming:
                raise UnsupportedOperatorError(f"{hole.name} is open on the right side")
            self.instance.bind(hole.name, self._choose_value(hole, propose(), usual))
        return self.instance.scalar(part)

    def _choose_value(self, hole: Var, proposed: Any, usual: Any) -> Any:
        """Return what stands for a hole on this path; a hole for one number is no list, where an operator takes
        either."""
        choices, single = self.instance.choices, hole.kind == "integer"
        match proposed:
            case OneOf(options):
                if single:
                    options = [number for option in options for number in _single(option)]
                admitted = partial(self.instance.admits, hole.name)
                return choices.choose(f"value {hole.name}", options, admitted, usual)
            case SymbolLists(name, _) if single:
                return fresh_symbol(name)
            case SymbolLists(name, lengths):
                length = choices.choose(f"length {hole.name}", lengths)
                return tuple(fresh_symbol(name) for _ in range(length))
            case tuple() if single:
                if len(proposed) != 1:
                    raise UndefinedOperatorError(f"{self.op}: {hole.name} is one number")
                return proposed[0]
        return proposed

    def reshape_size(self, asked: Size, count: Size) -> Size:
        """Return an unknown on the left side; on the right what the left says, else what is asked for."""
        answers = self.instance.reshape_sizes
        if self.assumes_defined:
            answers[asked, count] = fresh_symbol("size")
        return answers.get((asked, count), asked)

    def max_index_count(self) -> int:
        """Three, or one more than any small number that the rule could compare a length with."""
        return _most_indices(self.instance.rule)

    def size_from_elements(self, key: Expr) -> Size:
        """Return a size that the elements of tensors say: the same where they do, and one that the left side has."""
        if not self.instance.assuming and key not in self.instance.integers:
            raise UnsupportedOperatorError(f"{self.op} of a size that the left side does not have")
        size = self.instance.to_integer(key)
        self.require(ge(size), "a size is not negative")
        return size

    def fresh_nonnegative(self, name: str) -> Size:
        """Return a new symbol for a nonnegative integer."""
        new = fresh_symbol(name)
        self.instance.facts.append(ge(new))
        return new

    def cast_target(self) -> DType:
        """Return the target element type of a Cast."""
        found = self.instance.typing.target(self.app)
        self.attribute("to", lambda: int(found))
        return found

    def read_unmodeled_attribute(self, name: str) -> Any:
        """Return the value of an attribute that says how to compute, not what; two are the same only where that is
        known.

        The right side leaves it at what is usual or says what the left side says: runtimes refuse some of the others.
        """
        value = self.attribute(name, lambda: fresh_symbol(name))
        said = (self.op.removesuffix("Like"), name, value)  # a CastLike becomes a Cast that says the same
        if self.instance.assuming:
            self.instance.ignored.add(said)
        elif value != schema_default(self.op, name) and said not in self.instance.ignored:
            raise UndefinedOperatorError(f"{self.op}: {name} is {value}, of which the left side says nothing")
        return value

    def require_absent_beside(self, name: str, what: str) -> None:
        """Ask that an attribute has no place beside something else."""
        if self._term(name) is not None:
            raise UndefinedOperatorError(f"{self.op}: {name} beside {what}")


@cache
def _named_beside_holes(rule: Rule) -> frozenset[tuple[Var | None, str]]:
    """Return the names of attributes that the left side says, each with the hole for the others that it stands
    beside."""
    apps = (app for side in rule.left for app in operator_applications(side))
    return frozenset((app.attributes_hole, name) for app in apps for name, _ in app.attrs)


@cache
def _is_constant(app: App) -> bool:
    return not any(map(_varies, walk_term(app)))


def _varies(part: Term) -> bool:
    """Return whether it is computed when the model runs."""
    if isinstance(part, App):
        return not lookup_operator(part.op, part.domain).is_foldable
    return isinstance(part, Var) and part.kind == "tensor"


def _joined_holes(operand: Term) -> Iterator[str]:
    """Yield the hole that is joined as it is, or after an operator on elements."""
    match operand:
        case Var(name=name):
            yield name
        case App(domain=schemas.ANY_POINTWISE):
            yield from chain.from_iterable(map(_joined_holes, operand.operands))


def _single(option: Any) -> Sequence[Any]:
    """Return a number as it is, that of a list of one, nothing of longer ones."""
    return (option,) if not isinstance(option, tuple) else option if len(option) == 1 else ()


MAX_INDICES = 12
"""The longest list of indices that is tried, where a rule writes a number just below."""


@cache
def _most_indices(rule: Rule) -> int:
    parts = (part for side in (*rule.left, *rule.right, *rule.conditions) for part in walk_term(side))
    numbers = (part.value for part in parts if isinstance(part, Lit) and isinstance(part.value, int))
    return max([3, *(number + 1 for number in numbers if number < MAX_INDICES)])

"""Classes of operators, read off the table: which commute, which compute element by element, which a hole may be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from typing import NamedTuple, TypeAlias

from onnx.defs import OpSchema

from graphopt.ir import schemas
from graphopt.language.definition import Definition, instantiate_definition, iter_definitions
from graphopt.language.rule import Rule
from graphopt.language.scalar_functions import BINDING_QUERIES
from graphopt.language.terms import (
    SCALAR,
    App,
    Lit,
    Term,
    Var,
    attributes,
    const,
    holes,
    is_scalar,
    operator_applications,
    walk_term,
)
from graphopt.operators.elementwise_ops import ElementwiseDenotation, ExtraOperands
from graphopt.operators.operator import Operator
from graphopt.operators.reduction_ops import ReductionDenotation
from graphopt.operators.semantics import OPERATORS
from graphopt.operators.undenoted_ops import MICROSOFT_DOMAIN, UNDENOTED_OPERATORS

UNKNOWN_OPERATOR = Operator(prepacks_weights=True)
"""The entry of an operator that is in no table: none of the facts is known."""


def lookup_operator(op: str, domain: str = "") -> Operator:
    """Return the entry of an operator."""
    known = None if domain else OPERATORS.get(op)
    return known or UNDENOTED_OPERATORS.get((op, domain), UNKNOWN_OPERATOR)


def lookup_kernel(name: str) -> Operator:
    """Return the entry of a kernel of ONNX Runtime, given its name alone."""
    known = lookup_operator(name)
    return lookup_operator(name, MICROSOFT_DOMAIN) if known is UNKNOWN_OPERATOR else known


def is_reduction(op: str) -> bool:
    """Return whether an operator runs along the axes that its second input names."""
    return isinstance(lookup_operator(op).denotation, ReductionDenotation)


def is_casting(app: App) -> bool:
    """Return whether a term casts to an element type that is not determined by that of its first input."""
    return lookup_operator(app.op, app.domain).is_casting


@cache
def mentions_quantization(rule: Rule) -> bool:
    """Return whether a rule contains quantizing operators, for which the ranges of integers count."""
    apps = (app for side in (*rule.left, *rule.right) for app in operator_applications(side))
    return any(lookup_operator(app.op, app.domain).is_quantizing for app in apps)


@cache
def depends_on_dtype(rule: Rule) -> bool:
    """Return whether a rule may depend on element types: it casts, asks for them, or makes another."""
    apps = (part for term in rule.all_terms for part in walk_term(term) if isinstance(part, App))
    return any(
        app.op == "dtype" or "dtype" in dict(app.attrs) or operator.is_casting or operator.is_quantizing
        for app, operator in ((app, lookup_operator(app.op, app.domain)) for app in apps)
    )


def extra_operands(op: str, domain: str = "") -> ExtraOperands | None:
    """Return the operands of an elementwise operator beside its first, None for other operators."""
    match lookup_operator(op, domain):
        case Operator(denotation=ElementwiseDenotation(extra_operands=found)):
            return found
    return None


@schemas.memoized_by_schema
def is_broadcasting(op: str, domain: str = "") -> bool:
    """Return whether an operator has two operands, at least one of which broadcasts to the other."""
    schema = schemas.schema(op, domain)
    takes_two = schema is not None and schema.min_input <= 2 <= schema.max_input
    return takes_two and extra_operands(op, domain) in (ExtraOperands.MULTIDIRECTIONAL, ExtraOperands.UNIDIRECTIONAL)


def is_elementwise(app: App) -> bool:
    """Return whether each element is computed from one element of each operand, any of which may broadcast."""
    if app.domain in schemas.CLASS_SCHEMAS:
        return app.domain != schemas.ANY_REDUCTION
    if schemas.is_defined_operator(app.op, app.domain):
        meaning = instantiate_definition(app)
        return meaning is not None and is_elementwise_definition(meaning.definition)
    match extra_operands(app.op, app.domain):
        case ExtraOperands.MULTIDIRECTIONAL:
            return True
        case ExtraOperands.UNIDIRECTIONAL | ExtraOperands.SCALARS:
            return all(map(is_scalar, app.operands[1:]))
    return False


@cache
def is_pointwise(rule: Rule) -> bool:
    """Return whether a proof for scalars and vectors is one for all ranks.

    Where all operators are pointwise, an element of either side is made of one element of each hole, as for scalars;
    and the size of an axis is made of the sizes that the holes have there, if any, as for vectors. So two sides that
    are equal for scalars and vectors are equal for all ranks; but a condition on shapes, a declared axis or a list may
    distinguish ranks.
    """
    return _is_rank_polymorphic((*rule.left, *rule.right), rule.conditions, rule.holes.values())


@schemas.memoized_by_schema
def is_elementwise_definition(definition: Definition) -> bool:
    """Return whether the meaning of a declared operator is a function of elements, whatever the ranks."""
    return definition.head.outputs == 1 and _is_rank_polymorphic(
        definition.body, definition.when, set(holes(definition.head))
    )


def _is_rank_polymorphic(sides: Sequence[Term], conditions: Sequence[Term], given: Iterable[Var]) -> bool:
    return (
        all(is_elementwise(app) for side in sides for app in operator_applications(side))
        and all(hole.axes is None and hole.default is None and hole.kind != "integers" for hole in given)
        and not any(
            isinstance(part, App)
            and part.domain == SCALAR
            and part.op in (*BINDING_QUERIES, "is_arange")
            and part.op != "dtype"
            for term in (*sides, *conditions)
            for part in walk_term(term)
        )
        and not any(
            isinstance(part, Lit) and isinstance(part.value, tuple) for side in sides for part in walk_term(side)
        )
    )


# -- what holes stand for ----------------------------------------------------------------------------------------------


class OperatorChoice(NamedTuple):
    """An operator that a hole may stand for, and the positions of the hole's operands."""

    op: str
    inputs: tuple[int | str | None, ...]
    """An operand of the hole by its position, a scalar by its name, or nothing."""
    domain: str = ""
    attrs: tuple[tuple[str, Term], ...] = ()
    """Attributes of a declared operator, which has to name them."""
    lists_all_attributes: bool = False
    """True if the rule lists all attributes, so that others must have their defaults."""

    def apply(self, hole: str, operands: tuple[Term | None, ...], said: tuple[tuple[str, Term], ...]) -> App:
        """Return the operator on these operands, with holes for all that is its own; their names begin with the
        hole's."""
        args = (
            operands[each] if isinstance(each, int) else None if each is None else const(f"{hole}_{each}", "")
            for each in self.inputs
            if not isinstance(each, int) or each < len(operands)  # a reduction of all axes names none
        )
        schema = schemas.schema(self.op, self.domain)
        has_more = schema and schema.attributes and not self.domain and not self.lists_all_attributes
        rest = (attributes(f"{hole}_attributes"),) if has_more else ()
        attrs = ((n, replace(v, name=f"{hole}_{v.name}") if isinstance(v, Var) else v) for n, v in self.attrs)
        return App(self.op, (*args, *rest), (*said, *attrs), self.domain)


@schemas.memoized_by_schema
def operator_choices(class_: str) -> Mapping[tuple[str, str], tuple[OperatorChoice, ...]]:
    """Return the operators of a class, by name and domain, each with the ways in which it belongs to it."""
    if class_ == schemas.ANY_REDUCTION:
        reductions = (
            own for own, operator in sorted(OPERATORS.items()) if isinstance(operator.denotation, ReductionDenotation)
        )
        return {(own, ""): (OperatorChoice(own, (0, 1), lists_all_attributes=True),) for own in reductions}
    found: dict[tuple[str, str], tuple[OperatorChoice, ...]] = {}
    for own, operator in sorted(OPERATORS.items()):
        if isinstance(operator.denotation, ElementwiseDenotation) and not operator.selects_elements:
            ways = _input_slots(own, operator.denotation.extra_operands, class_)
            found[own, ""] = tuple(OperatorChoice(own, inputs) for inputs in ways)
    for definition in iter_definitions():
        head = definition.head
        if is_elementwise_definition(definition) and None not in head.inputs:
            among = tuple(
                OperatorChoice(head.op, inputs, head.domain, head.attrs)
                for inputs in _operand_orders(len(head.inputs), class_, commuting=False)
            )
            found[definition.key] = (*found.get(definition.key, ()), *among)
    return {key: ways for key, ways in found.items() if ways}


_InputSlots: TypeAlias = "tuple[int | str | None, ...]"


def _input_slots(op: str, beside: ExtraOperands, class_: str) -> Sequence[_InputSlots]:
    """Return the ways in which an operator stands for a function of elements: which inputs are operands of the hole,
    and which its own."""
    schema = schemas.schema(op)
    assert schema is not None, op
    if beside is ExtraOperands.MULTIDIRECTIONAL:
        variadic = schema.inputs[-1].option == OpSchema.FormalParameterOption.Variadic
        return _operand_orders(
            2 if variadic else len(schema.inputs), class_, commuting=lookup_operator(op).is_commutative
        )
    if beside is ExtraOperands.DTYPE_ONLY or class_ == schemas.ANY_BINARY:
        return ()
    own = list(enumerate(formal.name for formal in schema.inputs))[1:]
    rest = ([None, name] if schemas.is_optional_input(op, "", position) else [name] for position, name in own)
    return tuple(dict.fromkeys(_trim_absent((0, *chosen)) for chosen in product(*rest)))


def _trim_absent(inputs: _InputSlots) -> _InputSlots:
    return _trim_absent(inputs[:-1]) if inputs[-1] is None else inputs


def _operand_orders(count: int, class_: str, *, commuting: bool) -> Sequence[_InputSlots]:
    """Return the orders of operands, one or two of which are the hole's; matching tries both orders if they commute."""
    if count == 1:
        return ((0,),) if class_ == schemas.ANY_POINTWISE else ()
    other = "operand" if class_ == schemas.ANY_POINTWISE else 1
    return () if count > 2 else ((0, other),) if commuting else ((0, other), (other, 0))


# -- groups of operators for discovery ---------------------------------------------------------------------------------

DISCOVERY_OPERATORS = (
    *("Add", "Sub", "Mul", "Neg", "Relu", "MatMul", "Conv", "Transpose", "Concat", "Split", "ReduceSum", "ReduceMax"),
    *("MaxPool", "AveragePool", "GlobalAveragePool", "Softmax"),
)
"""Operators that discovery tries by default."""

OPERATOR_GROUPS: Mapping[str, tuple[str, ...]] = {
    "arithmetic": ("Add", "Sub", "Mul", "Div", "Neg"),
    "activations": ("Relu", "Sigmoid", "Tanh", "Exp", "Gelu"),
    "movement": ("Transpose", "Concat", "Split"),
    "reductions": ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"),
    "pools": ("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"),
    "linear": ("MatMul", "Conv"),
}
"""Groups of operators, by the names that `--ops` takes."""

IMAGE_DISCOVERY_OPERATORS = ("Add", "Mul", "Relu")
"""Operators that are tried on images beside the spatial ones."""

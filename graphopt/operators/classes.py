"""Classes of operators, read off the table: which commute, which compute element by element, what holes stand for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from typing import NamedTuple, TypeAlias

from onnx.defs import OpSchema

from graphopt.ir import ops
from graphopt.language.definition import Definition, definitions, meaning_of
from graphopt.language.rule import Rule
from graphopt.language.scalar import FACTS
from graphopt.language.term import SCALAR, App, Lit, Term, Var, applications, attributes, const, holes, is_scalar, walk
from graphopt.operators.elementwise import Beside, Pointwise
from graphopt.operators.operator import Operator
from graphopt.operators.reductions import Reducing
from graphopt.operators.semantics import OPERATORS
from graphopt.operators.undenoted import MICROSOFT, UNDENOTED

UNKNOWN = Operator(packs=True)
"""An operator that is in no table: none of the facts is known of it."""


def entry(op: str, domain: str = "") -> Operator:
    """Return what is known of an operator."""
    known = None if domain else OPERATORS.get(op)
    return known or UNDENOTED.get((op, domain), UNKNOWN)


def kernel(name: str) -> Operator:
    """Return what is known of a kernel of ONNX Runtime, of which only the name is said."""
    known = entry(name)
    return entry(name, MICROSOFT) if known is UNKNOWN else known


def is_reduction(op: str) -> bool:
    """Return whether an operator runs along the axes that its second input names."""
    return isinstance(entry(op).denotation, Reducing)


def casts(app: App) -> bool:
    """Return whether a term casts to an element type that is no function of what it reads first."""
    return entry(app.op, app.domain).casts


@cache
def is_quantized(rule: Rule) -> bool:
    """Return whether a rule speaks of operators that quantize, for which the range of an integer counts."""
    apps = (app for side in (*rule.left, *rule.right) for app in applications(side))
    return any(entry(app.op, app.domain).is_quantizing for app in apps)


@cache
def minds_types(rule: Rule) -> bool:
    """Return whether what a rule says may depend on element types: it casts, asks for them, or makes another."""
    apps = (part for term in rule.said for part in walk(term) if isinstance(part, App))
    return any(_minds_types(app) for app in apps)


def _minds_types(app: App) -> bool:
    facts = entry(app.op, app.domain)
    return app.op == "dtype" or "dtype" in dict(app.attrs) or facts.casts or facts.is_quantizing


def beside(op: str, domain: str = "") -> Beside | None:
    """Return what an elementwise operator takes beside its first operand, None of another operator."""
    match entry(op, domain):
        case Operator(denotation=Pointwise(beside=found)):
            return found
    return None


@ops.reads_schemas
def broadcasts(op: str, domain: str = "") -> bool:
    """Return whether an operator has two operands, of which one at least broadcasts to the other."""
    schema = ops.schema(op, domain)
    takes_two = schema is not None and schema.min_input <= 2 <= schema.max_input
    return takes_two and beside(op, domain) in (Beside.EQUALS, Beside.LESSER)


def is_elementwise(app: App) -> bool:
    """Return whether each element is made of one element of each operand, any of which may be broadcast."""
    if app.domain in ops.CLASSES:
        return app.domain != ops.ANY_REDUCTION
    if ops.is_declared(app.op, app.domain):
        meaning = meaning_of(app)
        return meaning is not None and computes_elements(meaning.definition)
    match beside(app.op, app.domain):
        case Beside.EQUALS:
            return True
        case Beside.LESSER | Beside.SCALARS:
            return all(map(is_scalar, app.operands[1:]))
    return False


@cache
def is_pointwise(rule: Rule) -> bool:
    """Return whether the proof for scalars and vectors is one for all ranks.

    Where all operators are pointwise, an element of either side is made of one element of each hole, and these are an
    instance of scalars. The size of an axis is made of the sizes that the holes have there, if any, and these are an
    instance of scalars and vectors. So two sides that are equal for all of those are equal for any ranks; but a
    condition on shapes, a declared axis or a list may tell one rank from another.
    """
    return _tells_no_ranks((*rule.left, *rule.right), rule.conditions, rule.holes.values())


@ops.reads_schemas
def computes_elements(definition: Definition) -> bool:
    """Return whether what a declared operator means makes it a function of elements, whatever their ranks are."""
    return definition.head.outputs == 1 and _tells_no_ranks(
        definition.meaning, definition.when, set(holes(definition.head))
    )


def _tells_no_ranks(sides: Sequence[Term], conditions: Sequence[Term], given: Iterable[Var]) -> bool:
    return (
        all(is_elementwise(app) for side in sides for app in applications(side))
        and all(hole.axes is None and hole.default is None and hole.kind != "integers" for hole in given)
        and not any(
            isinstance(part, App) and part.domain == SCALAR and part.op in (*FACTS, "is_arange") and part.op != "dtype"
            for term in (*sides, *conditions)
            for part in walk(term)
        )
        and not any(isinstance(part, Lit) and isinstance(part.value, tuple) for side in sides for part in walk(side))
    )


# -- what holes stand for ----------------------------------------------------------------------------------------------


class Candidate(NamedTuple):
    """An operator that a hole may stand for, and where its operands go."""

    op: str
    inputs: tuple[int | str | None, ...]
    """An operand of the hole by its position, a scalar by its name, or nothing."""
    domain: str = ""
    attrs: tuple[tuple[str, Term], ...] = ()
    """Those of a declared operator, which has to name them."""
    is_all_said: bool = False
    """Whether the rule says all attributes, so that others are to have their defaults."""

    def of(self, hole: str, operands: tuple[Term | None, ...], said: tuple[tuple[str, Term], ...]) -> App:
        """Return the operator on these operands, with holes for all that is its own; their names begin with the
        hole's."""
        args = (
            operands[each] if isinstance(each, int) else None if each is None else const(f"{hole}_{each}", "")
            for each in self.inputs
            if not isinstance(each, int) or each < len(operands)  # a reduction of all axes names none
        )
        schema = ops.schema(self.op, self.domain)
        has_more = schema and schema.attributes and not self.domain and not self.is_all_said
        rest = (attributes(f"{hole}_attributes"),) if has_more else ()
        attrs = ((n, replace(v, name=f"{hole}_{v.name}") if isinstance(v, Var) else v) for n, v in self.attrs)
        return App(self.op, (*args, *rest), (*said, *attrs), self.domain)


@ops.reads_schemas
def candidates(class_: str) -> Mapping[tuple[str, str], tuple[Candidate, ...]]:
    """Return the operators of a class, by name and domain, each with the ways in which it belongs to it."""
    if class_ == ops.ANY_REDUCTION:
        reductions = (own for own, operator in sorted(OPERATORS.items()) if isinstance(operator.denotation, Reducing))
        return {(own, ""): (Candidate(own, (0, 1), is_all_said=True),) for own in reductions}
    found: dict[tuple[str, str], tuple[Candidate, ...]] = {}
    for own, operator in sorted(OPERATORS.items()):
        if isinstance(operator.denotation, Pointwise) and not operator.keeps:
            ways = _ways(own, operator.denotation.beside, class_)
            found[own, ""] = tuple(Candidate(own, inputs) for inputs in ways)
    for definition in definitions():
        head = definition.head
        if computes_elements(definition) and None not in head.inputs:
            among = tuple(
                Candidate(head.op, inputs, head.domain, head.attrs)
                for inputs in _orders(len(head.inputs), class_, commuting=False)
            )
            found[definition.key] = (*found.get(definition.key, ()), *among)
    return {key: ways for key, ways in found.items() if ways}


_Inputs: TypeAlias = "tuple[int | str | None, ...]"


def _ways(op: str, beside: Beside, class_: str) -> Sequence[_Inputs]:
    """How an operator stands for a function of elements: which inputs are operands of the hole, and which its own."""
    schema = ops.schema(op)
    assert schema is not None, op
    if beside is Beside.EQUALS:
        variadic = schema.inputs[-1].option == OpSchema.FormalParameterOption.Variadic
        return _orders(2 if variadic else len(schema.inputs), class_, commuting=entry(op).commutes)
    if beside is Beside.TYPES or class_ == ops.ANY_BINARY:
        return ()
    own = list(enumerate(formal.name for formal in schema.inputs))[1:]
    rest = ([None, name] if ops.is_optional(op, "", position) else [name] for position, name in own)
    return tuple(dict.fromkeys(_trimmed((0, *chosen)) for chosen in product(*rest)))


def _trimmed(inputs: _Inputs) -> _Inputs:
    return _trimmed(inputs[:-1]) if inputs[-1] is None else inputs


def _orders(count: int, class_: str, *, commuting: bool) -> Sequence[_Inputs]:
    """Return the orders of so many operands, of which one or two are the hole's; matching tries both of those that
    commute."""
    if count == 1:
        return ((0,),) if class_ == ops.ANY_POINTWISE else ()
    other = "operand" if class_ == ops.ANY_POINTWISE else 1
    return () if count > 2 else ((0, other),) if commuting else ((0, other), (other, 0))


# -- those that are named together when rules are looked for -----------------------------------------------------------

TRIED = (
    *("Add", "Sub", "Mul", "Neg", "Relu", "MatMul", "Conv", "Transpose", "Concat", "Split", "ReduceSum", "ReduceMax"),
    *("MaxPool", "AveragePool", "GlobalAveragePool", "Softmax"),
)
"""The operators that are tried where none are named."""

GROUPS: Mapping[str, tuple[str, ...]] = {
    "arithmetic": ("Add", "Sub", "Mul", "Div", "Neg"),
    "activations": ("Relu", "Sigmoid", "Tanh", "Exp", "Gelu"),
    "movement": ("Transpose", "Concat", "Split"),
    "reductions": ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"),
    "pools": ("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"),
    "linear": ("MatMul", "Conv"),
}
"""Operators that are named together."""

ON_IMAGES = ("Add", "Mul", "Relu")
"""Those that are tried on images, too, beside those of images."""

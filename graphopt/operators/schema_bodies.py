"""Meanings out of schemas, for operators that ONNX defines by other operators.

A body is read over the tensors of a node. A schema may make it for a node: then it depends on element types, ranks and
all attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeAlias

from graphopt.base.dtype import DType
from graphopt.expr.expressions import Expr
from graphopt.expr.integers import Formula, Size
from graphopt.expr.symbolic_tensors import SymbolicTensor, as_integer
from graphopt.ir import schemas
from graphopt.language.function_terms import FunctionTerms, NotExpressibleError, read_function
from graphopt.language.terms import App, Lit, Term, Var, is_scalar
from graphopt.language.type_inference import NoInstance, TypeConstraints
from graphopt.operators.op_context import (
    OneOf,
    OpContext,
    SymbolicShape,
    UndefinedOperatorError,
    UnsupportedOperatorError,
    schema_default,
    to_tensor,
)
from graphopt.operators.shape_constraints import require_shape

DenoteFunction: TypeAlias = "Callable[[OpContext], tuple[SymbolicTensor, ...]]"
"""The denotation of all operators (`semantics.denote`)."""
PlainAttribute: TypeAlias = "int | float | str"


@dataclass(frozen=True)
class SchemaBody:
    """The denotation of an operator by the body that its schema has, or makes for a node."""

    denote: DenoteFunction
    check_operands: Callable[[OpContext], None] | None = None
    """Requires what the text states beside the body."""
    attribute_options: Sequence[tuple[str, Sequence[str]]] = ()
    """Texts that an open attribute may be."""

    def __call__(self, node: OpContext) -> tuple[SymbolicTensor, ...]:
        if self.check_operands is not None:
            self.check_operands(node)
        function = _find_body(node, dict(self.attribute_options))
        inputs = (node.optional_input(position) for position in range(node.input_count))
        known: dict[Term, SymbolicTensor | None] = dict.fromkeys(function.inputs)
        known |= zip(function.inputs, inputs, strict=False)
        return _BodyReader(node, function, known, self.denote).outputs()


@dataclass(frozen=True)
class ElementwiseBody:
    """Function of elements that an elementwise operator computes, read off the body in its schema."""

    denote: DenoteFunction

    def __call__(self, node: OpContext) -> Callable[..., Expr]:
        function = _find_body(node, {})
        dtypes = [node.input(position).dtype for position in range(node.input_count)]
        numbers: dict[Term, SymbolicTensor | None] = {
            hole: to_tensor(node.real(name)) for name, hole in function.attributes.items()
        }

        def apply(*values: Expr) -> Expr:
            elements = zip(function.inputs, map(_scalar_tensor, values, dtypes), strict=True)
            (output,) = _BodyReader(node, function, numbers | dict(elements), self.denote).outputs()
            return output.element(())

        return apply


def _scalar_tensor(value: Expr, dtype: DType) -> SymbolicTensor:
    return SymbolicTensor((), lambda _: value, dtype)


# -- the function of a node --------------------------------------------------------------------------------------------


def _find_body(node: OpContext, modes: Mapping[str, Sequence[str]]) -> FunctionTerms:
    """Return the body of an operator as terms.

    Raises:
        UnsupportedOperatorError: there is none for what is known of the node, or it says more than terms can.
    """
    if schemas.schema(node.op) is None:
        raise UnsupportedOperatorError(f"{node.op}, which this version of the onnx package does not have")
    attrs = ((name, _plain_attribute(node, name, modes.get(name))) for name in schemas.body_value_attributes(node.op))
    inputs = (node.optional_input(position) for position in range(node.input_count))
    types = tuple(given and (given.dtype, given.rank) for given in inputs)
    return _parse_body(
        node.op, types, node.output_count, tuple((name, value) for name, value in attrs if value is not None)
    )


def _plain_attribute(node: OpContext, name: str, options: Sequence[str] | None) -> PlainAttribute | None:
    """Return the value of an attribute, None if it has none: a body is made for one."""

    def propose() -> OneOf:
        if options is None:
            raise UnsupportedOperatorError(f"{node.op} with any {name}")
        return OneOf(options)

    value = node.attribute(name, propose)
    if not isinstance(value, int | float | str | None):
        raise UnsupportedOperatorError(f"{node.op} with any {name}")
    return value


@lru_cache(1024)
def _parse_body(
    op: str,
    inputs: tuple[tuple[DType, int] | None, ...],
    outputs: int,
    attrs: tuple[tuple[str, int | float | str], ...],
) -> FunctionTerms:
    """Return the body that a schema has, or makes for such a node."""
    proto = schemas.schema_function_body(op, inputs, outputs, dict(attrs))
    if proto is None:
        raise UnsupportedOperatorError(f"{op}, whose schema has no body for these inputs")
    try:
        return read_function(proto)
    except NotExpressibleError as error:
        raise UnsupportedOperatorError(f"{op}, in whose body {error}") from error


@lru_cache(1024)
def _infer_types(sides: tuple[Term, ...], inputs: tuple[tuple[str, DType], ...]) -> TypeConstraints:
    return TypeConstraints(sides, dict(inputs))


# -- its nodes ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _BodyReader:
    """Reads one function at one node."""

    node: OpContext
    function: FunctionTerms
    bindings: dict[Term, SymbolicTensor | None]
    """Tensors of its terms: first the inputs, some of which may be absent."""
    denote: DenoteFunction

    def outputs(self) -> tuple[SymbolicTensor, ...]:
        return tuple(map(self.get_tensor, self.function.outputs[: self.node.output_count]))

    def is_present(self, part: Term | None) -> bool:
        """Return whether the operator has the input for which a term stands."""
        return part is not None and self.bindings.get(part, part) is not None

    def get_tensor(self, part: Term) -> SymbolicTensor:
        if part not in self.bindings:
            self._read(part)
        found = self.bindings[part]
        if found is None:
            raise UndefinedOperatorError(f"{self.node.op} needs {part}")
        return found

    def _read(self, part: Term) -> None:
        match part:
            case Lit(value):
                self.bindings[part] = to_tensor(value)
            case Var(name):
                self.bindings[part] = to_tensor(self.node.real(name))
            case App() if is_literal_number(part):
                self.bindings[part] = self.get_tensor(part.operands[0]).with_dtype(self._dtype(part))
            case App():
                outputs = self.denote(_BodyOpContext(self, part.node))
                for position, output in enumerate(outputs[: part.outputs]):
                    app = replace(part, output=position)
                    self.bindings[app] = output.with_dtype(self._dtype(app))

    def _dtype(self, app: App) -> DType:
        inputs = ((hole.name, self.bindings.get(hole)) for hole in self.function.inputs)
        known = tuple((name, tensor.dtype) for name, tensor in inputs if tensor is not None and tensor.dtype)
        try:
            return _infer_types(self.function.outputs, known).draw((app.node, app.output))
        except NoInstance as error:
            raise UndefinedOperatorError(f"{self.node.op}: {error}") from error


def is_literal_number(part: Term) -> bool:
    """Return whether a term of a body is a number or a list: as it is written, or cast to floats."""
    match part:
        case App(op="Cast", args=(Lit() | Var() as number,), attrs=(("to", Lit(value=int(to))),)):
            return DType(to).is_float and is_scalar(number)
    return is_scalar(part)


@dataclass(frozen=True)
class _BodyOpContext(OpContext):
    """An operator of a body: its requirements are its node's, and facts known there are known here."""

    reader: _BodyReader
    app: App
    read_values: dict[str, Any] = field(default_factory=dict)
    inputs_read_as_numbers: set[int] = field(default_factory=set)
    queried: set[str] = field(default_factory=set)

    @property
    def outer(self) -> OpContext:
        return self.reader.node

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
        return self.outer.assumes_defined

    @property
    def max_rank(self) -> int:
        return self.outer.max_rank

    @property
    def is_constant_folded(self) -> bool:
        return self.outer.is_constant_folded

    @property
    def is_exact(self) -> bool:
        """In the exact model the whole operator is a function that is named."""
        return False

    def find_unread_parameter(self) -> str | None:
        return next((name for name, _ in self.app.attrs if name not in self.queried), None)

    def require(self, condition: Formula, reason: str) -> None:
        self.outer.require(condition, reason)

    def require_indices(self, indices: SymbolicTensor, size: Size, *, from_end: bool = True) -> None:
        self.outer.require_indices(indices, size, from_end=from_end)

    def require_divisors(self, divisors: SymbolicTensor) -> None:
        self.outer.require_divisors(divisors)

    def require_opaque(self, truths: SymbolicTensor) -> None:
        self.outer.require_opaque(truths)

    def simplify(self, size: Size) -> Size:
        return self.outer.simplify(size)

    def simplify_shape(self, shape: SymbolicShape) -> SymbolicShape:
        return self.outer.simplify_shape(shape)

    def is_known_equal(self, one: Size, other: Size) -> bool:
        return self.outer.is_known_equal(one, other)

    def proves(self, condition: Formula) -> bool:
        return self.outer.proves(condition)

    def broadcast_size(self, a: Size, b: Size) -> Size:
        return self.outer.broadcast_size(a, b)

    def reshape_size(self, asked: Size, count: Size) -> Size:
        return self.outer.reshape_size(asked, count)

    def size_from_elements(self, key: Expr) -> Size:
        return self.outer.size_from_elements(key)

    def fresh_nonnegative(self, name: str) -> Size:
        return self.outer.fresh_nonnegative(name)

    def max_index_count(self) -> int:
        return self.outer.max_index_count()

    # inputs

    @property
    def input_count(self) -> int:
        return len(self.app.inputs)

    def has_input(self, position: int) -> bool:
        return position < self.input_count and self.reader.is_present(self.app.inputs[position])

    def _argument(self, position: int) -> Term:
        part = self.app.inputs[position] if self.has_input(position) else None
        if part is None:
            raise UndefinedOperatorError(f"{self.op} needs input {position}")
        return part

    def input(self, position: int) -> SymbolicTensor:
        return self.reader.get_tensor(self._argument(position))

    def is_number(self, position: int) -> bool:
        return self.has_input(position) and is_literal_number(self._argument(position))

    def numbers(self, position: int, propose: Callable[[], Any]) -> Any:
        part = self._argument(position)
        if isinstance(part, Lit | Var) and is_scalar(part):
            return self._attribute_value(part, propose)
        tensor = self.input(position)
        length = tensor.shape[0] if tensor.rank else 1
        if tensor.rank > 1 or not isinstance(length, int):
            raise UnsupportedOperatorError(f"{self.op} of a list whose length is not known")
        found = tuple(as_integer(tensor.element((i,) if tensor.rank else ())) for i in range(length))
        if None in found:
            raise UnsupportedOperatorError(f"{self.op} by numbers that are not known")
        return found if tensor.rank else found[0]

    # attributes

    def attribute(self, name: str, propose: Callable[[], Any], default: Any = None) -> Any:
        self.queried.add(name)
        part = dict(self.app.attrs).get(name)
        if part is None:
            said = schema_default(self.op, name, self.domain)
            self.read_values[name] = default if said is None else said
        else:
            self.read_values[name] = self._attribute_value(part, propose, default)
        return self.read_values[name]

    def _attribute_value(self, part: Term, propose: Callable[[], Any], default: Any = None) -> Any:
        """Return a number as written, or the value of an attribute of the outer operator."""
        if isinstance(part, Lit):
            return part.value
        assert isinstance(part, Var), f"{part} is computed"
        return self.outer.attribute(part.name, propose, default)

    def read_unmodeled_attribute(self, name: str) -> Any:
        return self.attribute(name, lambda: None)

    def require_absent_beside(self, name: str, what: str) -> None:
        self.queried.add(name)
        if name in dict(self.app.attrs):
            raise UndefinedOperatorError(f"{self.op}: {name} beside {what}")

    def cast_target(self) -> DType:
        return DType(self.attribute("to", lambda: OneOf((int(DType.FLOAT),))))


# -- what the text says beside a body ----------------------------------------------------------------------------------


def check_equal_shapes(node: OpContext) -> None:
    """Require that two operands have one shape."""
    require_shape(node, node.input(1).shape, node.input(0).shape, "its operands have different shapes")


def check_label_shapes(node: OpContext) -> None:
    """Require one class for each position of the scores, and one weight for each class."""
    scores, labels, weights = node.input(0), node.input(1), node.optional_input(2)
    if scores.rank < 2:
        raise UndefinedOperatorError(f"{node.op} of scores without classes")
    require_shape(node, labels.shape, (scores.shape[0], *scores.shape[2:]), "not one label for each place")
    if weights is not None:
        require_shape(node, weights.shape, scores.shape[1:2], "not one weight for each class")
    if node.attribute("ignore_index", lambda: OneOf((None,))) is None:
        node.require_indices(labels, scores.shape[1], from_end=False)

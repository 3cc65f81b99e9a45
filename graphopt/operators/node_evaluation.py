"""Evaluation of one node on constant inputs.

The operators are the onnx package's own (`onnx.reference`), or ONNX Runtime's in a session of one node; only those that
numpy has, for large weights, are written here. Denotations are not evaluated: they are over real numbers, element by
element, and a folded constant has to hold the floats that ONNX Runtime computes. Knows no graph: a caller brings a
`Node` for its operator and attributes, and arrays for its inputs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from onnx import AttributeProto, ModelProto, NodeProto
from onnx.defs import OpSchema

from graphopt.base import ort
from graphopt.base.dtype import DType
from graphopt.base.errors import UsageError
from graphopt.ir import schemas
from graphopt.ir.graph import Node
from graphopt.ir.types import TensorType
from graphopt.operators.movement_ops import ENDLESS_ENDS
from graphopt.operators.operator import ReferenceFidelity
from graphopt.operators.operator_classes import lookup_operator
from graphopt.operators.proto_conversion import node_to_proto, type_to_proto

log = logging.getLogger(__name__)

Array: TypeAlias = NDArray[Any]
Arrays: TypeAlias = tuple[Array, ...]

_HALF_DTYPES = (DType.FLOAT16, DType.BFLOAT16)


def evaluate_node(
    node: Node, inputs: Sequence[Array | None], *, float64: bool = False, as_runtime: bool = True
) -> Arrays | None:
    """Return the outputs of a node on these inputs (its own are not looked at), None where they cannot be told.

    The result is what ONNX Runtime computes: half precision goes through float32, as its CPU kernels do. With
    `float64`, floats are widened first and results stay wide, for weight arithmetic that rounds once, at its end. That
    is no node of a model, and neither is what moves weights on the way to it, which may be of two types of floats:
    unless it is to be `as_runtime` computes, ONNX Runtime's kernels have no say.
    """
    if node.version == 0 or node.has_bodies or _is_undefined_behavior(node, inputs):
        return None
    wide = [_widen(array, node, float64) for array in inputs]
    while wide and wide[-1] is None:
        wide.pop()
    with np.errstate(all="ignore"):
        try:
            results = (
                _evaluate_and_cross_check(node, wide)
                if as_runtime and not float64 and _has_runtime()
                else _evaluate_by_first_available(node, wide)
            )
        except _RefusedNodeError as error:
            log.debug("ONNX Runtime refuses %s: %s", node.op, error)
            return None
    halves = {DType.from_numpy(array.dtype) for array in inputs if array is not None} & set(_HALF_DTYPES)
    if results is None or float64 or len(halves) != 1 or node.op == "Cast":
        return results
    half = halves.pop().numpy  # what was widened goes back to it
    return tuple(array.astype(half) if array.dtype == np.float32 else array for array in results)


LARGE_INPUT_ELEMENTS = 1 << 18
"""Elements of inputs above which `onnx.reference` is tried last: it copies and loops."""


def _evaluate_by_first_available(node: Node, inputs: Sequence[Array | None]) -> Arrays | None:
    """Return the result of the reference; for large inputs, or where it fails, that of numpy or ONNX Runtime."""
    ways = [_evaluate_by_reference, evaluate_by_runtime]
    if _element_count(inputs) > LARGE_INPUT_ELEMENTS:
        ways = [_evaluate_by_numpy, evaluate_by_runtime, _evaluate_by_reference]
    if _reads_empty_input(node, inputs):
        ways.remove(evaluate_by_runtime)
    for way in ways:
        with suppress(_RefusedNodeError):
            results = way(node, inputs)
            if results is not None:
                return results
    return None


def _evaluate_and_cross_check(node: Node, inputs: Sequence[Array | None]) -> Arrays | None:
    """Return the result of ONNX Runtime, None if it has none or the reference disagrees.

    They are known to differ on scalars, on tensors without elements and on integers that overflow, so both are asked.
    What is large is asked of one of them, and so is what the reference may take long for. The reference alone is
    believed of what moves elements.

    Raises:
        _Refused: ONNX Runtime does not take the node.
    """
    exact, size = is_reference_exact(node, inputs), _element_count(inputs)
    if not exact and _reads_empty_input(node, inputs):
        return None
    only_moves = exact and (lookup_operator(node.op, node.domain).is_movement or node.op == "Cast")
    if only_moves and size > LARGE_INPUT_ELEMENTS:
        return _evaluate_by_first_available(node, inputs)
    native = evaluate_by_runtime(node, inputs)
    if native is None:
        return _evaluate_by_reference(node, inputs) if only_moves else None
    is_whole = all(array is None or array.dtype.kind in "iub" for array in inputs)
    is_compared = size <= LARGE_INPUT_ELEMENTS if exact else is_whole and size <= MAX_REFERENCE_ELEMENTS
    expected = _evaluate_by_reference(node, inputs) if is_compared else None
    if expected is None or not (exact or all(array.dtype.kind in "iub" for array in native)):
        return native
    if len(native) == len(expected) and all(map(_are_bit_equal, native, expected)):
        return native
    log.debug("ONNX Runtime and onnx.reference disagree on %s", node.op)
    return None


def _are_bit_equal(native: Array, expected: Array) -> bool:
    """Return whether two results are equal bit for bit, all NaNs being one."""
    is_text = native.dtype.kind in "OU" and expected.dtype.kind in "OU"
    if native.shape != expected.shape or not (is_text or native.dtype == expected.dtype):
        return False
    equal = native == expected
    if not is_text and DType.from_numpy(native.dtype).is_float:
        equal = (equal & (np.signbit(native) == np.signbit(expected))) | (np.isnan(native) & np.isnan(expected))
    return bool(equal.all())


MAX_REFERENCE_ELEMENTS = 4096
"""Elements of inputs up to which the reference is compared though it may loop."""


def _element_count(inputs: Sequence[Array | None]) -> int:
    return sum(array.size for array in inputs if array is not None)


def _reads_empty_input(node: Node, inputs: Sequence[Array | None]) -> bool:
    """Return whether an input is empty: some kernels of ONNX Runtime then end the process, or leave results unwritten.

    A few operators may have empty inputs behind the first.
    """
    read = inputs[:1] if node.op in ("Resize", "ScatterElements", "ScatterND") else inputs
    return any(array is not None and not array.size for array in read)


def is_reference_exact(node: Node, inputs: Sequence[Array | None]) -> bool:
    """Return whether the reference and ONNX Runtime agree bit for bit, in whatever order they compute."""
    operator, dtypes = (
        lookup_operator(node.op, node.domain),
        {DType.from_numpy(array.dtype) for array in inputs if array is not None},
    )
    if operator.reference_fidelity is ReferenceFidelity.NOWHERE:
        return False
    if node.op == "Cast" and (DType.STRING in dtypes or node.attrs.get("to") == DType.STRING):
        return False  # how a number is spelled is ONNX Runtime's to say
    whole = all(dtype.is_integer or dtype is DType.BOOL for dtype in dtypes)
    return whole or operator.reference_fidelity is ReferenceFidelity.EVERYWHERE


def _is_undefined_behavior(node: Node, inputs: Sequence[Array | None]) -> bool:
    """Return whether ONNX leaves the result open: integers divided by 0, a float that an integer type cannot hold."""
    if node.op in ("Div", "Mod") and len(inputs) == 2 and inputs[1] is not None and inputs[1].dtype.kind in "iu":
        dividend, divisor = inputs[0], inputs[1]
        if dividend is None or divisor.dtype.kind == "u":
            return not np.all(divisor)
        least = np.iinfo(divisor.dtype).min  # divided by -1, it ends the process
        return bool(not np.all(divisor) or ((divisor == -1).any() and (dividend == least).any()))
    if inputs and inputs[0] is not None and inputs[0].dtype.kind in "iu" and may_lose_precision(node.op, inputs[0]):
        return True
    if node.op == "Slice" and len(inputs) > 4:  # an end that ONNX Runtime takes for one in either direction
        return inputs[2] is not None and bool(np.isin(inputs[2], ENDLESS_ENDS).any())
    if node.op == "Reshape" and node.attrs.get("allowzero") and len(inputs) > 1 and inputs[1] is not None:
        return bool((inputs[1] == 0).any() and (inputs[1] == -1).any())
    if node.op == "Squeeze" and len(inputs) > 1:  # of no axis, which ONNX Runtime takes for all of size 1
        return inputs[1] is not None and not inputs[1].size
    if node.op != "Cast" or inputs[0] is None or not DType.from_numpy(inputs[0].dtype).is_float:
        return False
    target = node.attrs.get("to")
    if not isinstance(target, int) or not DType(target).is_integer:
        return False
    low, high = DType(target).limits
    values = inputs[0].astype(np.float64)
    return not bool(np.all((values > low - 1) & (values < high + 1)))


MAX_EXACT_INTEGER = 2.0**53
"""Integer up to which double precision represents all."""


def may_lose_precision(op: str, integers: Array) -> bool:
    """Return whether a reduction of these integers, along any axes, may exceed those that ONNX Runtime keeps exact.

    It adds and multiplies them in double precision, and saturates results beyond the type.
    """
    if op in ("ReduceMax", "ReduceMin") or not op.startswith("Reduce"):
        return False
    magnitudes = np.maximum(np.abs(integers.astype(np.float64)), 1)
    with np.errstate(over="ignore"):
        if op == "ReduceProd":
            most = magnitudes.prod()
        else:
            most = (magnitudes if op in ("ReduceSum", "ReduceMean", "ReduceL1") else magnitudes**2).sum()
    return bool(most > min(MAX_EXACT_INTEGER, DType.from_numpy(integers.dtype).limits[1]))


# -- element types -----------------------------------------------------------------------------------------------------


def _widen(array: Array | None, node: Node, float64: bool) -> Array | None:
    if array is None:
        return None
    dtype = DType.from_numpy(array.dtype)
    if float64:
        return array.astype(np.float64, copy=False) if dtype.is_float else array
    if dtype in _HALF_DTYPES and not lookup_operator(node.op, node.domain).is_movement and node.op != "Cast":
        return array.astype(np.float32)
    return array


# -- onnx.reference ----------------------------------------------------------------------------------------------------


def _evaluate_by_reference(node: Node, inputs: Sequence[Array | None]) -> Arrays | None:
    try:
        implementation = _reference_operator(node, len(inputs))
        results = None if implementation is None else implementation.run(*inputs)
    except Exception as error:  # whatever numpy or the reference raise: it cannot evaluate this
        log.debug("onnx.reference cannot compute %s: %s", node.op, error)
        return None
    if results is None or not all(isinstance(array, np.ndarray) for array in results):
        return None
    return tuple(results)


def _reference_operator(node: Node, arity: int) -> Any:
    """Return the reference's operator, which has no state: equal nodes share one."""
    schema = schemas.schema_of(node)
    if schema is None or node.domain != "":
        return None
    key = tuple((name, value, repr(value)) for name, value in sorted(node.attrs.items()))  # -0.0 is equal to 0.0
    try:
        return _cached_reference_operator(node.op, schema.since_version, key, arity, len(node.names))
    except TypeError:  # an attribute that has no hash
        return _build_reference_operator(node, schema, arity)


@lru_cache(4096)
def _cached_reference_operator(
    op: str, version: int, attrs: tuple[tuple[str, Any, str], ...], arity: int, outputs: int
) -> Any:
    schema = schemas.schema(op, "", version)
    assert schema is not None, op
    spelled = {name: value for name, value, _ in attrs}
    return _build_reference_operator(
        Node(op, (None,) * arity, ("",) * outputs, (None,) * outputs, spelled), schema, arity
    )


def _build_reference_operator(node: Node, schema: OpSchema, arity: int) -> Any:
    from onnx.reference.ops._op_list import load_op

    outputs = [f"o{i}" for i in range(len(node.names))]
    proto = node_to_proto(node, [f"i{i}" for i in range(arity)], outputs)
    defaults = _schema_defaults(node.op, schema.since_version)
    proto.attribute.extend(default for name, default in defaults.items() if name not in node.attrs)
    parameters = {"log": lambda *_: None, "opsets": {"": schema.since_version}, "verbose": 0, "new_ops": {}}
    return load_op("", node.op, schema.since_version)(proto, parameters)


@cache
def _schema_defaults(op: str, version: int) -> Mapping[str, AttributeProto]:
    """Return the defaults of attributes; the reference would take those of the newest schema."""
    schema = schemas.schema(op, "", version)
    assert schema is not None, op
    protos = {name: attribute.default_value for name, attribute in schema.attributes.items()}
    return {name: proto for name, proto in protos.items() if proto.type != AttributeProto.UNDEFINED}


# -- numpy -------------------------------------------------------------------------------------------------------------


def _evaluate_by_numpy(node: Node, inputs: Sequence[Array | None]) -> Arrays | None:
    """Return the result of float64 arithmetic, or a view where elements only change shape or order."""
    given = [array for array in inputs if array is not None]
    if not _is_supported_by_numpy(node, given) or len(given) != len(inputs):
        return None
    try:
        if node.op in NUMPY_VIEWS:
            return (NUMPY_VIEWS[node.op](node.attrs, *given),)
        return (_ARITHMETIC[node.op](*given),)
    except (IndexError, ValueError) as error:  # shapes and axes that do not fit: a node that cannot be
        log.debug("numpy cannot compute %s: %s", node.op, error)
        return None


def _is_supported_by_numpy(node: Node, given: Sequence[Array]) -> bool:
    """Return whether numpy has the operator: in its newest version, and with these inputs."""
    if node.domain or node.version != schemas.newest_version(node.op):
        return False
    if node.op in NUMPY_VIEWS:
        return len(given) == (2 if node.op in ("Reshape", "Squeeze", "Unsqueeze") else 1)
    arity = 1 if node.op in ("Neg", "Abs", "Sqrt", "Reciprocal") else 2
    return node.op in _ARITHMETIC and len(given) == arity and all(array.dtype == np.float64 for array in given)


_ARITHMETIC: Mapping[str, Callable[..., Array]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "MatMul": np.matmul,
    "Neg": np.negative,
    "Abs": np.abs,
    "Sqrt": np.sqrt,
    "Reciprocal": np.reciprocal,
}


def _reshape(attrs: Mapping[str, Any], array: Array, sizes: Array) -> Array:
    copied = not attrs.get("allowzero", 0)
    return array.reshape([array.shape[i] if copied and size == 0 else size for i, size in enumerate(sizes.tolist())])


NUMPY_VIEWS: Mapping[str, Callable[..., Array]] = {
    "Transpose": lambda attrs, array: np.transpose(array, attrs.get("perm")),
    "Flatten": lambda attrs, array: array.reshape(prod(array.shape[: attrs.get("axis", 1)]), -1),
    "Reshape": _reshape,
    "Squeeze": lambda _, array, axes: np.squeeze(array, tuple(axes.tolist())),
    "Unsqueeze": lambda _, array, axes: np.expand_dims(array, tuple(axes.tolist())),
    "Identity": lambda _, array: array,
}
"""Operators whose result has the elements of a constant, in their order or another."""


# -- ONNX Runtime ------------------------------------------------------------------------------------------------------


def _has_runtime() -> bool:
    """Return whether ONNX Runtime is installed; folding does without."""
    try:
        ort.require_onnxruntime()
    except UsageError:
        return False
    return True


class _RefusedNodeError(Exception):
    """ONNX Runtime rejects a node, or refuses to run it on these inputs."""


INVALID_MODEL_ERRORS = frozenset({"InvalidArgument", "InvalidGraph", "InvalidProtobuf"})
"""Errors of ONNX Runtime, by their classes, that say that a model or its inputs are not as ONNX allows."""
_REFUSAL_ERRORS = INVALID_MODEL_ERRORS | {"Fail", "RuntimeException"}
"""Errors that refuse a node; the usual other is that there is no kernel for these types."""


def evaluate_by_runtime(node: Node, inputs: Sequence[Array | None]) -> Arrays | None:
    """Return the result of ONNX Runtime, None if it has no kernel, not even of an older version.

    Raises:
        _Refused: it does not take the node.
    """
    names = ["" if array is None else f"i{index}" for index, array in enumerate(inputs)]
    feeds = {name: array for name, array in zip(names, inputs, strict=True) if array is not None}
    outputs = [f"o{index}" for index in range(len(node.names))]
    proto = node_to_proto(node, names, outputs)
    for version in _compatible_versions(node.op, node.domain, node.version):
        try:
            model = _build_single_node_model(proto, node.domain, version, feeds, outputs)
            results = ort.make_cpu_session(model.SerializeToString(), threads=1).run(outputs, feeds)
        except Exception as error:  # its errors have no common type
            log.debug("ONNX Runtime cannot compute %s(%d): %s", node.op, version, error)
            if _is_of_newer_version(error):
                continue
            reads_inputs = all(array.dtype.kind in "biufOU" for array in feeds.values())  # others it may not know
            if reads_inputs and type(error).__name__ in _REFUSAL_ERRORS:
                raise _RefusedNodeError(error) from error
            return None
        return tuple(results) if all(isinstance(array, np.ndarray) for array in results) else None
    return None


def _is_of_newer_version(error: Exception) -> bool:
    """Return whether ONNX Runtime lacks a kernel of this version of an operator, or does not know the opset yet."""
    return type(error).__name__ == "NotImplemented" or "official support for domain" in str(error)


@cache
def _compatible_versions(op: str, domain: str, version: int) -> tuple[int, ...]:
    """Return a version of an operator, and earlier ones with the same spelling, newest first.

    ONNX Runtime lacks kernels of an operator's newest version for a while. Often a version only added types.
    """
    found, newer = [version], schemas.schema(op, domain, version)
    while newer is not None:
        older = schemas.schema(op, domain, newer.since_version - 1)
        if older is None or _schema_signature(older) != _schema_signature(newer):
            break
        found.append(older.since_version)
        newer = older
    return tuple(found)


def _schema_signature(schema: OpSchema) -> object:
    """Return the spelling of nodes by a schema: all but the types."""
    attributes = {
        name: (own.type, own.required, own.default_value.SerializeToString()) for name, own in schema.attributes.items()
    }
    formals = [(formal.name, formal.option) for formal in (*schema.inputs, *schema.outputs)]
    return attributes, formals, len(schema.inputs), schema.deprecated


def _build_single_node_model(
    proto: NodeProto, domain: str, version: int, feeds: Mapping[str, Array], outputs: Sequence[str]
) -> ModelProto:
    """Return a model of one node; the types of its outputs are for ONNX Runtime to infer."""
    model = ModelProto(ir_version=10)
    model.opset_import.add(domain=domain, version=version)
    model.graph.name = proto.op_type
    model.graph.node.append(proto)
    for name, array in feeds.items():
        model.graph.input.add(name=name, type=type_to_proto(TensorType(DType.from_numpy(array.dtype), array.shape)))
    for name in outputs:
        model.graph.output.add(name=name)
    return model

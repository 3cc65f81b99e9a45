"""Sizes of inputs that the user fixes, everywhere in a model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from graphopt.base.dtype import DType
from graphopt.base.errors import UsageError, quoted_list
from graphopt.expr import dim_formulas
from graphopt.expr.dims import Dim, NamedAtom, SymbolicDim, substitute_names
from graphopt.ir.graph import Graph, Patch, Value
from graphopt.ir.types import Shape, TensorType, Type
from graphopt.operators.inference import infer_graph, symbolic_sizes


def fix_inputs(graph: Graph, shapes: Mapping[str, Sequence[int | str | None]], dims: Mapping[str, int]) -> None:
    """Give inputs a shape, and named sizes a number, everywhere in the model; then infer it anew, in place.

    An element of a shape is a number, a name, or None for "as it is". The name of the only input may be empty.

    Raises:
        UsageError: no input or size has that name, or the model or another wish says something else.
        ModelError: some node cannot work on these shapes.
    """
    inputs = {graph[vertex].names[0]: vertex for vertex in graph.inputs}
    sizes = _named_sizes(graph, dims)
    for given_name, wanted in shapes.items():
        name = given_name or _only_input(inputs)
        if name not in inputs:
            raise UsageError(f"the model has no input '{name}'; it has {quoted_list(sorted(inputs))}")
        vertex = inputs[name]
        declared = graph.tensor_type(Value(vertex))
        if declared is None:
            raise UsageError(f"input '{name}' is no tensor: it takes no shape")
        if declared.shape is None:
            shape = tuple(SymbolicDim.fresh() if size is None else _to_dim(size) for size in wanted)
            given = replace(graph[vertex], types=(TensorType(declared.dtype, shape),))
            graph.apply(Patch({vertex: graph[vertex]}, {vertex: given}))
        else:
            _bind_sizes(name, declared.shape, wanted, sizes)
    _substitute_sizes(graph, {**sizes, **_fixed_formulas(graph, sizes)})
    infer_graph(graph, strict=True)


def _only_input(names: Iterable[str]) -> str:
    """Return the name of the only input; raises UsageError if there is another."""
    found = list(names)
    if len(found) != 1:
        raise UsageError(
            f"the model has {len(found)} inputs: say which, as in {found[0] if found else 'name'}:1,3,224,224"
        )
    return found[0]


def _to_dim(size: int | str) -> Dim:
    return SymbolicDim.named(size) if isinstance(size, str) else size


def _size_names(graph: Graph) -> set[str]:
    """Return the names of open sizes of inputs."""
    types = [graph.tensor_type(Value(vertex)) for vertex in graph.inputs]
    atoms = {size.atom for type_ in types for size in symbolic_sizes(type_)}
    return {atom.name for atom in atoms if isinstance(atom, NamedAtom)}


def _named_sizes(graph: Graph, dims: Mapping[str, int]) -> dict[str, Dim]:
    named = _size_names(graph)
    for name, size in dims.items():
        if name not in named:
            raise UsageError(f"the model's inputs have no size named '{name}'; they have {quoted_list(sorted(named))}")
        if size < 1:
            raise UsageError(f"size '{name}' cannot be {size}: sizes are 1 or more")
    return dict(dims)


def _fixed_formulas(graph: Graph, sizes: Mapping[str, Dim]) -> dict[str, Dim]:
    """Return the sizes of inputs that are computed from others, such as `past + 1`.

    Raises:
        UsageError: one would be less than 1, or another wish says something else.
    """
    known = {name: size for name, size in sizes.items() if isinstance(size, int)}
    found: dict[str, Dim] = {}
    named = _size_names(graph)
    for name in (name for name in named if _is_formula_of(name, named) and not dim_formulas.has_division(name)):
        size = dim_formulas.substitute_dims(name, {key: known[key] for key in known.keys() - {name}})
        if isinstance(size, int) and size < 1:
            raise UsageError(f"size '{name}' would be less than 1")
        if isinstance(size, int) and sizes.get(name, size) != size:
            raise UsageError(f"size '{name}' is {size}, not {sizes[name]}")
        found[name] = _to_dim(size)
    return found


def _is_formula_of(name: str, named: Collection[str]) -> bool:
    """Return whether a size is a formula of other sizes of inputs, and not a name that only looks like one."""
    if dim_formulas.parse_formula(name) is None or not {*dim_formulas.formula_names(name)} <= {*named}:
        return False
    mere = (other for other in named if dim_formulas.parse_formula(other) is None and not other.isidentifier())
    return not any(other in name for other in mere)


def _bind_sizes(name: str, shape: Shape, wanted: Sequence[int | str | None], sizes: dict[str, Dim]) -> None:
    """Record the sizes wanted for an input, by the names that it declares."""
    printed = TensorType(DType.UNDEFINED, shape)
    declared = str(printed).partition("[")[2].rstrip("]")
    if len(shape) != len(wanted):
        raise UsageError(f"input '{name}' has {len(shape)} axes ({declared}), not {len(wanted)}")
    for axis, (own, size) in enumerate(zip(shape, wanted, strict=True)):
        if size is None or size == own or str(own) == size:
            continue
        if isinstance(size, int) and size < 0:
            raise UsageError(f"axis {axis} of input '{name}' cannot be {size}")
        if isinstance(own, int):
            raise UsageError(f"axis {axis} of input '{name}' is {own} in the model ({declared}), not {size}")
        new = _to_dim(size)
        if sizes.setdefault(str(own), new) != new:
            raise UsageError(f"axis {axis} of input '{name}' is '{own}', which is {sizes[str(own)]}, not {size}")


def _substitute_sizes(graph: Graph, sizes: Mapping[str, Dim]) -> None:
    """Replace named sizes in every type and in known contents, in bodies too."""
    graph.output_types = tuple(substitute_in_type(type_, sizes) for type_ in graph.output_types)
    changed = {}
    for vertex, node in graph.vertices_and_nodes():
        types = tuple(substitute_in_type(type_, sizes) for type_ in node.types)
        if types != node.types:
            changed[vertex] = replace(node, types=types, contents=())
        for body in node.bodies:
            _substitute_sizes(body, sizes)
    graph.apply(Patch({vertex: graph[vertex] for vertex in changed}, changed))


def substitute_in_type(type_: Type | None, sizes: Mapping[str, Dim]) -> Type | None:
    """Return a type with sizes in the place of names."""
    if not isinstance(type_, TensorType) or type_.shape is None or type_.is_static:
        return type_
    return TensorType(type_.dtype, tuple(substitute_names(dim, sizes) for dim in type_.shape))

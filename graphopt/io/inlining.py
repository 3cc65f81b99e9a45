"""Local functions in the place of their calls: the inliner of the onnx package, and what it leaves undone.

It puts no default of an attribute where a call lacks it. Of the functions that it keeps it forgets the defaults and
the functions that they call, and it says nothing of them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import onnx.inliner
from onnx import FunctionProto, ModelProto

from graphopt.base.errors import ModelError
from graphopt.io.model_validation import FunctionKey, all_nodes, called_function, function_key
from graphopt.ir import schemas

log = logging.getLogger(__name__)


def inline_functions(
    model: ModelProto, functions: Sequence[FunctionProto], reasons: Mapping[FunctionKey, str]
) -> ModelProto | None:
    """Return a model with its functions inlined that can be; None, with a warning, where none of them can.

    Args:
        model: gets the defaults of attributes written into its calls.
        functions: those of the model as they came: what is kept is kept like this.
        reasons: why some will not be inlined, where the caller knows.

    Raises:
        ModelError: the inliner refuses the model.
    """
    if _may_lack_defaults(model):
        log.warning("the local functions are not inlined: one hands on an attribute that a call of it lacks")
        return None
    _write_default_attributes(model)
    try:
        result = onnx.inliner.inline_local_functions(model)
    except Exception as error:  # the inliner is C++: it has no error type of its own
        raise ModelError(f"the model's local functions cannot be inlined: {error}") from error
    kept = set(map(_key_of, result.functions))
    for function in functions:
        if _key_of(function) in kept:
            why = reasons.get(_key_of(function)) or _version_conflict(function, model) or "the onnx package keeps it"
            log.warning("the function %s.%s is not inlined: %s", function.domain, function.name, why)
    if complaint := _import_domains(result, [each for each in model.functions if _key_of(each) not in kept]):
        log.warning("the local functions are not inlined: %s", complaint)
        return None
    needed = _transitive_callees(functions, kept)
    del result.functions[:]
    result.functions.extend(function for function in functions if _key_of(function) in needed)
    return result


def _key_of(function: FunctionProto) -> FunctionKey:
    return function_key(function.domain, function.name, function.overload)


def _transitive_callees(functions: Iterable[FunctionProto], kept: Iterable[FunctionKey]) -> set[FunctionKey]:
    """Return the functions that are kept, with those that they call."""
    known = {_key_of(function): function for function in functions}
    found, waiting = set[FunctionKey](), list(kept)
    while waiting:
        key = waiting.pop()
        if key in known and key not in found:
            found.add(key)
            waiting += map(called_function, all_nodes(known[key].node))
    return found


# -- defaults ----------------------------------------------------------------------------------------------------------


def _write_default_attributes(model: ModelProto) -> None:
    """Write into every call the attributes that it leaves to their defaults."""
    defaults = {_key_of(function): function.attribute_proto for function in model.functions if function.attribute_proto}
    if not defaults:
        return
    for node in all_nodes(chain(model.graph.node, *(function.node for function in model.functions))):
        given = {attribute.name for attribute in node.attribute}
        node.attribute.extend(each for each in defaults.get(called_function(node), ()) if each.name not in given)


def _may_lack_defaults(model: ModelProto) -> bool:
    """Return whether a call may lack an attribute that its function hands on to one which has a default for it.

    Only the inliner would know in which of the calls the default is meant.
    """
    defaults = {_key_of(each): {attribute.name for attribute in each.attribute_proto} for each in model.functions}
    hands_on = any(
        attribute.ref_attr_name in function.attribute and attribute.name in defaults.get(called_function(node), ())
        for function in model.functions
        for node in all_nodes(function.node)
        for attribute in node.attribute
    )
    if not hands_on:
        return False
    asked = {_key_of(function): set(function.attribute) for function in model.functions}
    calls = all_nodes(chain(model.graph.node, *(function.node for function in model.functions)))
    return any(asked.get(called_function(node), set()) - {each.name for each in node.attribute} for node in calls)


# -- domains -----------------------------------------------------------------------------------------------------------


def _version_conflict(function: FunctionProto, model: ModelProto) -> str:
    """Say in which domain a function is of another version than its model; nothing where it is in none."""
    versions = {schemas.normalize_domain(entry.domain): entry.version for entry in model.opset_import}
    for entry in function.opset_import:
        domain = schemas.normalize_domain(entry.domain)
        if versions.get(domain, entry.version) != entry.version:
            return f"it is in opset {entry.version} of {domain or 'ai.onnx'}, and the model in {versions[domain]}"
    return ""


def _import_domains(model: ModelProto, functions: Iterable[FunctionProto]) -> str:
    """Import what only functions imported that were inlined; say where they do not agree on a version."""
    for function in functions:
        if complaint := _version_conflict(function, model):
            return f"of {function.domain}.{function.name}, {complaint}"
        imported = {schemas.normalize_domain(entry.domain) for entry in model.opset_import}
        model.opset_import.extend(
            e for e in function.opset_import if schemas.normalize_domain(e.domain) not in imported
        )
    return ""

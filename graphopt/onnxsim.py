"""The front door of onnxsim, for code that is ported to graphopt by changing an import."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from graphopt.base.errors import UsageError
from graphopt.io import onnx_io
from graphopt.language import rule_library
from graphopt.pipeline import optimize
from graphopt.rewrite.passes import PASSES

if TYPE_CHECKING:
    import onnx


def simplify(
    model: onnx_io.ModelSource,
    check_n: int = 0,
    perform_optimization: bool = True,
    skip_fuse_bn: bool = False,
    overwrite_input_shapes: Mapping[str, Sequence[int]] | None = None,
    test_input_shapes: Mapping[str, Sequence[int]] | None = None,
    skipped_optimizers: Sequence[str] | None = None,
    skip_constant_folding: bool = False,
    input_data: Mapping[str, Any] | None = None,
    dynamic_input_shape: bool = False,  # noqa: ARG001  # dynamic shapes need no option here
    *,
    target_opset_version: int | None = None,
    **others: object,
) -> tuple[onnx.ModelProto, bool]:
    """`onnxsim.simplify` with its keyword names, for code that is ported by changing an import.

    Rules alone are applied, and nothing is timed: `optimize` is what searches. Returns the model and whether the check
    passed; with `check_n=0`, as there, no check is made and the answer is True; any other number is one check. Dynamic
    shapes need no option. Names in `skipped_optimizers` that graphopt does not have, and keywords of onnxsim's that
    mean nothing here, are warned about.

    Raises:
        UsageError: `test_input_shapes`, which has no counterpart: give `input_data`; or as `optimize` does.
        ModelError: as `optimize` does.
    """
    if test_input_shapes:
        raise UsageError("test_input_shapes has no counterpart in graphopt: give input_data")
    for keyword in others:
        warnings.warn(f"graphopt has no option '{keyword}': it is ignored", stacklevel=2)
    names = {rule.name for rule in rule_library.load_rules()} | {pass_.name for pass_ in PASSES}
    wanted = [*(skipped_optimizers or ())]
    for name in set(wanted) - names:
        warnings.warn(f"graphopt has no rule or pass '{name}' to skip", stacklevel=2)
    skip = [name for name in wanted if name in names]
    skip += [name for name in names if skip_fuse_bn and name.startswith("fuse_bn_into_")]
    skip += ["fold_constants"] * skip_constant_folding
    result = optimize(
        model,
        skip=sorted(names) if not perform_optimization else skip,
        check=check_n > 0,
        input_shapes=overwrite_input_shapes,
        inputs=input_data,
        target_opset=target_opset_version,
        cost="none",
    )
    return result.model, result.ok or check_n == 0

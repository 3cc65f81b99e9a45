"""graphopt as a pass of Olive's workflows. Imports olive, which graphopt itself does not need.

Olive finds passes in a package configuration: `python -m graphopt.olive package.json` writes Olive's own with this pass
in it, for `olive run --config workflow.json --package-config package.json`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import Field
from pathlib import Path
from typing import Any

from olive.hardware.accelerator import AcceleratorSpec
from olive.model import ONNXModelHandler
from olive.model.utils import resolve_onnx_path
from olive.package_config import OlivePackageConfig
from olive.passes import Pass
from olive.passes.pass_config import BasePassConfig, PassConfigParam

from graphopt.base import files
from graphopt.base import option_values as forms
from graphopt.base.errors import OutputError
from graphopt.base.option_fields import Option, iter_options
from graphopt.options import Options
from graphopt.pipeline import optimize

MODULE = "graphopt.olive"
"""This module by its name, also when it is run."""
_FORM_TYPES = {
    forms.NAMES: list[str],
    forms.TOOLS: list[str],
    forms.PATHS: list[str],
    forms.DIMS: dict[str, int | list[int]],
    forms.SHAPES: dict[str, list[int | str | None]],
    forms.SETTINGS: dict[str, str],
}
"""Types in a workflow of options that a shell writes in a form of its own; arrays cannot be in a workflow."""


class GraphoptOptimizer(Pass):
    """Optimize an ONNX model with graphopt, for the execution provider of the accelerator.

    Its options are those of `graphopt.optimize`, but for the provider.
    """

    @classmethod
    def _default_config(cls, accelerator_spec: AcceleratorSpec) -> dict[str, PassConfigParam]:  # noqa: ARG003 - Olive's
        return {
            field.name: PassConfigParam(type_=kind, default_value=_default(field), description=said.help)
            for field, said in iter_options(Options)
            if field.name != "provider" and (kind := _workflow_type(field, said)) is not None
        }

    @staticmethod
    def is_accelerator_agnostic(accelerator_spec: AcceleratorSpec) -> bool:  # noqa: ARG004 - Olive's
        """Return False: what is fast is measured, and differs from device to device."""
        return False

    def _run_for_config(
        self, model: ONNXModelHandler, config: BasePassConfig, output_model_path: str
    ) -> ONNXModelHandler:
        names = self._default_config(self.accelerator_spec)
        given = {name: value for name, value in config.model_dump().items() if name in names}
        provider = self.accelerator_spec.execution_provider or "cpu"
        result = optimize(model.model_path, provider=provider, **given)
        target = Path(resolve_onnx_path(output_model_path, Path(model.model_path).name))
        target.parent.mkdir(parents=True, exist_ok=True)
        result.save(target)
        if any(target.parent.glob(f"{target.name}.*data")):
            return ONNXModelHandler(model_path=str(target.parent), onnx_file_name=target.name)
        return ONNXModelHandler(model_path=str(target))


def _workflow_type(field: Field[Any], said: Option) -> Any:
    """Return the type of an option in a workflow; None for one that it cannot have."""
    if not said.in_shell:
        return None
    if said.form is not None:
        return _FORM_TYPES.get(said.form)
    kind = said.type or type(field.default)
    return str if kind is Path else int | str if field.name == "target_opset" else kind


def _default(field: Field[Any]) -> Any:
    return list(field.default) if isinstance(field.default, tuple) else field.default


def package_config() -> Mapping[str, Any]:
    """Return Olive's package configuration with this pass in it, as JSON has it."""
    found: dict[str, Any] = json.loads(Path(OlivePackageConfig.get_default_config_path()).read_text(encoding="utf-8"))
    every = ["*"]
    found["passes"][GraphoptOptimizer.__name__] = {
        "module_path": f"{MODULE}.{GraphoptOptimizer.__name__}",
        "supported_providers": every,
        "supported_accelerators": every,
        "supported_precisions": every,
    }
    return found


def main() -> None:
    """Write the package configuration to the file that is named, or to stdout."""
    text = json.dumps(package_config(), indent=4) + "\n"
    match sys.argv[1:]:
        case []:
            sys.stdout.write(text)
        case [path] if not path.startswith("-"):
            try:
                with files.naming_write_errors(Path(path)):
                    files.write_text(Path(path), text)
            except OutputError as error:
                sys.exit(f"graphopt: {error}")
        case _:
            sys.exit(f"usage: python -m {MODULE} [package.json]")


if __name__ == "__main__":
    main()

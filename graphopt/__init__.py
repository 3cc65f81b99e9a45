"""graphopt: rewrites ONNX models into equal, faster ones, by rules that are proved.

`optimize` and `simplify` are the front doors. Names are loaded when first used, so that `import graphopt` is quick
and loads neither onnxruntime nor z3.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from graphopt.base.errors import GraphoptError as GraphoptError
    from graphopt.language.rule import Rule as Rule
    from graphopt.options import Options as Options
    from graphopt.pipeline import Result as Result
    from graphopt.pipeline import optimize as optimize
    from graphopt.pipeline import simplify as simplify

__version__ = "0.1.0"

_HOMES = {
    "GraphoptError": "graphopt.base.errors",
    "Options": "graphopt.options",
    "Result": "graphopt.pipeline",
    "Rule": "graphopt.rule",
    "optimize": "graphopt.pipeline",
    "simplify": "graphopt.pipeline",
}
__all__ = ["GraphoptError", "Options", "Result", "Rule", "__version__", "optimize", "simplify"]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'graphopt' has no attribute '{name}'")

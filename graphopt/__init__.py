"""graphopt: rewrites ONNX models into equal, faster ones, by rules that are proved.

`optimize` and `simplify` are the front doors. Names are loaded when first used, so that `import graphopt` is quick
and loads neither onnxruntime nor z3.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from graphopt.base.errors import DifferenceError as DifferenceError
    from graphopt.base.errors import GraphoptError as GraphoptError
    from graphopt.base.errors import MemoryBudgetError as MemoryBudgetError
    from graphopt.base.errors import ModelError as ModelError
    from graphopt.base.errors import OutputError as OutputError
    from graphopt.base.errors import ProofError as ProofError
    from graphopt.base.errors import RecipeError as RecipeError
    from graphopt.base.errors import RuleError as RuleError
    from graphopt.base.errors import StageError as StageError
    from graphopt.base.errors import UsageError as UsageError
    from graphopt.explanation import explain as explain
    from graphopt.folders import FolderResult as FolderResult
    from graphopt.folders import optimize_folder as optimize_folder
    from graphopt.language.rule import Rule as Rule
    from graphopt.onnxsim import simplify as simplify
    from graphopt.options import Options as Options
    from graphopt.partition.pipeline_folder import partition_model as partition_model
    from graphopt.partition.plan_report import PlanReport as PlanReport
    from graphopt.partition.planning import plan_model as plan_model
    from graphopt.partition.stage_pipeline import Pipeline as Pipeline
    from graphopt.pipeline import optimize as optimize
    from graphopt.report.report import Report as Report
    from graphopt.report.report import report_schema as report_schema
    from graphopt.result import Result as Result
    from graphopt.runtime.memory import MemoryReport as MemoryReport
    from graphopt.runtime.memory import measure_memory as measure_memory
    from graphopt.search.recipe import Recipe as Recipe
    from graphopt.search.recomputation_budget import MemoryBudget as MemoryBudget
    from graphopt.training import TrainingResult as TrainingResult
    from graphopt.training import grad as grad

__version__ = "0.1.0"

_HOMES = {
    "DifferenceError": "graphopt.base.errors",
    "FolderResult": "graphopt.folders",
    "GraphoptError": "graphopt.base.errors",
    "MemoryBudget": "graphopt.search.recomputation_budget",
    "MemoryBudgetError": "graphopt.base.errors",
    "MemoryReport": "graphopt.runtime.memory",
    "ModelError": "graphopt.base.errors",
    "Options": "graphopt.options",
    "OutputError": "graphopt.base.errors",
    "Pipeline": "graphopt.partition.stage_pipeline",
    "PlanReport": "graphopt.partition.plan_report",
    "ProofError": "graphopt.base.errors",
    "Recipe": "graphopt.search.recipe",
    "RecipeError": "graphopt.base.errors",
    "Report": "graphopt.report.report",
    "Result": "graphopt.result",
    "Rule": "graphopt.rule",
    "RuleError": "graphopt.base.errors",
    "StageError": "graphopt.base.errors",
    "TrainingResult": "graphopt.training",
    "UsageError": "graphopt.base.errors",
    "explain": "graphopt.explanation",
    "grad": "graphopt.training",
    "measure_memory": "graphopt.runtime.memory",
    "optimize": "graphopt.pipeline",
    "optimize_folder": "graphopt.folders",
    "partition_model": "graphopt.partition.pipeline_folder",
    "plan_model": "graphopt.partition.planning",
    "report_schema": "graphopt.report.report",
    "simplify": "graphopt.onnxsim",
}
__all__ = [
    "DifferenceError",
    "FolderResult",
    "GraphoptError",
    "MemoryBudget",
    "MemoryBudgetError",
    "MemoryReport",
    "ModelError",
    "Options",
    "OutputError",
    "Pipeline",
    "PlanReport",
    "ProofError",
    "Recipe",
    "RecipeError",
    "Report",
    "Result",
    "Rule",
    "RuleError",
    "StageError",
    "TrainingResult",
    "UsageError",
    "__version__",
    "explain",
    "grad",
    "measure_memory",
    "optimize",
    "optimize_folder",
    "partition_model",
    "plan_model",
    "report_schema",
    "simplify",
]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'graphopt' has no attribute '{name}'")

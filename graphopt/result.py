"""The result of a run: the optimized model, and the report on what was done."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike, fspath
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from graphopt.base.errors import UsageError
from graphopt.base.session import Session, current_session
from graphopt.io import onnx_io
from graphopt.ir.graph import Graph
from graphopt.report.graph_outline import GraphOutline
from graphopt.report.model_explorer import model_explorer_json
from graphopt.report.page import report_graphs, report_page, report_summary
from graphopt.report.report import Report
from graphopt.runtime.session_setting import SessionSetting
from graphopt.search.recipe import Recipe

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True, eq=False)
class Result:
    """An optimized model and what was done to it. Unpacks as `model, ok = result`.

    Attributes:
        loaded: the optimized model as graphopt holds it, its weights still where they lay.
        report: what was done and found; `report.to_json()` is what the command line writes with `--report`.
        recipe: what the search decided, to be followed another time: `Path(...).write_text(result.recipe.to_json())`.
        setting: the provider, its options and the threads for which it was optimized.
        original: the graph of the original, for the page; its weights are not in it.
        session: the session of the run, which knows the operators that its rules define.
        exported: what `torch.onnx.export` had returned, if that was optimized.
    """

    loaded: onnx_io.LoadedModel
    report: Report
    setting: SessionSetting
    recipe: Recipe
    original: Graph
    session: Session = field(default_factory=current_session)
    exported: Any = None

    @cached_property
    def model(self) -> onnx.ModelProto:
        """The optimized model as a protobuf of its own; what lay in external files is still named there.

        To write it to another folder, or where it is over 2 GB and cannot be a protobuf, use `save`.
        """
        with self.session.replace():
            return onnx_io.to_proto(self.loaded)

    def to_onnx_ir(self) -> Any:
        """Return the optimized model as an `onnx_ir.Model`; what lay in external files is read where they are."""
        with self.session.replace():
            return onnx_io.to_onnx_ir(self.loaded)

    @cached_property
    def program(self) -> Any:
        """The optimized model as a `torch.onnx.ONNXProgram`, to be called as `program(*args)` or saved.

        Raises:
            UsageError: what was optimized was not the `ONNXProgram` that `torch.onnx.export` returns.
        """
        if self.exported is None:
            raise UsageError("only what torch.onnx.export(..., dynamo=True) returned has a program: use result.model")
        return type(self.exported)(self.to_onnx_ir(), self.exported.exported_program)

    @property
    def ok(self) -> bool:
        """True where the check found the models equal, also in failing the same way; False where it was left out or
        could not be made.

        `report.comparison` says which: its `verdict`, what was `skipped`, and why.
        """
        return self.report.comparison is not None and self.report.comparison.ok

    @property
    def changed(self) -> bool:
        """True where anything was rewritten."""
        return bool(self.report.rewrites)

    @property
    def is_converted(self) -> bool:
        """True where the model is in another opset, inputs of it were fixed, or local functions were inlined."""
        before, after = self.report.before, self.report.after
        return self.loaded.inlined or (before.opsets, before.inputs) != (after.opsets, after.inputs)

    def save(self, path: str | PathLike[str], *, external: bool | None = None, weights: str = "") -> int:
        """Write the model and return its size in bytes; a reader of the path never finds half of it.

        `external` puts weights into `<path>.data`, or `<path>.<digest>.data` to replace others; by default only above
        1.9 GB. `weights` is another name for that file, taken if there is none of that name.

        Raises:
            OutputError: it cannot be written; what was there stays.
        """
        with self.session.replace():
            return onnx_io.save_model(self.loaded, path, external=external, weights=weights)

    def session_code(self, path: str | PathLike[str]) -> str:
        """Return the Python that opens a session of the model, saved at a path, as it was optimized for."""
        memory = self.report.memory
        return self.setting.python_code(fspath(path), () if memory is None else memory.option_lines)

    def to_html(self) -> str:
        """Return the report as a page of its own, with both graphs and every rewrite; it needs no other file."""
        with self.session.replace():
            return report_page(self.report, *self._outlines())

    def to_model_explorer(self) -> str:
        """Return both graphs as JSON for Google's Model Explorer."""
        with self.session.replace():
            pair = report_graphs(self.report, *self._outlines())
            return model_explorer_json(pair, PurePath(self.report.source).name)

    def _outlines(self) -> tuple[GraphOutline, GraphOutline]:
        return GraphOutline.from_graph(self.original), GraphOutline.from_graph(self.loaded.graph)

    def _repr_html_(self) -> str:
        """Return the head of that page, without its graphs and scripts, for notebooks."""
        with self.session.replace():
            return report_summary(self.report)

    def __repr__(self) -> str:
        return f"<Result: {self.report!r}>"

    def __iter__(self) -> Iterator[Any]:
        yield self.model
        yield self.ok

"""The tools that are compared, each through its documented default call, and one run of one of them as a process.

``python -m benchmarks.tools TASK`` is that process, the task as JSON; `run` starts it and measures it.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import onnx.inliner

from benchmarks.environment import job, one_line
from graphopt.base.files import cache_folder

SEARCH = 60.0
"""Seconds for which a tool that searches may do so, unless said otherwise: graphopt's own default."""

LIMIT = 600.0
"""Seconds, beside those for a search, after which a tool is given up."""


@dataclass(frozen=True, slots=True)
class Task:
    """One run of one tool."""

    tool: str
    source: str
    target: str
    family: str = ""
    """Family of the model's architecture."""
    provider: str = "cpu"
    threads: int = 0
    """The setting that tools which search optimize for, as `SessionSetting` takes it."""
    seconds: float = SEARCH
    """Limit of the search."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A column of the tables."""

    package: str
    """Name on the package index."""
    text: str
    """The call, as a user would write it."""
    call: Callable[[onnx.ModelProto], Any] | None = None
    """The same on a model in memory."""
    call_file: Callable[[Task], tuple[Any, dict[str, Any]]] | None = None
    """The same on a file, where the tool takes none in memory: the outcome, and what is told of a search."""
    families: Collection[str] | None = None
    """Families of architectures to which the tool applies; None for all."""
    searches: bool = False
    """The tool optimizes for one setting by measuring, so that its outcome depends on provider and threads."""

    def optimize(self, task: Task) -> tuple[Any, dict[str, Any]]:
        """Return the outcome, which should be a ModelProto, and what is told of a search.

        Raises:
            Exception: whatever the tool raises.
        """
        if self.call_file is not None:
            return self.call_file(task)
        model = onnx.load(task.source)
        return (model if self.call is None else self.call(model)), {}


def _onnxsim(model: onnx.ModelProto) -> Any:
    import onnxsim

    simplified, valid = onnxsim.simplify(model)
    if not valid:
        raise ValueError("onnxsim could not validate its result")
    return simplified


def _onnxslim(model: onnx.ModelProto) -> Any:
    import onnxslim

    return onnxslim.slim(model)


def _onnxoptimizer(model: onnx.ModelProto) -> Any:
    import onnxoptimizer

    return onnxoptimizer.optimize(model)


def _onnxscript(model: onnx.ModelProto) -> Any:
    from onnxscript import optimizer, rewriter

    return rewriter.rewrite(optimizer.optimize(model))


def _onnxscript_ort(model: onnx.ModelProto) -> Any:
    import onnx_ir
    from onnxscript.rewriter import ort_fusions

    fused = ort_fusions.optimize_for_ort(onnx_ir.from_proto(model))
    return onnx_ir.to_proto(fused[0] if isinstance(fused, tuple) else fused)


def _graphopt_simplify(model: onnx.ModelProto) -> Any:
    import graphopt

    return graphopt.optimize(model, cost="none").model


def _graphopt(task: Task, target: str = "onnx") -> tuple[Any, dict[str, Any]]:
    import graphopt

    result = graphopt.optimize(
        task.source, provider=task.provider, threads=task.threads, seconds=task.seconds, target=target
    )
    timing, notes = result.report.timing, list(result.report.notes)
    if timing is None:
        return result.model, {"timed": False, "notes": notes}
    counts = {name: getattr(timing, name) for name in ("stop", "regions", "copies", "states", "trials")}
    return result.model, counts | {"timed": timing.speedup is not None, "notes": notes}


def _ort_transformers(task: Task) -> tuple[Any, dict[str, Any]]:
    from onnxruntime.transformers import optimizer

    options = {"model_type": _MODEL_TYPES[task.family], "use_gpu": task.provider != "cpu"}
    return optimizer.optimize_model(task.source, **options).model, {}


_MODEL_TYPES = {
    "BERT": "bert", "DistilBERT": "bert", "GPT-2": "gpt2", "MiniLM": "bert", "Swin": "swin", "T5": "t5", "UNet": "unet",
    "ViT": "vit", "Whisper": "bart",
}  # fmt: skip
"""The families for which onnxruntime.transformers names a type of model."""


def _timm(task: Task) -> tuple[Any, dict[str, Any]]:
    from benchmarks.models import export_reparameterized

    export_reparameterized(Path(task.source).stem, Path(task.target))
    return onnx.load(task.target), {}


PLAIN = "plain"
"""The column of a copy of the original: how far its ratios are from 1 is the noise of all others."""

PEERS: Mapping[str, Tool] = {
    "onnxsim": Tool("onnxsim", "`onnxsim.simplify(model)`", _onnxsim),
    "OnnxSlim": Tool("onnxslim", "`onnxslim.slim(model)`", _onnxslim),
    "onnxoptimizer": Tool("onnxoptimizer", "`onnxoptimizer.optimize(model)`", _onnxoptimizer),
    "onnxscript": Tool("onnxscript", "`rewriter.rewrite(optimizer.optimize(model))`, of onnxscript", _onnxscript),
}
"""The tools of others that take any file and keep to standard operators."""

_SEARCH = "`graphopt.optimize(path, provider=..., threads=..., seconds=...)`, for each setting"
_SIMPLIFY = '`graphopt.optimize(model, cost="none")`: rules alone'
_ORT_TARGET = 'the same with `target="onnxruntime"`'

OWN: Mapping[str, Tool] = {
    "graphopt-simplify": Tool("graphopt", _SIMPLIFY, _graphopt_simplify),
    "graphopt": Tool("graphopt", _SEARCH, call_file=_graphopt, searches=True),
    "graphopt-ort": Tool("graphopt", _ORT_TARGET, call_file=partial(_graphopt, target="onnxruntime"), searches=True),
}
"""The columns that the others are compared with; the last may use ONNX Runtime's own operators."""

_FUSIONS = "`onnxscript.rewriter.ort_fusions.optimize_for_ort(onnx_ir.from_proto(model))`"
_OPTIMIZER = "`onnxruntime.transformers.optimizer.optimize_model(path, model_type=..., use_gpu=...)`"
_MERGE = "`timm.utils.model.reparameterize_model(module)`, and the export of that"
_MERGED = ("FastViT", "MobileOne", "RepVGG", "RepViT")

ALL: Mapping[str, Tool] = {
    PLAIN: Tool("onnxruntime", "the original once more"),
    **PEERS,
    **OWN,
    "onnxscript-ort": Tool("onnxscript", _FUSIONS, _onnxscript_ort),
    "ort-transformers": Tool("onnxruntime", _OPTIMIZER, call_file=_ort_transformers, families=_MODEL_TYPES),
    "timm": Tool("timm", _MERGE, call_file=_timm, families=_MERGED),
}
"""The last has the model's source and changes that: no tool for a file, but what one can be held against."""


def applies(tool: str, family: str) -> bool:
    """Return whether a tool claims anything for an architecture."""
    families = ALL[tool].families
    return families is None or family in families


def count(model: onnx.ModelProto) -> int:
    """Return the nodes of the graph and of all bodies, functions inlined, except Constant, which computes nothing."""
    flat: onnx.ModelProto = onnx.inliner.inline_local_functions(model) if model.functions else model
    return _count(flat.graph)


def _count(graph: onnx.GraphProto) -> int:
    bodies = (body for node in graph.node for attribute in node.attribute for body in (attribute.g, *attribute.graphs))
    own = [node for node in graph.node if node.op_type != "Constant"]
    return len(own) + sum(_count(body) for body in bodies)


def facts(path: Path) -> dict[str, int]:
    """Return the opset, the nodes and the size of a model."""
    model = onnx.load(path)
    opset = next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
    return {"opset": opset, "nodes": count(model), "bytes": path.stat().st_size}


def run(task: Task, limit: float = LIMIT) -> dict[str, Any]:
    """Run a tool in a process of its own; return seconds and peak memory (MB) of the whole process, or the error.

    A tool that searches has the seconds of its search beside the limit, and what it tells of it is under `search`.
    graphopt finds no times of an earlier search: each run is like a user's first.
    """
    limit += task.seconds * ALL[task.tool].searches
    with _without_times() as cache:
        start = time.perf_counter()
        found = job("benchmarks.tools", json.dumps(asdict(task)), limit=limit, cache=cache)
        seconds = round(time.perf_counter() - start, 2)
    return found if "error" in found else {"seconds": seconds, **found}


@contextmanager
def _without_times() -> Iterator[str]:
    """Yield a cache for graphopt that has the user's proofs, which ship with a release, and nothing else."""
    proofs = cache_folder() / "proofs"
    proofs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "proofs").symlink_to(proofs.absolute(), target_is_directory=True)
        yield folder


def peak_memory() -> int:
    """Return that of this process so far, in MB (1e6 bytes). getrusage's on Linux includes the parent's before exec."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) // 10**6
    lines = status.read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 // 10**6


def main(task: Task) -> None:
    """Run one tool once, and print what there is to tell; the reason of a failure is the last line on stderr."""
    stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a tool prints is not what is told
    try:
        model, search = ALL[task.tool].optimize(task)
        if not isinstance(model, onnx.ModelProto):
            raise TypeError(f"returned {type(model).__name__} instead of a model")
        if task.tool == PLAIN:  # written anew, it might have other bytes
            shutil.copyfile(task.source, task.target)
        else:
            onnx.save(model, task.target)
    except Exception as error:  # whatever a tool raises is its result
        print(json.dumps(one_line(error))[1:-1], file=sys.stderr)
        sys.exit(1)
    with stdout:
        json.dump({"memory_mb": peak_memory()} | ({"search": search} if search else {}), stdout)


if __name__ == "__main__":
    main(Task(**json.loads(sys.argv[1])))

"""The tools that are compared, each through its documented default call, and one run of one of them as a whole process.

``python -m benchmarks.tools TASK`` is that process, the task as JSON; `run` starts it and measures it.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import onnx
import onnx.inliner

from graphopt.files import cache_folder

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
    """Of the model's architecture."""
    provider: str = "cpu"
    threads: int = 0
    """The setting that tools which search optimize for, as `graphopt.measure.Setting` takes it."""
    seconds: float = SEARCH
    """For the search."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A column: the package on the index, and its documented default call on a model in memory."""

    package: str
    call: Callable[[onnx.ModelProto], Any]


@dataclass(frozen=True, slots=True)
class FileTool:
    """A tool that is called with a file, for some families only."""

    package: str
    optimize: Callable[[Task], onnx.ModelProto]
    families: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TunedTool:
    """A tool that optimizes for one setting by searching: its outcome depends on provider and threads."""

    package: str
    optimize: Callable[[onnx.ModelProto, Task], Any]


def _onnxsim(model: onnx.ModelProto) -> Any:
    import onnxsim

    simplified, valid = onnxsim.simplify(model, certify=False)
    if not valid:
        raise ValueError("onnxsim could not validate its result")
    return simplified


def _onnxslim(model: onnx.ModelProto) -> Any:
    import onnxslim

    return onnxslim.slim(model)


def _onnxoptimizer(model: onnx.ModelProto) -> Any:
    import onnxoptimizer

    return onnxoptimizer.optimize(model, fixed_point=True)


def _onnxscript(model: onnx.ModelProto) -> Any:
    from onnxscript import optimizer, rewriter

    return rewriter.rewrite(optimizer.optimize(model))


def _onnxscript_ort(model: onnx.ModelProto) -> Any:
    import onnx_ir
    from onnxscript.rewriter import ort_fusions

    fused = ort_fusions.optimize_for_ort(onnx_ir.from_proto(model))
    return onnx_ir.to_proto(fused[0] if isinstance(fused, tuple) else fused)


def _graphopt_simplify(model: onnx.ModelProto) -> Any:
    """The rules that pay everywhere, and no search. As with the others, the check is left to the benchmark."""
    graphopt: Any = importlib.import_module("graphopt")
    return graphopt.optimize(model, cost="none", check=False).model


def _graphopt(model: onnx.ModelProto, task: Task) -> Any:
    graphopt: Any = importlib.import_module("graphopt")
    setting = {"provider": task.provider, "threads": task.threads, "seconds": task.seconds}
    return graphopt.optimize(model, check=False, **setting).model


def _ort_transformers(task: Task) -> onnx.ModelProto:
    from onnxruntime.transformers import optimizer

    optimized: onnx.ModelProto = optimizer.optimize_model(task.source, model_type=_MODEL_TYPES[task.family]).model
    return optimized


_MODEL_TYPES = {
    "BERT": "bert",
    "DistilBERT": "bert",
    "GPT-2": "gpt2",
    "MiniLM": "bert",
    "Swin": "swin",
    "T5": "t5",
    "UNet": "unet",
    "ViT": "vit",
    "Whisper": "bart",
}
"""The families for which onnxruntime.transformers names a type of model."""

TOOLS: Mapping[str, Tool] = {
    "onnxsim": Tool("onnxsim", _onnxsim),
    "OnnxSlim": Tool("onnxslim", _onnxslim),
    "onnxoptimizer": Tool("onnxoptimizer", _onnxoptimizer),
    "onnxscript": Tool("onnxscript", _onnxscript),
    "graphopt-simplify": Tool("graphopt", _graphopt_simplify),
}
"""Tools that keep to standard operators, and run nothing."""

TUNED: Mapping[str, TunedTool] = {"graphopt": TunedTool("graphopt", _graphopt)}
"""Tools that keep to standard operators, and measure."""

ORT_TOOLS: Mapping[str, Tool | FileTool] = {
    "onnxscript-ort": Tool("onnxscript", _onnxscript_ort),
    "ort-transformers": FileTool("onnxruntime", _ort_transformers, _MODEL_TYPES),
}
"""Tools that fuse into ONNX Runtime's own operators."""

ALL: Mapping[str, Tool | FileTool | TunedTool] = {**TOOLS, **TUNED, **ORT_TOOLS}


def applies(tool: str, family: str) -> bool:
    """Whether a tool claims anything for an architecture."""
    found = ALL[tool]
    return not isinstance(found, FileTool) or family in found.families


def versions(tools: Iterable[str]) -> dict[str, str]:
    """Of the tools' packages, and of what runs the models."""
    packages = {"onnx", "onnxruntime", "torch", *(ALL[tool].package for tool in tools)}
    return {package: version for package in sorted(packages) if (version := _version(package))}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return importlib.metadata.version("onnxruntime-gpu") if package == "onnxruntime" else ""


def count(model: onnx.ModelProto) -> int:
    """The nodes of the graph and of all bodies, local functions inlined, except Constant, which computes nothing."""
    flat: onnx.ModelProto = onnx.inliner.inline_local_functions(model) if model.functions else model
    return _count(flat.graph)


def _count(graph: onnx.GraphProto) -> int:
    bodies = (body for node in graph.node for attribute in node.attribute for body in (attribute.g, *attribute.graphs))
    own = [node for node in graph.node if node.op_type != "Constant"]
    return len(own) + sum(_count(body) for body in bodies)


def one_line(error: BaseException) -> str:
    """An exception as a cell of a table."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def run(task: Task) -> dict[str, Any]:
    """Run a tool in a process of its own: seconds and peak memory of the whole process, or the error.

    graphopt finds no times of an earlier search: each run is like a user's first.
    """
    command = [sys.executable, "-m", "benchmarks.tools", json.dumps(asdict(task))]
    limit = LIMIT + task.seconds * (task.tool in TUNED)
    with tempfile.TemporaryFile("w+") as errors, _without_times() as cache:
        start = time.perf_counter()
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=errors, env=os.environ | {"GRAPHOPT_CACHE": cache}
        )
        code = _waited(process, limit)
        seconds = time.perf_counter() - start
        errors.seek(0)
        lines = errors.read().strip().splitlines()
    if code is None:
        return {"error": f"not done after {limit:.0f} s"}
    if code:
        said = lines[-1][:200] if lines else ""
        return {"error": said if code > 0 and said else f"the process ended with code {code}"}
    return {"seconds": round(seconds, 2), "memory_mb": int(_peak(task).read_text(encoding="utf-8"))}


@contextmanager
def _without_times() -> Iterator[str]:
    """A cache for graphopt that has the user's proofs, which ship with a release, and nothing else."""
    proofs = cache_folder() / "proofs"
    proofs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "proofs").symlink_to(proofs.absolute(), target_is_directory=True)
        yield folder


def _waited(process: subprocess.Popen[bytes], limit: float) -> int | None:
    """The exit code, None after a kill."""
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return None


def _peak(task: Task) -> Path:
    """Where a process leaves its peak memory."""
    return Path(task.target).with_suffix(".peak")


def peak_memory() -> int:
    """Of this process so far, in megabytes. Linux's own note of it: getrusage's includes the parent's before exec."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1 << 20 if sys.platform == "darwin" else 1 << 10)
    lines = status.read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1000


def optimized(task: Task) -> onnx.ModelProto:
    """What the tool makes of the model, in this process.

    Raises:
        Exception: whatever the tool raises.
    """
    tool = ALL[task.tool]
    if isinstance(tool, FileTool):
        result: Any = tool.optimize(task)
    elif isinstance(tool, TunedTool):
        result = tool.optimize(onnx.load(task.source), task)
    else:
        result = tool.call(onnx.load(task.source))
    if not isinstance(result, onnx.ModelProto):
        raise TypeError(f"returned {type(result).__name__} instead of a model")
    return result


def main(task: Task) -> None:
    """One run of one tool."""
    try:
        onnx.save(optimized(task), task.target)
        _peak(task).write_text(str(peak_memory()), encoding="utf-8")
    except Exception as error:  # whatever a tool raises is its result
        print(json.dumps(one_line(error))[1:-1], file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main(Task(**json.loads(sys.argv[1])))

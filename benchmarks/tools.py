"""The tools that are compared, each through its documented default call, and one run of one of them as a process.

``python -m benchmarks.tools TASK`` is that process, the task as JSON; `run` starts it and measures it.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import onnx.inliner

from benchmarks.checks import load_inputs
from benchmarks.environment import job, one_line


@dataclass(frozen=True, slots=True)
class Task:
    """One run of one tool."""

    tool: str
    source: str
    target: str
    inputs: str = ""
    """Folder of inputs to search with, if there is one; others are made up."""
    provider: str = "cpu"
    threads: int = 0
    """The setting that tools which search optimize for, as `SessionSetting` takes it."""
    seconds: float = 0.0
    """Limit of the search, of a tool that searches."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A column of the tables."""

    package: str
    """Name on the package index."""
    text: str
    """The call, as a user would write it."""
    call: Callable[[Task], Any]
    """Returns the outcome, which should be a ModelProto; of a tool that searches also what is told of the search."""
    search: float = 0.0
    """Seconds for which the tool may search: it optimizes for one setting by measuring, so that its outcome depends on
    provider and threads. 0 for one that does not search."""
    is_engine: bool = False
    """The tool runs the original itself, instead of making ONNX Runtime another file."""


def _onnxsim(task: Task) -> Any:
    import onnxsim

    simplified, valid = onnxsim.simplify(onnx.load(task.source))
    if not valid:
        raise ValueError("onnxsim could not validate its result")
    return simplified


def _onnxslim(task: Task) -> Any:
    import onnxslim

    return onnxslim.slim(onnx.load(task.source))


def _onnxoptimizer(task: Task) -> Any:
    import onnxoptimizer

    return onnxoptimizer.optimize(onnx.load(task.source))


def _onnxscript(task: Task) -> Any:
    from onnxscript import optimizer, rewriter

    return rewriter.rewrite(optimizer.optimize(onnx.load(task.source)))


def _graphopt_simplify(task: Task) -> Any:
    import graphopt

    return graphopt.optimize(onnx.load(task.source), cost="none").model


def _graphopt(task: Task, target: str = "onnx") -> tuple[Any, dict[str, Any]]:
    import graphopt

    where: dict[str, Any] = {"provider": task.provider, "threads": task.threads}
    inputs = load_inputs(task.inputs)
    result = graphopt.optimize(task.source, inputs=inputs, seconds=task.seconds, target=target, fresh=True, **where)
    timing, told = result.report.timing, {"timed": False, "notes": list(result.report.notes)}
    if timing is not None:
        told |= {name: getattr(timing, name) for name in ("stop", "regions", "copies", "states", "trials")}
        told["timed"] = timing.speedup is not None
    return result.model, told


def _plain(task: Task) -> Any:
    return onnx.load(task.source)


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
_ORT = partial(_graphopt, target="onnxruntime")
_ORT_TARGET = 'the same with `target="onnxruntime"`: ONNX Runtime\'s own operators'

OWN: Mapping[str, Tool] = {
    "graphopt-simplify": Tool("graphopt", _SIMPLIFY, _graphopt_simplify),
    "graphopt-5s": Tool("graphopt", _SEARCH, _graphopt, search=5.0),
    "graphopt-15s": Tool("graphopt", _SEARCH, _graphopt, search=15.0),
    "graphopt": Tool("graphopt", _SEARCH, _graphopt, search=60.0),
    "graphopt-ort": Tool("graphopt", _ORT_TARGET, _ORT, search=15.0),
}
"""The columns that the others are compared with; those that search have nothing measured before."""

_OPENVINO = "`openvino.Core().compile_model(model, ...)`: the original in another engine, single precision"

ALL: Mapping[str, Tool] = {
    PLAIN: Tool("onnxruntime", "the original once more", _plain),
    **PEERS,
    **OWN,
    "openvino": Tool("openvino", _OPENVINO, _plain, is_engine=True),
}


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


def run(task: Task, limit: float) -> dict[str, Any]:
    """Run a tool in a process of its own; return seconds and peak memory (MB) of the whole process, or the error.

    A tool that searches has the seconds of its search beside the limit, and what it tells of it is under `search`.
    graphopt finds no times of an earlier search: each run is like a user's first.
    """
    limit += task.seconds
    start = time.perf_counter()
    found = job("benchmarks.tools", json.dumps(asdict(task)), limit=limit)
    seconds = round(time.perf_counter() - start, 2)
    return found if "error" in found else {"seconds": seconds, **found}


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
    tool = ALL[task.tool]
    try:
        found = tool.call(task)
        model, search = found if tool.search else (found, {})
        if not isinstance(model, onnx.ModelProto):
            raise TypeError(f"returned {type(model).__name__} instead of a model")
        if tool.call is _plain:  # written anew, it might have other bytes
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

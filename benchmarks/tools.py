"""The tools that are compared, each through its documented default call, and one run of one of them as a whole process.

``python -m benchmarks.tools TASK`` is that process, the task as JSON; `run` starts it and measures it.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import resource
import shutil
import subprocess
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

from benchmarks.checks import installed
from benchmarks.jobs import ended, late
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
    """Of the model's architecture."""
    provider: str = "cpu"
    threads: int = 0
    """The setting that tools which search optimize for, as `graphopt.runtime.sessions.Setting` takes it."""
    seconds: float = SEARCH
    """For the search."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A column: the package on the index, and its documented default call on a model in memory."""

    package: str
    call: Callable[[onnx.ModelProto], Any]
    text: str
    """The call, as a user would write it."""


@dataclass(frozen=True, slots=True)
class FileTool:
    """A tool that is called with a file."""

    package: str
    optimize: Callable[[Task], onnx.ModelProto]
    text: str
    families: Collection[str] | None = None
    """Those to which it applies; None for all."""


@dataclass(frozen=True, slots=True)
class TunedTool:
    """A tool that optimizes for one setting by searching: its outcome depends on provider and threads."""

    package: str
    optimize: Callable[[Task], tuple[onnx.ModelProto, dict[str, Any]]]
    """The outcome, and what is told of the search."""
    text: str


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
    """The rules that pay everywhere, and no search."""
    graphopt: Any = importlib.import_module("graphopt")
    return graphopt.optimize(model, cost="none").model


def _graphopt(task: Task, target: str = "onnx") -> tuple[onnx.ModelProto, dict[str, Any]]:
    graphopt: Any = importlib.import_module("graphopt")
    setting = {"provider": task.provider, "threads": task.threads, "seconds": task.seconds, "target": target}
    result = graphopt.optimize(task.source, **setting)
    timing, notes = result.report.timing, list(result.report.notes)
    if timing is None:
        return result.model, {"timed": False, "notes": notes}
    counts = {name: getattr(timing, name) for name in ("stop", "regions", "copies", "states", "trials")}
    return result.model, counts | {"timed": timing.speedup is not None, "notes": notes}


def _plain(task: Task) -> onnx.ModelProto:
    """The original."""
    return onnx.load(task.source)


def _ort_transformers(task: Task) -> onnx.ModelProto:
    from onnxruntime.transformers import optimizer

    options = {"model_type": _MODEL_TYPES[task.family], "use_gpu": task.provider != "cpu"}
    optimized: onnx.ModelProto = optimizer.optimize_model(task.source, **options).model
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


def _timm(task: Task) -> onnx.ModelProto:
    from benchmarks.models import export_reparameterized

    export_reparameterized(Path(task.source).stem, Path(task.target))
    return onnx.load(task.target)


PLAIN = "plain"
"""The column of a copy of the original: how far its ratios are from 1 is the noise of all others."""

TOOLS: Mapping[str, Tool] = {
    "onnxsim": Tool("onnxsim", _onnxsim, "`onnxsim.simplify(model)`"),
    "OnnxSlim": Tool("onnxslim", _onnxslim, "`onnxslim.slim(model)`"),
    "onnxoptimizer": Tool("onnxoptimizer", _onnxoptimizer, "`onnxoptimizer.optimize(model)`"),
    "onnxscript": Tool("onnxscript", _onnxscript, "`rewriter.rewrite(optimizer.optimize(model))`, of onnxscript"),
    "graphopt-simplify": Tool("graphopt", _graphopt_simplify, '`graphopt.optimize(model, cost="none")`: rules alone'),
}
"""Tools that keep to standard operators, and measure nothing."""

TUNED: Mapping[str, TunedTool] = {
    "graphopt": TunedTool(
        "graphopt", _graphopt, "`graphopt.optimize(path, provider=..., threads=..., seconds=...)`, for each setting"
    ),
    "graphopt-ort": TunedTool(
        "graphopt", partial(_graphopt, target="onnxruntime"), 'the same with `target="onnxruntime"`'
    ),
}
"""Tools that measure; the second may use ONNX Runtime's own operators."""

ORT_TOOLS: Mapping[str, Tool | FileTool] = {
    "onnxscript-ort": Tool(
        "onnxscript", _onnxscript_ort, "`onnxscript.rewriter.ort_fusions.optimize_for_ort(onnx_ir.from_proto(model))`"
    ),
    "ort-transformers": FileTool(
        "onnxruntime",
        _ort_transformers,
        "`onnxruntime.transformers.optimizer.optimize_model(path, model_type=..., use_gpu=...)`",
        _MODEL_TYPES,
    ),
}
"""Tools that fuse into ONNX Runtime's own operators."""

LIBRARIES: Mapping[str, FileTool] = {
    "timm": FileTool(
        "timm",
        _timm,
        "`timm.utils.model.reparameterize_model(module)`, and the export of that",
        ("FastViT", "MobileOne", "RepVGG", "RepViT"),
    ),
}
"""What has the model's source, and changes that: not tools for a file, but what they can be held against."""

ALL: Mapping[str, Tool | FileTool | TunedTool] = {
    PLAIN: FileTool("onnxruntime", _plain, "the original once more"),
    **TOOLS,
    **TUNED,
    **ORT_TOOLS,
    **LIBRARIES,
}


def applies(tool: str, family: str) -> bool:
    """Whether a tool claims anything for an architecture."""
    found = ALL[tool]
    return not isinstance(found, FileTool) or found.families is None or family in found.families


def versions(tool: str) -> dict[str, str]:
    """Of what a tool's outcomes and their timings depend on."""
    packages = {"onnx", "onnxruntime", ALL[tool].package}
    return {package: version for package in sorted(packages) if (version := installed(package))}


def revision() -> dict[str, str]:
    """Which graphopt this is: as git describes it, where it can, and the digest of its sources and proofs."""
    root = Path(__file__).parent.parent
    paths = {path.resolve() for folder in _FOLDERS for path in (root / folder).rglob("*.py")}
    digest = hashlib.sha256()
    for path in [*sorted(paths), *sorted((root / "rules").glob("*.json*"))]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    commit = _git(root, "describe", "--tags", "--always")
    changed = _git(root, "status", "--porcelain", "--", *_FOLDERS)  # a result file that grows makes no other graphopt
    described = {"graphopt": f"{commit}-dirty" if changed else commit} if commit else {}
    return {"sources": digest.hexdigest()[:16], **described}


_FOLDERS = ("graphopt", "rules", "verifier")
"""What makes graphopt's outcomes."""


def _git(root: Path, *arguments: str) -> str:
    """What git says; nothing where there is no git, or no repository."""
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


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


def run(task: Task, limit: float = LIMIT) -> dict[str, Any]:
    """Run a tool in a process of its own: seconds and peak memory (MB) of the whole process, or the error.

    A tool that searches has its seconds beside the limit. What it tells of the search is under `search`.

    graphopt finds no times of an earlier search: each run is like a user's first.
    """
    command = [sys.executable, "-m", "benchmarks.tools", json.dumps(asdict(task))]
    limit += task.seconds * (task.tool in TUNED)
    with tempfile.TemporaryFile("w+") as errors, _without_times() as cache:
        start = time.perf_counter()
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=errors, env=os.environ | {"GRAPHOPT_CACHE": cache}
        )
        code = _waited(process, limit)
        seconds = time.perf_counter() - start
        errors.seek(0)
        said = errors.read()
    if code is None:
        return {"error": late(limit)}
    if code:
        return {"error": ended(code, said)}
    told: dict[str, Any] = json.loads(_note(task).read_text(encoding="utf-8"))
    return {"seconds": round(seconds, 2), **told}


@contextmanager
def _without_times() -> Iterator[str]:
    """A cache for graphopt that has the user's proofs, which ship with a release, and nothing else."""
    proofs = cache_folder() / "proofs"
    proofs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "proofs").symlink_to(proofs.absolute(), target_is_directory=True)
        yield folder


def _waited(process: subprocess.Popen[bytes], limit: float) -> int | None:
    """The exit code, None after the limit. No process is left behind, on Ctrl-C neither: it would disturb timings."""
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        process.kill()  # does nothing to one that has ended
        process.wait()


def _note(task: Task) -> Path:
    """Where a process leaves what it has to tell."""
    return Path(task.target).with_suffix(".note")


def peak_memory() -> int:
    """Of this process so far, in MB (1e6 bytes). Linux's note of it: getrusage's includes the parent's before exec."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024) // 10**6
    lines = status.read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 // 10**6


def optimized(task: Task) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """What the tool makes of the model, in this process, and what it tells of a search.

    Raises:
        Exception: whatever the tool raises.
    """
    tool = ALL[task.tool]
    told: dict[str, Any] = {}
    if isinstance(tool, FileTool):
        result: Any = tool.optimize(task)
    elif isinstance(tool, TunedTool):
        result, search = tool.optimize(task)
        told = {"search": search}
    else:
        result = tool.call(onnx.load(task.source))
    if not isinstance(result, onnx.ModelProto):
        raise TypeError(f"returned {type(result).__name__} instead of a model")
    return result, told


def main(task: Task) -> None:
    """One run of one tool."""
    try:
        model, told = optimized(task)
        if task.tool == PLAIN:  # written anew, it might have other bytes
            shutil.copyfile(task.source, task.target)
        else:
            onnx.save(model, task.target)
        _note(task).write_text(json.dumps({"memory_mb": peak_memory(), **told}), encoding="utf-8")
    except Exception as error:  # whatever a tool raises is its result
        print(json.dumps(one_line(error))[1:-1], file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main(Task(**json.loads(sys.argv[1])))

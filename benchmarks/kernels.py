"""Time by kernel in ONNX Runtime and in OpenVINO's own runtime: where the other engine is faster, and by what.

``python -m benchmarks kernels`` writes ``benchmarks/results/kernels.jsonl`` and ``kernels.md``. OpenVINO runs the
original, ONNX Runtime what graphopt makes of it; both have one thread, single precision and a profiler. They take turns
in one process, and of each kernel's times the least counts: the clock also counts what other processes do.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import numpy as np

from benchmarks import tools
from benchmarks.checks import SEEDS, feeds
from benchmarks.engine import OPTIONS, compiled
from benchmarks.environment import job, made
from benchmarks.kernel_work import Kernel, Shape, Work, sum_by_work
from benchmarks.models import describe
from benchmarks.report import circumstances, table
from benchmarks.results import FOLDER, Results, Row, read_rows, write_rows
from benchmarks.run import LIMIT, ExportFailedError, keep_inputs, locate_source
from benchmarks.tools import Task
from graphopt.runtime.measure import (
    PreciseRatios,
    TimingPolicy,
    TimingSamples,
    TimingSchedule,
    compute_speedup,
    time_interleaved,
)
from graphopt.runtime.profile import ProfiledSession, optimized_graph
from graphopt.runtime.session_setting import SessionSetting

TOOL = "graphopt"
"""The tool whose outcome ONNX Runtime runs."""

COMPILATIONS, RUNS = 12, 2
"""Times that OpenVINO compiles a model, and runs of each that count: it only tells mean times since then, in whole
microseconds, from which those of single runs follow while they are few."""

SECONDS = 6.0
"""Limit of the timing of whole runs, without a profiler."""

SHOWN = 3
"""Differences that the page has of each model."""

SETTING = SessionSetting(threads=1)

KernelTimes: TypeAlias = Mapping[Work, tuple[int, float]]
"""Number of kernels of each work, and their seconds in a run."""


def slower_models(path: Path = FOLDER / "cpu.jsonl") -> list[str]:
    """Return the models of a result file of `run` that OpenVINO ran faster than graphopt's outcome was run, by more
    than noise."""
    results = Results.read(path)
    own, others = (results.timings(tool, "cpu-1") for tool in ("graphopt", "openvino"))
    return [name for name in results.models if name in {*own} & {*others} and _is_faster(others[name], own[name])]


def _is_faster(timing: Row, other: Row) -> bool:
    return bool(timing["median"] > other["median"] * (1 + TimingPolicy.noise))


def run(models: Sequence[str], search: float, path: Path) -> Path:
    """Profile each model in both engines; the file and the page have it as soon as it is done.

    The file keeps its rows of other models.

    Args:
        models: their names.
        search: seconds for which graphopt searches.
        path: the file of the results.

    Raises:
        UsageError: the file holds something else.
    """
    rows = {row["model"]: row for row in read_rows(path)}
    conditions = made("graphopt", "onnx", "onnxruntime", "openvino") | {"search": search}
    for name in models:
        rows[name] = {
            "model": name,
            **measured(name, search),
            "exporters": describe(name)["exporters"],
            "made": conditions,
        }
        print(json.dumps(rows[name]), flush=True)
        write_rows(path, rows.values(), markdown([*rows.values()]))
    return path


def measured(name: str, search: float) -> Row:
    """Return the times of the kernels of a model in both engines, and those of whole runs, or the error."""
    try:
        source = locate_source(name)
    except ExportFailedError as error:
        return {"error": str(error)}
    with TemporaryDirectory() as folder:
        keep_inputs(name, Path(folder))
        target = str(Path(folder) / "outcome.onnx")
        task = Task(TOOL, source, target, f"{folder}/inputs-{SEEDS[0]}", "cpu", 1, search)
        found = tools.run(task, LIMIT)
        if "error" not in found:
            found = job("benchmarks.kernels", source, target, folder, limit=LIMIT)
        return {key: value.replace(f"{folder}/", "") if key == "error" else value for key, value in found.items()}


# -- a model, in a process of its own ----------------------------------------------------------------------------------


def work(source: str, target: str, folder: str) -> Row:
    """Return the kernels of the original in OpenVINO and of the outcome in ONNX Runtime, and how whole runs compare.

    Raises:
        RuntimeError: OpenVINO does not know the model.
    """
    inputs = feeds(source, folder, SEEDS[0])
    own, others = _whole_runs(source, target, inputs)
    session = ProfiledSession(target, SETTING)
    session.run(None, inputs)
    theirs = _openvino_kernels(_fixed(source, inputs), inputs, lambda: session.run(None, inputs))
    kernels = {"onnxruntime": _onnxruntime_kernels(session, target), "openvino": theirs}
    speedup = compute_speedup(own, others)
    return {
        "ms": {"onnxruntime": round(own.median * 1e3, 4), "openvino": round(others.median * 1e3, 4)},
        "speedup": asdict(speedup) | {"verdict": str(speedup.verdict)},
        "kernels": {engine: _told(found) for engine, found in kernels.items()},
    }


def _whole_runs(source: str, target: str, inputs: Mapping[str, Any]) -> Sequence[TimingSamples]:
    """Time the outcome in ONNX Runtime in turns with the original in OpenVINO, by the processor."""
    theirs, session, policy = compiled(source, 1), SETTING.open(target), TimingPolicy()
    schedule = TimingSchedule(seconds=SECONDS, rounds=policy.bench_rounds, open_runs=PreciseRatios(policy))
    runs: list[Callable[[], object]] = [lambda: session.run(None, inputs), lambda: theirs(inputs)]
    return time_interleaved(runs, schedule, meter=time.process_time, policy=policy)


def _told(times: KernelTimes) -> list[Row]:
    """Return the kernels as rows, the longest first."""
    order = sorted(times.items(), key=lambda item: -item[1][1])
    return [
        {"kind": each.kind, "size": each.size, "count": count, "us": round(seconds * 1e6, 1)}
        for each, (count, seconds) in order
    ]


def _onnxruntime_kernels(session: ProfiledSession, target: str) -> KernelTimes:
    """End a session and return the times of its kernels, without those of its first run."""
    graph = optimized_graph(target, SETTING, weights=False).graph
    nodes = {each.name: each for each in graph.node}
    weights = {each.name: tuple(each.dims) for each in graph.initializer}
    events = session.end()
    start = sorted(event["ts"] for event in events if event["name"] == "model_run")[1]
    works, seconds = dict[str, Work](), defaultdict[str, list[float]](list)
    for event in events:
        name = event["name"].removesuffix("_kernel_time")
        if (
            event["name"] != name and event["ts"] >= start and name in nodes
        ):  # nodes of the main graph have their bodies'
            works[name] = onnxruntime_kernel(event["args"], nodes[name], weights).work
            seconds[name].append(event["dur"] / 1e6)
    return sum_by_work((works[name], min(times)) for name, times in seconds.items())


def onnxruntime_kernel(facts: Mapping[str, Any], node: Any, weights: Mapping[str, Shape]) -> Kernel:
    """Return a kernel, by what the profiler tells of it and its node in the optimized graph."""
    attributes = {each.name: each for each in node.attribute}
    inputs, outputs = (
        [tuple(shape) for each in facts[key] for shape in each.values()]
        for key in ("input_type_shape", "output_type_shape")
    )
    known = [weights[name] for name in node.input if len(weights.get(name, ())) > 1]
    return Kernel(
        facts["op_name"],
        inputs,
        outputs,
        weights=known[0] if known else (),
        group=attributes["group"].i if "group" in attributes else 1,
        is_channels_last="channels_last" in attributes or "nhwc" in node.domain,
    )


def _fixed(source: str, inputs: Mapping[str, Any]) -> Any:
    """Return a model as OpenVINO reads it, with its sizes fixed: it tells no others."""
    import openvino

    model = openvino.Core().read_model(source)
    model.reshape({name: list(np.shape(value)) for name, value in inputs.items()})
    return model


def _openvino_kernels(model: Any, inputs: Mapping[str, Any], between: Callable[[], object]) -> KernelTimes:
    """Return the times of the kernels of a model.

    Args:
        model: as OpenVINO reads it.
        inputs: of the model.
        between: called before each run.
    """
    import openvino

    works, seconds = list[Work](), defaultdict[int, list[float]](list)
    for _ in range(COMPILATIONS):
        program = openvino.Core().compile_model(
            model, "CPU", {**OPTIONS, "INFERENCE_NUM_THREADS": 1, "PERF_COUNT": True}
        )
        nodes = program.get_runtime_model().get_ordered_ops()  # their names have numbers that count on
        places = {node.get_friendly_name(): place for place, node in enumerate(nodes)}
        works = works or [_openvino_work(node) for node in nodes]
        request, before = program.create_infer_request(), Counter[int]()
        for count in range(1, RUNS + 2):
            between()
            request.infer(inputs)
            told = [each for each in request.profiling_info if each.node_name in places]
            sums = Counter({places[each.node_name]: count * each.real_time.total_seconds() for each in told})
            for place in sums if count > 1 else ():
                seconds[place].append(sums[place] - before[place])
            before = sums
    fastest = {place: min(times) for place, times in seconds.items()}
    return sum_by_work((works[place], time) for place, time in fastest.items() if time > 0)


def _openvino_work(node: Any) -> Work:
    """Return the work of a node of OpenVINO's runtime model."""
    sources = [each.get_source_output() for each in node.inputs()]
    inputs = [tuple(each.get_shape()) for each in sources]
    outputs = [tuple(each.get_shape()) for each in node.outputs()]
    layers = [_fact(each.get_node(), "layerType") for each in sources]
    has_weights = [layer == "Const" or _fact(node, "layerType") == "FullyConnected" for layer in layers]
    weights = next(
        (shape for shape, found in zip(inputs[1:], has_weights[1:], strict=True) if found and len(shape) > 1), ()
    )
    group = 1
    if outputs and len(weights) == len(outputs[0]) + 1:
        group, weights = weights[0], (weights[0] * weights[1], *weights[2:])
    parts = _fact(node, "originalLayersNames").split(",")
    return Kernel(_fact(node, "layerType"), inputs, outputs, weights, group, parts=parts).work


def _fact(node: Any, name: str) -> str:
    return str(node.get_rt_info()[name].astype(str))


# -- the page ----------------------------------------------------------------------------------------------------------


def kinds(row: Row) -> dict[str, tuple[float, float]]:
    """Return the milliseconds in each kind of work in ONNX Runtime and in OpenVINO, the largest difference first."""
    found: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for place, engine in enumerate(("onnxruntime", "openvino")):
        for each in row["kernels"][engine]:
            found[each["kind"]][place] += each["us"] / 1e3
    return {kind: (own, other) for kind, (own, other) in sorted(found.items(), key=lambda item: _gap(item[1]))}


def _gap(times: Sequence[float]) -> float:
    """Return what OpenVINO takes longer."""
    return times[1] - times[0]


def differences(row: Row) -> list[tuple[str, Row, Row]]:
    """Return the works that both engines have, with the kernels of each, and that OpenVINO does faster, the largest
    difference first."""
    own, others = ({each["size"]: each for each in row["kernels"][engine]} for engine in ("onnxruntime", "openvino"))
    both = [(size, own[size], others[size]) for size in own if size in others and own[size]["us"] > others[size]["us"]]
    return sorted(both, key=lambda item: item[2]["us"] - item[1]["us"])


def markdown(rows: Sequence[Row]) -> str:
    """Return the page: whole runs, and of each model the time by kind of work and the largest differences."""
    able = [row for row in rows if "kernels" in row]
    lines = [
        "# Kernels of another engine",
        "",
        "Milliseconds in kernels of ONNX Runtime, which runs what graphopt makes of a model in so many seconds, and of",
        "OpenVINO's own runtime, which runs the original: one thread, single precision, in turns in one process, of",
        f"each kernel the fastest of {COMPILATIONS * RUNS} runs under both profilers. What is fused into a kernel is a",
        "part of it. The speedup is OpenVINO's over ONNX Runtime, in runs without a profiler, by the time of the",
        "processor.",
        "",
        *table(("model", "search, s", "ONNX Runtime, ms", "OpenVINO, ms", "speedup"), map(_whole, able)),
        "",
    ]
    for row in able:
        lines += [f"## {row['model']}", "", *_section(row), ""]
    lines += [
        "What other forms of these graphs gain is [measured by hand](by-hand.md#what-openvinos-kernels-showed).",
        "",
    ]
    lines += [f"- {row['model']}: {row['error']}" for row in rows if "error" in row]
    lines += [*circumstances(rows), "", "`python -m benchmarks kernels` makes this page."]
    return "\n".join(lines) + "\n"


def _whole(row: Row) -> list[str]:
    speedup = row["speedup"]
    ratio = f"{speedup['median']:.2f} ({speedup['low']:.2f} to {speedup['high']:.2f})"
    search = f"{row['made']['search']:g}"
    return [row["model"], search, f"{row['ms']['onnxruntime']:.2f}", f"{row['ms']['openvino']:.2f}", ratio]


def _section(row: Row) -> Iterator[str]:
    """Yield the tables of a model."""
    times = kinds(row)
    times["all kernels"] = sum(own for own, _ in times.values()), sum(other for _, other in times.values())
    head = ("kind", "ONNX Runtime", "OpenVINO", "difference")
    yield from table(head, [[kind, *_cells(*pair)] for kind, pair in times.items()])
    yield ""
    found = [
        [size, str(own["count"]), str(other["count"]), *_cells(own["us"] / 1e3, other["us"] / 1e3)]
        for size, own, other in differences(row)[:SHOWN]
    ]
    if found:
        yield from table(("the same work in both", "kernels", "OpenVINO's", "ms", "OpenVINO's", "difference"), found)


def _cells(own: float, other: float) -> list[str]:
    return [f"{own:.2f}", f"{other:.2f}", f"{own - other:+.2f}"]


if __name__ == "__main__":
    stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a runtime prints is not what is told
    with stdout:
        json.dump(work(*sys.argv[1:]), stdout)

"""Times of kernels of many models, which graphopt ships, and how well they predict those of models not among them.

``python -m benchmarks kernel_times MODEL.onnx... --held-out MODEL.onnx...`` writes the first, unless the result file is
another, into ``graphopt/runtime/kernel_times.json``, and all into ``benchmarks/results/kernel-times.jsonl`` and
``kernel-times.md``.
Each model is profiled as it is, simplified, and with each sweep, on one thread.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.environment import job, made
from benchmarks.report import circumstances, table
from benchmarks.results import FOLDER, Row, read_rows, write_rows
from graphopt.base.hardware import instruction_set
from graphopt.io import onnx_io
from graphopt.options import Options
from graphopt.pipeline import PipelineRun, SimplifiedModel
from graphopt.rewrite.candidates import Candidate
from graphopt.runtime.bench import make_up_inputs, prepare_models
from graphopt.runtime.cost_model import open_cost_cache
from graphopt.runtime.kernel_table import DATA, MOST_SECONDS, PLAUSIBLE_ERROR, KernelTable, KernelWork, kernel_rows
from graphopt.runtime.machine import Machine
from graphopt.runtime.measure import KernelTimes
from graphopt.runtime.oracle import RunnableModel
from graphopt.runtime.profile import time_kernels
from graphopt.runtime.session_setting import SessionSetting
from graphopt.search.analytic_cost import AnalyticCost
from graphopt.search.explore import with_static_shapes
from graphopt.search.model_tuner import input_shapes
from graphopt.search.sweep import apply_sweep

SETTING = SessionSetting(threads=1)
RESULT = FOLDER / "kernel-times.jsonl"
"""The result file whose rows are shipped."""
OPTIMISM = 2.0
"""Standard deviations that the optimistic gain of a sweep saves more."""
GAINS = ("measured", "roofline", "predicted", "optimistic")
RUNS = 8
LIMIT = 300.0
"""Seconds after which a model is given up."""


def run(models: Sequence[str], held_out: Sequence[str], path: Path) -> Path:
    """Profile models that the file does not have yet; it, the page and the data have each as soon as it is done."""
    rows = {row["model"]: row for row in read_rows(path)}
    conditions = made("graphopt", "numpy", "onnx", "onnxruntime")
    for source in [*models, *held_out]:
        name = Path(source).stem
        if name in rows:
            continue
        is_held_out = source in held_out
        found = job("benchmarks.kernel_times", source, "held out" if is_held_out else "", limit=LIMIT)
        rows[name] = {"model": name, "held_out": is_held_out, **found, "made": conditions}
        print(name, found.get("error", len(found.get("kernels", ()))), flush=True)
        if not is_held_out and path == RESULT:
            DATA.write_text(data_text([*rows.values()]), encoding="utf-8")
        write_rows(path, rows.values(), markdown([*rows.values()]))
    return path


def data_text(rows: Sequence[Row]) -> str:
    """Return what is shipped: of each instruction set and kind of kernel the sizes, and the factor on the roofline."""
    shipped = [row for row in rows if not row["held_out"] and "kernels" in row]
    texts = []
    for name in sorted({row["instructions"] for row in shipped}):
        kinds = _factors(row for row in shipped if row["instructions"] == name)
        lines = [f'  "{kind}": {json.dumps(each, separators=(",", ":"))}' for kind, each in kinds.items()]
        texts.append(f'"{name}": {{\n' + ",\n".join(lines) + "\n}")
    return "{" + ",\n".join(texts) + "}\n"


def _factors(rows: Iterable[Row]) -> dict[str, list[list[float]]]:
    """Return sizes and factors by kind, of equal kernels that with the least error."""
    best: dict[tuple[str, tuple[int, ...]], Row] = {}
    for each in (kernel for row in rows for kernel in row.get("kernels", ())):
        key = each["kind"], tuple(each["sizes"])
        if each["error"] <= min(PLAUSIBLE_ERROR, best[key]["error"] if key in best else math.inf):
            best[key] = each
    kinds: dict[str, list[list[float]]] = {}
    for (kind, sizes), each in sorted(best.items()):
        kinds.setdefault(kind, []).append([*sizes, each["factor"]])
    return kinds


# -- a model, in a process of its own ----------------------------------------------------------------------------------


def work(source: str, kind: str) -> Row:
    """Return the kernels of a model, and of one that is held out what was predicted of sweeps."""
    model = PipelineRun(source, Options(threads=1, check=False)).simplified()
    candidates = [("", model.candidate), *_sweeps(model)]
    feeds = prepare_models([source], SETTING).trials[0].feeds
    graphs = [replace(model.loaded, graph=candidate.graph) for _, candidate in candidates]
    sources: list[onnx_io.ModelSource | onnx_io.LoadedModel] = [source, *graphs]
    times = [time_kernels(each, SETTING, feeds, RUNS) for each in sources]
    machine = Machine.calibrate(SETTING, open_cost_cache(), model.tuner.tuning.policy.timing)
    found = {"instructions": instruction_set(), "machine": asdict(machine), "kernels": _kernels(times, machine, model)}
    return found | ({"sweeps": _predictions(model, candidates, times[1:], machine)} if kind else {})


def _sweeps(model: SimplifiedModel) -> Iterator[tuple[str, Candidate]]:
    tuner, start = model.tuner, model.candidate
    for name in tuner.sweeps:
        swept = apply_sweep(start, name, tuner.sweep_rules(name), tuner.search_space(), tuner.tuning.policy)
        if swept is not None:
            yield name, swept


def _kernels(times: Sequence[KernelTimes], machine: Machine, model: SimplifiedModel) -> list[Row]:
    """Return the kernels with their factors on the roofline, and those of the estimate where the simplified graph has
    the kernel."""
    estimate = AnalyticCost(machine, KernelTable(machine, kernel_rows(times)))
    priors = estimate.prior_seconds(_static(model, model.candidate))
    found = []
    for row in kernel_rows(times):
        roofline = row.work.roofline_seconds(machine)
        prior = priors.get(row.work)
        found.append(
            {
                "kind": row.work.kind,
                "sizes": row.work.sizes,
                "factor": float(f"{row.seconds / roofline:.3g}"),
                "us": round(row.seconds * 1e6, 1),
                "error": round(row.error, 3),
                **({} if prior is None else {"prior": float(f"{prior / roofline:.3g}")}),
            }
        )
    return found


def _predictions(
    model: SimplifiedModel, candidates: Sequence[tuple[str, Candidate]], times: Sequence[KernelTimes], machine: Machine
) -> list[Row]:
    """Return of each sweep the gain by its kernels, by the roofline, and by the kernels that are shipped."""
    learned = AnalyticCost(machine, KernelTable.load(SETTING, open_cost_cache(fresh=True), machine))
    before, found = _static(model, model.candidate), []
    for (name, candidate), own in zip(candidates[1:], times[1:], strict=True):
        after = _static(model, candidate)
        gain = learned.predict_gain(before, after)
        optimistic = min(gain.ratio(OPTIMISM), 99.0)
        plain = AnalyticCost(machine).predict_gain(before, after).ratio()
        ratios = (times[0].speedup_of(own), plain, gain.ratio(), optimistic)
        found.append({"sweep": name, **{key: round(ratio, 3) for key, ratio in zip(GAINS, ratios, strict=True)}})
    return found


def _static(model: SimplifiedModel, candidate: Candidate) -> Any:
    """Return the graph of a candidate at the sizes that are made up for the model."""
    outline = RunnableModel(replace(model.loaded, graph=model.candidate.graph)).outline
    return with_static_shapes(candidate.graph, input_shapes(make_up_inputs(outline, {}, {})[0]))


# -- the page ----------------------------------------------------------------------------------------------------------


def errors(row: Row, others: Iterable[Row]) -> tuple[list[float], list[float]]:
    """Return the relative errors of the estimates of a model's kernels by the roofline, and with the rows of others."""
    machine = Machine(**row["machine"])
    kernels = KernelTable(machine, shipped=_factors(others))
    plain, learned = [], []
    for each in row["kernels"]:
        if "prior" in each and each["error"] <= PLAUSIBLE_ERROR:
            unit = KernelWork(each["kind"], tuple(each["sizes"]), 0.0, 0.0)  # of which the roofline is a launch
            seconds = kernels.predict(unit, each["prior"] * machine.launch_seconds).seconds / machine.launch_seconds
            plain.append(abs(each["prior"] / each["factor"] - 1))
            learned.append(abs(seconds / each["factor"] - 1))
    return plain, learned


def markdown(rows: Sequence[Row]) -> str:
    """Return the page: errors of predicted kernels by model, and predicted gains of sweeps."""
    able = [row for row in rows if "kernels" in row]
    shipped = [row for row in able if not row["held_out"]]
    told = [(row, *errors(row, [other for other in shipped if other is not row])) for row in able]
    lines = [
        "# Predicted times of kernels",
        "",
        "Median relative error of the estimate of a kernel's time, by the roofline alone and with the nearest of the",
        "kernels of the other models that are shipped (`graphopt/runtime/kernel_times.json`): one thread, of each",
        f"kernel the fastest of {RUNS} runs under ONNX Runtime's profiler. Kernels of more than {MOST_SECONDS * 1e3:g}",
        "ms are left out, for on a machine with other work they are interrupted in each run.",
        "",
    ]
    cells = [[_name(row), *_medians(plain, learned)] for row, plain, learned in told]
    for what, is_held_out in (("all that are shipped, each left out once", False), ("all that are held out", True)):
        some = [(plain, learned) for row, plain, learned in told if row["held_out"] is is_held_out]
        plain, learned = (sum((pair[place] for pair in some), list[float]()) for place in (0, 1))
        cells.append([what, *_medians(plain, learned)])
    lines += [*table(("model", "kernels", "roofline", "with neighbours"), cells), ""]
    swept = [
        [row["model"], each["sweep"], *(f"{each[key]:.3f}" for key in GAINS)]
        for row in able
        for each in row.get("sweeps", ())
    ]
    if swept:
        head = ("model", "sweep", "by its kernels", "roofline", "with neighbours", "optimistic")
        lines += [
            "Gains of sweeps of models that are not shipped: by their own kernels, and as they are predicted; the",
            "optimistic one saves two standard deviations more.",
            "",
            *table(head, swept),
            "",
        ]
    lines += [f"- {row['model']}: {row['error']}" for row in rows if "error" in row]
    lines += [*circumstances(rows), "", "`python -m benchmarks kernel_times MODEL...` makes this page."]
    return "\n".join(lines) + "\n"


def _name(row: Row) -> str:
    return f"{row['model']} (held out)" if row["held_out"] else str(row["model"])


def _medians(plain: Sequence[float], learned: Sequence[float]) -> list[str]:
    return [str(len(plain)), *(f"{statistics.median(found):.0%}" if found else "" for found in (plain, learned))]


if __name__ == "__main__":
    stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a runtime prints is not what is told
    with stdout:
        json.dump(work(*sys.argv[1:]), stdout)

"""Steps of training: those that graphopt makes of a model, in ONNX Runtime, beside PyTorch's eager ones.

``python -m benchmarks training`` writes ``benchmarks/results/training.jsonl`` and ``training.md``. Both take turns in
one process, with one thread and its processor time, a step at a time: forward in training mode, cross entropy,
backward, and gradient descent. ONNX Runtime is fed with what its last step gave, as values of its own.

A larger BERT's step is also made for memory budgets, which `graphopt grad` measures itself (the extra `[remat]`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

from benchmarks.environment import made
from benchmarks.report import circumstances, table
from benchmarks.results import Row, write_rows
from graphopt.runtime.memory import DEFAULT_VARIANT, measure_memory
from graphopt.runtime.session_setting import SessionSetting

NETWORKS = ("ResNet-18", "MobileNetV2", "U-Net", "ViT", "BERT")
"""Names of the networks of `torch_networks`, which needs PyTorch."""
WARM_STEPS = 5
LARGE_BERT = {"layers": 4, "width": 256, "texts": 8, "tokens": 128}
BUDGETS = (0.85, 0.7)
"""Memory budgets, as parts of what a step takes without one."""


def run(networks: Sequence[str], steps: int, path: Path, *, budgets: bool) -> Path:
    """Time so many steps of each network, and make some for memory budgets; the file and the page have it as soon as it
    is done."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    rows: list[Row] = []
    conditions = made("graphopt", "onnx", "onnxruntime", "torch", "torchvision", "timm", "transformers")
    try:
        for name in track(networks, description="networks"):
            rows.append({"network": name, **measured(name, steps), "made": conditions})
            write_rows(path, rows, markdown(rows))
        for note in budgeted_steps() if budgets else ():
            rows.append({"note": note, "made": conditions})
            write_rows(path, rows, markdown(rows))
    finally:
        torch.set_num_threads(threads)
    return path


def measured(name: str, steps: int) -> Row:
    """Return the milliseconds of a step in either, and the quartiles of their ratio."""
    both = _steps_of(name)
    seconds = [[_seconds(step) for step in both] for _ in range(WARM_STEPS + steps)][WARM_STEPS:]
    eager, graph = np.array(seconds).T
    low, median, high = np.quantile(graph / eager, (0.25, 0.5, 0.75))
    return {
        "eager_ms": round(float(np.median(eager)) * 1e3, 2),
        "graph_ms": round(float(np.median(graph)) * 1e3, 2),
        "ratio": [round(float(ratio), 3) for ratio in (low, median, high)],
        "steps": steps,
    }


def budgeted_steps() -> Iterator[str]:
    """Yield what `graphopt.grad` says of each budget for a step of a large BERT."""
    import torch

    import graphopt
    from benchmarks import torch_networks

    torch.manual_seed(1)
    proto = torch_networks.exported(*torch_networks.bert(**LARGE_BERT))
    step = graphopt.grad(proto, "softmax_cross_entropy", check=False)
    setting = SessionSetting(threads=1)
    takes = measure_memory(step.model, setting, variants=(DEFAULT_VARIANT,)).usual.peak
    for part in BUDGETS:
        budget = graphopt.MemoryBudget(int(takes * part), threads=1)
        yield graphopt.grad(proto, "softmax_cross_entropy", memory_budget=budget).memory


def _seconds(step: Callable[[], object]) -> float:
    start = time.thread_time()
    step()
    return time.thread_time() - start


def _steps_of(name: str) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return functions that make a step in PyTorch, and one of the same network in ONNX Runtime."""
    import onnxruntime
    import torch

    import graphopt
    from benchmarks import torch_networks

    torch.manual_seed(1)
    network, inputs = torch_networks.NETWORKS[name]()
    network.train()
    state = {key: value.clone() for key, value in network.state_dict().items()}
    proto = torch_networks.exported(network, inputs)
    network.load_state_dict(state)  # the export ran it
    network.train()
    outputs = network(*inputs)
    labels = torch.randint(0, outputs.shape[1], (outputs.shape[0], *outputs.shape[2:]))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01)

    def eager() -> None:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(*inputs), labels).backward()
        optimizer.step()

    step = graphopt.grad(proto, "softmax_cross_entropy", check=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(step.model.SerializeToString(), options, ["CPUExecutionProvider"])
    wanted, results = ({each.name for each in some} for some in (session.get_inputs(), session.get_outputs()))
    fixed: dict[str, Any] = {f"x{i}": value.numpy() for i, value in enumerate(inputs)} | {"labels": labels.numpy()}
    arrays = {key: value for key, value in (fixed | step.initial_state()).items() if key in wanted}
    feeds = {key: onnxruntime.OrtValue.ortvalue_from_numpy(value) for key, value in arrays.items()}
    names = [key for key in (step.loss, *step.states.values()) if key in results]

    def graph() -> None:
        found = dict(zip(names, session.run_with_ort_values(names, feeds), strict=True))
        feeds.update({before: found[after] for before, after in step.states.items()})

    return eager, graph


def markdown(rows: Sequence[Row]) -> str:
    """Return the page."""
    head = ("network", "eager PyTorch, ms", "ONNX Runtime, ms", "ratio", "between", "steps")
    lines = [
        "# A step of training",
        "",
        "Steps that `graphopt grad` makes of networks, in ONNX Runtime, in turns with eager PyTorch's: forward in",
        "training mode, cross entropy, backward, gradient descent. One thread, processor time, medians; the ratio is",
        "that of ONNX Runtime's time to PyTorch's, between its quartiles. Images have 64 x 64 pixels (16 x 16 for the",
        "U-Net).",
        "",
        *table(head, [_cells(row) for row in rows if "ratio" in row]),
        "",
        *_budget_lines([row["note"] for row in rows if "note" in row]),
        *circumstances(rows),
        "",
        "`python -m benchmarks training` makes this page.",
    ]
    return "\n".join(lines) + "\n"


def _budget_lines(notes: Sequence[str]) -> list[str]:
    if not notes:
        return []
    sizes = "a BERT of {layers} layers, {width} wide, with {texts} texts of {tokens} tokens".format(**LARGE_BERT)
    return [f"What `graphopt grad --memory-budget` says of {sizes}:", "", *(f"- {note}" for note in notes), ""]


def _cells(row: Row) -> tuple[str, ...]:
    low, median, high = row["ratio"]
    times = (f"{row[key]:.1f}" for key in ("eager_ms", "graph_ms"))
    return row["network"], *times, f"{median:.2f}", f"{low:.2f}–{high:.2f}", str(row["steps"])

"""What is known of kernels' times: rows of profiles, those that are shipped, and what they predict."""

import json
from collections.abc import Sequence
from dataclasses import replace
from math import inf, log
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphopt.base import hardware
from graphopt.base.cache import Cache
from graphopt.io import onnx_io
from graphopt.operators.inference import infer_graph
from graphopt.runtime import kernel_table
from graphopt.runtime.bench import prepare_models
from graphopt.runtime.kernel_table import (
    DATA,
    PRIOR_ERROR,
    KernelRow,
    KernelTable,
    KernelWork,
    describe_kernel,
    kernel_rows,
    record_kernels,
)
from graphopt.runtime.machine import Machine
from graphopt.runtime.measure import KernelTimes
from graphopt.runtime.profile import KernelKind, time_kernels
from graphopt.runtime.session_setting import SessionSetting
from graphopt.search.analytic_cost import AnalyticCost
from tests.text import parse

ONE_THREAD, MACHINE = SessionSetting(threads=1), Machine()


def product(rows: int, depth: int = 256, columns: int = 256) -> KernelWork:
    work = describe_kernel("MatMul", [(rows, depth), (depth, columns)], (rows, columns), has_weights=True)
    assert work is not None
    return work


def row(work: KernelWork, factor: float, error: float = 0.01) -> KernelRow:
    return KernelRow(work, factor * work.roofline_seconds(MACHINE), error)


def predicted_factor(table: KernelTable, work: KernelWork) -> tuple[float, float]:
    """The factor on the roofline and its error, where the estimate is twice the roofline."""
    roofline = work.roofline_seconds(MACHINE)
    found = table.predict(work, 2 * roofline)
    return found.seconds / roofline, found.error


def told(kind: KernelKind, *seconds: float, count: int = 1) -> KernelTimes:
    return KernelTimes({str(kind): count}, {str(kind): seconds})


MATMUL = KernelKind("MatMul", (("float", (512, 256)),), (("float", (512, 256)),), is_blocked=False)


def test_a_kind_of_kernel_is_read_back_from_its_text() -> None:
    for kind in (MATMUL, KernelKind("Conv", (("float", ()), ("int64", (1,))), (), is_blocked=True)):
        assert KernelKind.parse(str(kind)) == kind


@pytest.mark.parametrize(
    ("op", "reads", "writes", "told"),
    [
        ("FusedMatMul", [(12, 128, 32), (12, 32, 64)], (12, 128, 64), ("product", (12, 128, 32, 64))),
        ("Gemm", [(128, 32)], (128, 64), ("product with weights", (1, 128, 32, 64))),
        (
            "FusedConv",
            [(2, 32, 28, 28), (60, 32, 3, 3), (60,)],
            (2, 60, 14, 14),
            ("blocked dense 2-d convolution", (392, 32, 64, 9, 4, 1)),
        ),
        ("Conv", [(1, 64, 9), (64, 1, 3)], (1, 64, 9), ("blocked depthwise 1-d convolution", (9, 1, 64, 3, 1, 64))),
        ("Gelu", [(4, 8)], (4, 8), ("Gelu", (32, 32, 8, 8))),
        ("Softmax", [(4, 8)], (4, 8), None),
        ("Reshape", [(4, 8), (1,)], (32,), None),
        ("Transpose", [(4, 8)], (8, 4), None),
        ("Add", [(0, 8), (8,)], (0, 8), None),
    ],
)
def test_a_kernel_is_told_by_its_kind_and_sizes(
    op: str, reads: Sequence[Sequence[int]], writes: Sequence[int], told: Any
) -> None:
    work = describe_kernel(op, reads, writes, is_blocked=True, has_weights=op == "Gemm")
    assert (None if work is None else work[:2]) == told


def test_the_nearest_rows_correct_the_estimate_and_far_ones_do_not() -> None:
    table = KernelTable(MACHINE, [row(product(256), 3.0)])
    same, near, far = (predicted_factor(table, product(rows)) for rows in (256, 320, 1 << 20))
    assert same[0] == pytest.approx(3.0, rel=0.05)
    assert near[0] == pytest.approx(3.0, rel=0.1)
    assert far[0] == pytest.approx(2.0) and far[1] == pytest.approx(PRIOR_ERROR, rel=0.01)
    assert same[1] < near[1] < far[1]
    assert predicted_factor(table, product(256)._replace(kind="other")) == pytest.approx((2.0, PRIOR_ERROR))


def test_neighbours_that_contradict_each_other_leave_a_large_error() -> None:
    agreeing = KernelTable(MACHINE, [row(product(200), 3.0), row(product(300), 3.0)])
    contrary = KernelTable(MACHINE, [row(product(200), 1.5), row(product(300), 6.0)])
    assert predicted_factor(contrary, product(250))[1] > 2 * predicted_factor(agreeing, product(250))[1]


def test_rows_of_this_machine_win_over_those_that_are_shipped() -> None:
    shipped = {product(256).kind: [[*product(rows).sizes, 9.0] for rows in (256, 300)]}
    assert predicted_factor(KernelTable(MACHINE, (), shipped), product(256))[0] > 8
    assert predicted_factor(KernelTable(MACHINE, [row(product(256), 3.0)], shipped), product(256))[0] < 6


def test_a_shipped_factor_holds_at_the_rates_of_another_machine() -> None:
    slow = replace(MACHINE, flops_per_second=MACHINE.flops_per_second / 4)
    work = product(256)
    shipped = {work.kind: [[*work.sizes, 3.0]]}
    seconds = [KernelTable(machine, (), shipped).predict(work, 1e-3).seconds for machine in (MACHINE, slow)]
    assert seconds[1] / seconds[0] == pytest.approx(4, rel=0.1)


# -- what is kept ------------------------------------------------------------------------------------------------------


def test_a_row_is_the_fastest_run_of_one_kernel_and_no_short_one() -> None:
    (found,) = kernel_rows([told(MATMUL, 2.1e-4, 2e-4, 6e-4, count=2)])
    assert (found.work.sizes, found.seconds) == ((1, 512, 256, 256), 1e-4)
    assert found.error == pytest.approx(log(1.05) / 3**0.5)
    assert kernel_rows([told(MATMUL, 4e-4, 2e-4, 6e-4)]) == []  # most of its runs were interrupted
    assert kernel_rows([told(MATMUL, 1e-6, 1e-6), told(MATMUL, 1e-2, 1e-2)]) == []
    assert kernel_rows([told(MATMUL._replace(outputs=(("double", (4, 4)),)), 1e-3)]) == []


def test_a_row_is_kept_until_one_of_less_noise_comes(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "costs.sqlite")
    for seconds in ((3e-4, 3.2e-4), (2e-4, 2e-4), (1e-4, 1.05e-4), (1e-4, 9e-4)):
        record_kernels([told(MATMUL, *seconds)], ONE_THREAD, cache)
    (kept,) = kernel_table._kept_rows(ONE_THREAD, Cache(tmp_path / "costs.sqlite"))
    assert kept.seconds == 2e-4
    assert kernel_table._kept_rows(SessionSetting(threads=2), cache) == []


def test_the_newest_rows_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_table, "MAX_ROWS", 3)
    cache = Cache(tmp_path / "costs.sqlite")
    for rows in range(100, 105):
        kind = MATMUL._replace(outputs=(("float", (rows, 256)),))
        record_kernels([told(kind, 1e-4, 1e-4)], ONE_THREAD, cache)
    assert [kept.work.sizes[1] for kept in kernel_table._kept_rows(ONE_THREAD, cache)] == [102, 103, 104]


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", "null", "[]", "{}", '{"rows": [1]}', "9" * 5000),
        *(
            json.dumps({"rows": [{"work": ["MatMul", sizes, 1.0, nbytes], "seconds": seconds, "error": 0.1}]})
            for sizes, nbytes, seconds in (
                ([1, 0, 4], 4.0, 1e-3),
                ([1, -2, 4], 4.0, 1e-3),
                ([1, 2], 0.0, 1e-3),
                ([1, 2], 4.0, 0.0),
                ([1, 2], 4.0, None),
                ([1, 2], 4.0, 1.0),
                ("12", 4.0, 1e-3),
            )
        ),
    ],
)
def test_what_is_no_row_predicts_nothing(text: str) -> None:
    cache = Cache(Path("nowhere"))
    cache.get = lambda keys: dict.fromkeys(keys, text)  # type: ignore[method-assign]
    assert kernel_table._kept_rows(ONE_THREAD, cache) == []


def test_what_is_shipped_is_small_and_sound() -> None:
    assert DATA.stat().st_size < 300_000
    for kinds in json.loads(DATA.read_text(encoding="utf-8")).values():
        for rows in kinds.values():
            assert len({len(each) for each in rows}) == 1
            assert all(0 < number < inf for each in rows for number in each)


@pytest.mark.parametrize(
    ("told", "name"),
    [("flags: fpu avx2 avx512f", "avx512"), ("flags: avx2", "avx2"), ("Features: fp asimd", "neon"), ("x86", "")],
)
def test_the_instruction_set_is_the_widest(told: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "processor", lambda: told)
    assert hardware.instruction_set() == name


def test_graphs_and_profiles_tell_of_a_kernel_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, limit in (("LEAST_SECONDS", 0.0), ("MOST_SECONDS", inf), ("PLAUSIBLE_ERROR", inf)):
        monkeypatch.setattr(kernel_table, name, limit)  # kernels count, however long they take here
    weights = {"k": np.ones((64, 32, 3, 3), np.float32), "w": np.ones((56, 64), np.float32)}
    body = "a = Conv <pads = [1, 1, 1, 1]> (x, k); b = Relu(a); c = MatMul(b, w); d = Gelu(c)"
    body += "; e = Transpose <perm = [0, 1, 3, 2]> (c); f = MatMul(d, e); y = Abs(f)"
    model = parse("float[1,32,56,56] x", body, weights, outputs="float[1,64,56,56] y", opset=20)
    (trial,) = prepare_models([model], ONE_THREAD).trials
    profiled = kernel_rows([time_kernels(model, ONE_THREAD, trial.feeds, 2)])
    graph = onnx_io.load_model(model).graph
    infer_graph(graph)
    machine = replace(MACHINE, block=16 if hardware.instruction_set() == "avx512" else 8)
    estimated = AnalyticCost(machine, KernelTable(machine, profiled)).prior_seconds(graph)
    assert {work[:2] for work in estimated} <= {each.work[:2] for each in profiled}
    assert len(estimated) == 5

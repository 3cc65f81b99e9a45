"""Plans for several devices: what they cost by formula, and that programs which only send messages take as long."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import pytest

import graphopt
from graphopt.base.errors import MemoryBudgetError, ModelError, UsageError
from graphopt.io.onnx_io import load_typed_model
from graphopt.partition.devices import Cluster, Device, Link
from graphopt.partition.execution import simulate_plan
from graphopt.partition.plan import DevicePlan, DeviceSplit, PlanComparison, PlanMaker, compare_plans, splits_of
from graphopt.partition.plan_report import PlanReport, PlanRequest
from graphopt.partition.planning import find_plan
from graphopt.partition.schedule import PipelineTimes, Schedule, in_flight, passes, pipeline_seconds
from graphopt.partition.sharding import shard_graph
from graphopt.partition.workload import Workload, measure_workload
from graphopt.runtime.session_setting import SessionSetting
from graphopt.search.analytic_cost import AnalyticCost
from tests.commands import run
from tests.graphs import weight
from tests.text import parse

E, LAYERS, BATCH = 32, 6, 16
FAST_LINK, SLOW_LINK = Link(1e-7, 1e11), Link(1e-5, 1e8)


def mlp() -> onnx.ModelProto:
    weights: dict[str, Any] = {}
    body = []
    for layer in range(LAYERS):
        weights |= {f"w{layer}": weight(E, E) * np.float32(0.2), f"b{layer}": weight(E)}
        before = f"h{layer}" if layer else "x"
        body.append(f"m{layer} = MatMul({before}, w{layer}); a{layer} = Add(m{layer}, b{layer})")
        body.append(f"h{layer + 1} = Relu(a{layer})")
    body.append(f"y = Identity(h{LAYERS})")
    return parse(f"float[{BATCH},{E}] x", "; ".join(body), weights, outputs=f"float[{BATCH},{E}] y", opset=18)


@pytest.fixture(scope="module")
def training() -> onnx.ModelProto:
    return graphopt.grad(mlp(), "mse", update="adamw", check=False).model


def workload(model: onnx.ModelProto, shards: int = 1) -> Workload:
    loaded = load_typed_model(model)
    sharded = shard_graph(loaded.graph, shards)
    return measure_workload(sharded, AnalyticCost().node_seconds)


def cluster(
    count: int, memory: int = 10**9, link: Link = FAST_LINK, speeds: Mapping[int, float] = MappingProxyType({})
) -> Cluster:
    return Cluster(tuple(Device(f"d{i}", memory, speeds.get(i, 1.0)) for i in range(count)), link)


def plan_of(found: PlanComparison, *split: int) -> DevicePlan:
    return next(plan for plan in found.plans if plan.split == DeviceSplit(*split))


# -- schedules ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", [Schedule.GPIPE, Schedule.ONE_FORWARD_ONE_BACKWARD])
@pytest.mark.parametrize(("stages", "batches"), [(1, 1), (2, 1), (2, 4), (4, 8), (5, 3), (8, 32)])
def test_equal_stages_are_idle_for_the_bubble(schedule: Schedule, stages: int, batches: int) -> None:
    times = PipelineTimes((1.0,) * stages, (2.0,) * stages, (0.0,) * (stages - 1))
    seconds = pipeline_seconds(times, schedule, batches)
    busy = 3.0 * batches
    assert math.isclose(1 - busy / seconds, (stages - 1) / (batches + stages - 1), abs_tol=1e-12)


UNLIKE = PipelineTimes((3.0, 1.0, 2.0, 5.0), (1.0, 7.0, 2.0, 4.0), (0.5, 6.0, 1.0))


@pytest.mark.parametrize("batches", [1, 2, 7])
def test_unlike_stages_wait_for_the_slowest_stage_or_link(batches: int) -> None:
    def flow(*seconds: float) -> float:
        return sum(seconds) + (batches - 1) * max(seconds)

    forward = flow(*UNLIKE.forward, *UNLIKE.transfers)
    assert math.isclose(pipeline_seconds(UNLIKE, Schedule.FORWARD, batches), forward)
    both = forward + flow(*UNLIKE.backward, *UNLIKE.transfers)
    assert math.isclose(pipeline_seconds(UNLIKE, Schedule.GPIPE, batches), both)


def test_the_order_of_passes_is_that_of_the_schedules() -> None:
    def order(schedule: Schedule, stage: int) -> str:
        return "".join(f"{'fb'[each.is_backward]}{each.batch}" for each in passes(schedule, stage, 3, 4))

    assert order(Schedule.FORWARD, 0) == "f0f1f2f3"
    assert order(Schedule.GPIPE, 1) == "f0f1f2f3b0b1b2b3"
    assert order(Schedule.ONE_FORWARD_ONE_BACKWARD, 0) == "f0f1f2b0f3b1b2b3"
    assert order(Schedule.ONE_FORWARD_ONE_BACKWARD, 2) == "f0b0f1b1f2b2f3b3"


@pytest.mark.parametrize("schedule", [Schedule.GPIPE, Schedule.ONE_FORWARD_ONE_BACKWARD])
@pytest.mark.parametrize("stage", range(4))
def test_no_more_runs_are_in_flight_than_a_stage_keeps(schedule: Schedule, stage: int) -> None:
    open_runs = most = 0
    for each in passes(schedule, stage, 4, 6):
        open_runs += -1 if each.is_backward else 1
        most = max(most, open_runs)
    assert most == in_flight(schedule, stage, 4, 6)


# -- what a run asks of a device ---------------------------------------------------------------------------------------


def test_a_run_reads_each_weight_once() -> None:
    found = workload(mlp())
    weights, gradients, state = found.model_state(0, len(found))
    assert weights == LAYERS * 4 * (E * E + E)
    assert (gradients, state) == (0, 0)
    assert not found.is_training
    halves = found.model_state(0, 9)[0] + found.model_state(9, len(found))[0]
    assert halves == weights


def test_shards_have_a_part_of_the_weights_and_an_all_reduce_for_two_layers() -> None:
    whole, part = workload(mlp()), workload(mlp(), 2)
    assert len(part.collectives) == LAYERS // 2
    assert all(each.nbytes == 4 * BATCH * E for each in part.collectives.values())
    half = whole.model_state(0, len(whole))[0] / 2
    assert half <= part.model_state(0, len(part))[0] <= 1.05 * half


def test_the_passes_of_a_training_graph_are_told_apart(training: onnx.ModelProto) -> None:
    found = workload(training)
    assert found.is_training
    weights, gradients, state = found.model_state(0, len(found))
    assert gradients == LAYERS * 4 * (E * E + E)
    assert weights >= gradients
    assert state == 2 * gradients, "AdamW keeps two numbers for each"
    assert sum(found.backward) > sum(found.forward) > 0
    assert sum(found.update) > 0
    saved = sum(found.saved)
    assert LAYERS * 4 * BATCH * E <= saved <= 3 * LAYERS * 4 * BATCH * E


def test_the_backward_pass_of_a_layer_is_in_the_stage_of_its_weights(training: onnx.ModelProto) -> None:
    """Each layer costs the same, forward and back, but for the first, whose input has no gradient: so do halves."""
    found = workload(training)
    middle = next(
        cut for cut in found.possible_cuts if 2 * found.model_state(0, cut)[1] >= found.model_state(0, len(found))[1]
    )
    first, second = sum(found.backward[:middle]), sum(found.backward[middle:])
    assert 0.5 < first / second < 1.7


# -- plans -------------------------------------------------------------------------------------------------------------


def test_all_factorizations_are_compared() -> None:
    assert {*splits_of(4)} == {
        (4, 1, 1), (2, 2, 1), (2, 1, 2), (1, 4, 1), (1, 2, 2), (1, 1, 4),
    }  # fmt: skip
    assert str(DeviceSplit(2, 1, 3)) == "2 copies × 3 stages"
    assert str(DeviceSplit(1, 1, 1)) == "one device"
    assert len(list(splits_of(12))) == 18


@pytest.mark.parametrize("link", [FAST_LINK, SLOW_LINK], ids=["fast", "slow"])
@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_plans_take_as_long_as_their_messages(count: int, link: Link) -> None:
    works = {shards: workload(mlp(), shards) for shards in (1, 2) if count % shards == 0}
    devices = cluster(count, link=link)
    found = compare_plans(works, devices, 6)
    for plan in found.plans:
        seconds = simulate_plan(plan, works[plan.split.shards], link, 6).seconds
        assert seconds >= plan.seconds * (1 - 1e-9)
        if plan.split.shards == 1 or plan.split.stages == 1:
            assert math.isclose(seconds, plan.seconds, rel_tol=1e-9), plan.split
        else:  # messages to the next stage and among shards share ports
            assert seconds <= 1.3 * plan.seconds, plan.split


@pytest.mark.parametrize("memory", [10**9, 180_000], ids=["enough", "scarce"])
@pytest.mark.parametrize("count", [2, 4, 6])
def test_steps_of_training_take_as_long_as_their_messages(training: onnx.ModelProto, count: int, memory: int) -> None:
    work = {1: workload(training)}
    found = compare_plans(work, cluster(count, memory), 6)
    for plan in found.plans:
        seconds = simulate_plan(plan, work[1], FAST_LINK, 6).seconds
        assert math.isclose(seconds, plan.seconds, rel_tol=0.01), (plan.split, plan.schedule, plan.zero)


def test_unlike_devices_get_stages_by_their_speed() -> None:
    work = {1: workload(mlp())}
    found = compare_plans(work, cluster(2, speeds={1: 3.0}), 8)
    first, second = plan_of(found, 1, 1, 2).copies[0]
    assert sum(work[1].forward[first.start : first.end]) < sum(work[1].forward[second.start : second.end])
    copies = plan_of(found, 2, 1, 1)
    assert math.isclose(copies.throughput, 4 / sum(work[1].forward), rel_tol=1e-6)


def test_copies_win_where_the_model_fits_into_one_device() -> None:
    found = compare_plans({1: workload(mlp()), 2: workload(mlp(), 2)}, cluster(4), 8)
    assert found.winner is not None
    assert found.winner.split == (4, 1, 1)
    assert found.winner.binds == "compute"


def test_stages_win_where_the_model_does_not_fit_and_links_are_slow() -> None:
    works = {1: workload(mlp()), 2: workload(mlp(), 2)}
    weights = LAYERS * 4 * (E * E + E)
    found = compare_plans(works, cluster(2, int(0.9 * weights), SLOW_LINK), 8)
    assert found.winner is not None
    assert found.winner.split == (1, 1, 2)
    assert plan_of(found, 2, 1, 1).binds == "memory"
    assert plan_of(found, 1, 2, 1).binds == "link"


def test_one_run_at_a_time_is_bound_by_the_bubble() -> None:
    found = compare_plans({1: workload(mlp())}, cluster(3), 1)
    assert plan_of(found, 1, 1, 3).binds == "bubble"


def test_what_fits_nowhere_is_said_with_what_is_missing() -> None:
    found = compare_plans({1: workload(mlp())}, cluster(2, 5000), 8)
    assert found.winner is None
    with pytest.raises(
        MemoryBudgetError, match=r"net does not fit into the 2 devices, however it is split: 2 stages"
    ) as e:
        found.require_fit("net", 2)
    assert "are missing (" in str(e.value)
    assert "weights" in str(e.value)


@pytest.mark.parametrize("zero", range(4))
def test_zero_spreads_the_state_of_training_over_copies(training: onnx.ModelProto, zero: int) -> None:
    work = workload(training)
    weights, gradients, state = work.model_state(0, len(work))
    plan = PlanMaker(work, cluster(4), 8, DeviceSplit(4, 1, 1), Schedule.ONE_FORWARD_ONE_BACKWARD, zero).plan()
    stage = plan.copies[0][0]
    assert stage.weights == (math.ceil(weights / 4) if zero >= 3 else weights)
    assert stage.gradients == (gradients // 4 if zero >= 2 else gradients)
    assert stage.optimizer_state == (state // 4 if zero >= 1 else state)
    simulated = simulate_plan(plan, work, FAST_LINK, 8).seconds
    assert math.isclose(simulated, plan.seconds, rel_tol=1e-6)


def test_as_little_of_zero_is_used_as_fits(training: onnx.ModelProto) -> None:
    work = workload(training)
    weights, gradients, state = work.model_state(0, len(work))
    values = work.activations(0, len(work), 1)
    roomy = compare_plans({1: work}, cluster(2, weights + gradients + state + values, SLOW_LINK), 8)
    tight = compare_plans({1: work}, cluster(2, weights + gradients + state // 2 + values, SLOW_LINK), 8)
    assert plan_of(roomy, 2, 1, 1).zero < 2
    assert plan_of(tight, 2, 1, 1).zero >= 1
    assert not plan_of(tight, 2, 1, 1).missing


def test_1f1b_keeps_fewer_values_than_gpipe(training: onnx.ModelProto) -> None:
    work = workload(training)
    gpipe, other = (
        PlanMaker(work, cluster(3), 12, DeviceSplit(1, 1, 3), schedule, 0).plan()
        for schedule in (Schedule.GPIPE, Schedule.ONE_FORWARD_ONE_BACKWARD)
    )
    assert other.memory < gpipe.memory
    assert math.isclose(other.seconds, gpipe.seconds, rel_tol=0.1)


# -- the command -------------------------------------------------------------------------------------------------------

SETTING = SessionSetting(threads=1)


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    path = tmp_path / "devices.toml"
    path.write_text(
        '[[device]]\nname = "d"\ncount = 2\nmemory = "1GB"\n[link]\nlatency = "1us"\nbandwidth = "10GB/s"\n',
        encoding="utf-8",
    )
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(mlp(), path)
    return path


def invoke(*arguments: str | Path) -> Any:
    return run("plan", *arguments)


def test_the_command_prints_a_table_with_the_winner(model: Path, devices: Path) -> None:
    done = invoke(model, "--devices", devices, "--cost", "analytic")
    assert done.exit_code == 0, done.output
    assert "2 copies *" in done.stdout
    assert "the model fits into one device, and copies of it win" in done.stdout
    assert "Simulated message by message, it takes 1.000 of that time." in done.stdout


def test_the_command_prints_json(model: Path, devices: Path) -> None:
    done = invoke(model, "--devices", devices, "--cost", "analytic", "--json", "--micro-batches", "4")
    found = json.loads(done.stdout)
    assert found["micro_batches"] == 4
    assert found["winner"]["copies"] == 2
    assert {(each["copies"], each["shards"], each["stages"]) for each in found["plans"]} == {
        (2, 1, 1), (1, 2, 1), (1, 1, 2), (1, 1, 1),
    }  # fmt: skip
    stages = next(each for each in found["plans"] if each["stages"] == 2)["placement"][0]
    assert stages[0]["nodes"][1] == stages[1]["nodes"][0]


def test_what_fits_nowhere_ends_with_exit_code_4(model: Path, devices: Path) -> None:
    devices.write_text(devices.read_text().replace("1GB", "1KB"))
    done = invoke(model, "--devices", devices, "--cost", "analytic")
    assert done.exit_code == 4
    assert "does not fit into the 2 devices" in done.stderr


def test_wrong_devices_end_with_exit_code_2(model: Path, devices: Path) -> None:
    devices.write_text(devices.read_text().replace("memory", "memry"))
    done = invoke(model, "--devices", devices)
    assert done.exit_code == 2
    assert "there is no key memry; did you mean 'memory'?" in done.stderr


def request(**changes: Any) -> PlanRequest:
    return PlanRequest(cluster=cluster(2), setting=SETTING, **changes)


def test_measured_times_add_up_to_those_of_a_run() -> None:
    found: PlanReport = find_plan(mlp(), request())
    assert found.times.startswith("measured")
    assert sum(found.workloads[1].seconds) > 0
    assert found.winner.split.copies == 2


def test_open_sizes_are_planned_at_a_usual_size_or_at_that_given() -> None:
    weights = {"w": weight(E, E)}
    model = parse(f"float[n,{E}] x", "y = MatMul(x, w)", weights, outputs=f"float[n,{E}] y", opset=18)
    small, large = (
        find_plan(model, request(is_measured=False, dims={"n": [size]})).winner.latency for size in (10, 10_000)
    )
    assert small < large
    with pytest.raises(UsageError, match="times are known for one size of each dim"):
        find_plan(model, request(dims={"n": [1, 2]}))


def test_plans_are_made_from_python(model: Path, devices: Path) -> None:
    found = graphopt.plan_model(model, devices, cost="analytic", micro_batches=4)
    assert found.winner.split == DeviceSplit(2, 1, 1) and found.to_json()["micro_batches"] == 4
    with pytest.raises(UsageError, match="cost is measured or analytic, not 'guessed'"):
        graphopt.plan_model(model, devices, cost="guessed")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="micro_batches cannot be 0"):
        graphopt.plan_model(model, devices, micro_batches=0)


def test_a_model_that_is_not_run_is_planned_at_sizes_that_it_takes() -> None:
    """Usual sizes are longer than the table of positions."""
    weights = {"positions": weight(8, E), "w": weight(E, E)}
    model = parse(
        f"float[n,s,{E}] x",
        "a = Shape<start=1,end=2>(x); z = Constant<value_ints=[0]>(); "
        "p = Slice(positions, z, a); h = Add(x, p); y = MatMul(h, w)",
        weights,
        outputs=f"float[n,s,{E}] y",
    )
    assert find_plan(model, request(is_measured=False)).winner.throughput > 0
    with pytest.raises(ModelError, match="Incompatible dimensions"):
        find_plan(model, request(is_measured=False, dims={"s": 9}))


def test_a_training_graph_is_planned_without_shards(training: onnx.ModelProto) -> None:
    found = find_plan(training, request(is_measured=False))
    assert {plan.split.shards for plan in found.comparison.plans} == {1}
    assert any("training graph" in note for note in found.notes)
    assert "ZeRO" in str(found)

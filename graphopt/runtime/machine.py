"""The machine at hand: how fast it is, timed once, and what tells its costs from those of another."""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields

from graphopt.base import files, ort
from graphopt.base.cache import Cache
from graphopt.base.dtype import DType
from graphopt.base.hardware import accelerators, processor, processor_name, usable_cores
from graphopt.base.records import to_json
from graphopt.ir.graph import INPUT, INTERNAL_DOMAIN, Graph, Node, Value
from graphopt.ir.schemas import newest_version
from graphopt.ir.types import TensorType
from graphopt.runtime.cost_model import NotMeasurableError, TemporarilyNotMeasurableError, cache_key, decode_cached
from graphopt.runtime.graph_sessions import load_graph, random_feeds
from graphopt.runtime.measure import TimingPolicy, TimingSchedule, time_interleaved
from graphopt.runtime.session_setting import SessionSetting

log = logging.getLogger(__name__)

CACHE_FORMAT = 1
"""Version of the cache's contents, raised when their meaning changes; other versions are never read."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Rates that a roofline is made of. The default is one core of an ordinary processor."""

    flops_per_second: float = 1e11
    bytes_per_second: float = 4e10
    launch_seconds: float = 4e-7
    """Seconds to launch a node."""
    block: int = 8
    """Channels that ONNX Runtime's blocked layout of convolutions holds together (16 with AVX-512); 0: it has none,
    and fuses no activations either, as with CUDA."""

    def __post_init__(self) -> None:
        if not all(0 < rate < math.inf for rate in (self.flops_per_second, self.bytes_per_second, self.launch_seconds)):
            raise ValueError(f"no machine is that slow, or that fast: {self}")
        if self.block < 0:
            raise ValueError(f"no layout has blocks of {self.block} channels")

    @staticmethod
    def calibrate(setting: SessionSetting, cache: Cache, policy: TimingPolicy = TimingPolicy()) -> Machine:
        """Return the machine at hand, timed once on three small models and cached.

        Raises:
            UsageError: this onnxruntime does not have the provider.
        """
        key = cache_key("machine", environment_key(setting))
        known = decode_cached(Machine, cache.get([key]).get(key))
        if known is not None:
            return known
        try:
            found = _measure_rates(setting, policy)
        except NotMeasurableError as reason:
            log.warning("the machine cannot be timed, so an ordinary one is assumed: %s", reason)
            return Machine()
        cache.put({key: to_json(found)})
        return found


def _measure_rates(setting: SessionSetting, policy: TimingPolicy) -> Machine:
    """Return rates as a model of usual size meets them: memory is much slower for one that does not fit the caches."""
    size, elements, count = (512, 1 << 20, 256) if setting.is_cpu else (4096, 1 << 26, 256)
    square, long, one = (size, size), (elements,), (1,)
    multiply = _time_graph(_operator_chain("MatMul", [square, square], square, 1), setting, policy)
    add = _time_graph(_operator_chain("Add", [long, long], long, 1), setting, policy)
    launch = _time_graph(_operator_chain("Neg", [one], one, count), setting, policy)
    block = 0 if not setting.is_cpu else 16 if "avx512" in processor() else 8
    return Machine(2 * size**3 / multiply, 3 * 4 * elements / add, launch / count, block)


def _operator_chain(op: str, inputs: Sequence[tuple[int, ...]], output: tuple[int, ...], count: int) -> Graph:
    """Return an operator, `count` times in a row."""
    graph = Graph("chain", {"": 18})
    types = [TensorType(DType.FLOAT, shape) for shape in inputs]
    for type_ in types:
        node = Node(INPUT, (), (graph.new_name("x"),), (type_,), domain=INTERNAL_DOMAIN)
        graph.inputs.append(graph.add(node))
    result = TensorType(DType.FLOAT, output)
    values = [Value(vertex) for vertex in graph.inputs]
    for _ in range(count):
        node = Node(op, tuple(values), (graph.new_name("y"),), (result,), version=newest_version(op))
        values[0] = Value(graph.add(node))
    graph.outputs, graph.output_names, graph.output_types = (values[0],), (graph.new_name("out"),), (result,)
    return graph


def _time_graph(graph: Graph, setting: SessionSetting, policy: TimingPolicy) -> float:
    schedule = TimingSchedule(seconds=policy.calibration_seconds, rounds=policy.calibration_rounds)
    with files.scratch_folder(TemporarilyNotMeasurableError) as folder:
        ready = load_graph(graph, folder / "model.onnx", random_feeds(graph, 0), setting, policy)
        (found,) = time_interleaved([ready.run], schedule, meter=setting.timer, policy=policy)
    return found.minimum


def device_name(setting: SessionSetting) -> str:
    """Return the processor by name, or the accelerators that a provider other than the CPU's may use."""
    return processor_name() if setting.is_cpu else accelerators()


# -- what costs depend on ----------------------------------------------------------------------------------------------


def environment_key(setting: SessionSetting) -> str:
    """Return the key of the environment: all that a time depends on, except the model."""
    facts = {item.name: getattr(setting, item.name) for item in fields(setting)} | {
        "format": CACHE_FORMAT,
        "provider": setting.provider_name,
        "threads": setting.thread_count,
        "cores": usable_cores(),
        "processor": processor(),
        "accelerators": "" if setting.is_cpu else accelerators(),
        "visible": {} if setting.is_cpu else {name: os.environ.get(name) for name in _DEVICE_VARIABLES},
        "onnxruntime": ort.require_onnxruntime().__version__,
        "custom_ops": ort.custom_ops_digest(),
    }
    return json.dumps(facts, sort_keys=True, default=dict)


_DEVICE_VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""Environment variables that choose the machine's GPUs for a process, and so which one comes first."""

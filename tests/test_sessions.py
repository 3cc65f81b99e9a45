"""Sessions of ONNX Runtime: made of any form of a model, under any setting, and run to the end."""

import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from graphopt.base.errors import ModelError, UsageError
from graphopt.io import onnx_io
from graphopt.runtime.session_setting import SessionSetting, bind_io, make_runner
from tests.text import parse


def test_a_session_runs_with_its_feeds() -> None:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "g", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    setting = SessionSetting()
    run = make_runner(setting.open(model.SerializeToString()), {"x": np.array([1, 2], np.float32)}, setting)
    np.testing.assert_array_equal(run(), [[-1, -2]])


def test_bound_outputs_of_several_types_are_those_of_a_plain_run() -> None:
    body = "a = Add(x, x); b = Cast<to=10>(x); c = Cast<to=7>(x); d = Less(x, y); e = Transpose(y)"
    outputs = "float[2,3] a, float16[2,3] b, int64[2,3] c, bool[2,3] d, float[3,2] e"
    model = parse("float[2,3] x, float[2,3] y", body, outputs=outputs)
    session = SessionSetting().open(model)
    values = np.random.default_rng(0).normal(0, 9, (3, 2, 2)).astype(np.float32)
    feeds = {"x": values[..., 0].T, "y": values[..., 1].T}  # neither lies in the order of its axes
    binding = bind_io(session, feeds, SessionSetting().device)
    session.run_with_iobinding(binding)
    expected = session.run(None, feeds)
    for found, wanted in zip(binding.copy_outputs_to_cpu(), expected, strict=True):
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)


def test_types_that_numpy_lacks_are_run() -> None:
    model = parse("bfloat16[3] x", "a = Cast<to=1>(x); y = Neg(a)", outputs="float[3] y, bfloat16[3] x2")
    model.graph.node.append(helper.make_node("Identity", ["x"], ["x2"]))
    feeds = {"x": np.array([1, -2, 0.5], ml_dtypes.bfloat16)}
    session = SessionSetting().open(model)
    assert make_runner(session, feeds, SessionSetting())() is None
    binding = bind_io(session, feeds, ("cpu", 0))
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.get_outputs()[0].numpy(), [-1, 2, -0.5])


def test_what_is_no_tensor_is_run() -> None:
    body = "s = SequenceConstruct(x, x); y = SequenceInsert(s, x)"
    model = parse("float[2] x", body, outputs="seq(float[2]) y")
    session = SessionSetting().open(model)
    (found,) = session.run(None, {"x": np.ones(2, np.float32)})
    assert len(found) == 3
    run = make_runner(session, {"x": np.ones(2, np.float32)}, SessionSetting())
    np.testing.assert_array_equal(run(), [found])


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A model with its weight in a file of its own."""
    model = parse("float[2] x", "y = Add(x, w)", outputs="float[2] y")
    model.graph.initializer.append(numpy_helper.from_array(np.array([3, 4], np.float32), "w"))
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights", size_threshold=0)
    return path


@pytest.mark.parametrize("form", ["text", "path", "bytes", "message"])
def test_a_session_is_made_of_a_path_bytes_or_a_message(outside: Path, form: str) -> None:
    message = onnx.load(outside, load_external_data=False)
    sources = {"text": str(outside), "path": outside, "bytes": outside.read_bytes(), "message": message}
    folder = None if form in ("text", "path") else outside.parent
    session = SessionSetting().open(sources[form], folder=folder)
    (found,) = session.run(None, {"x": np.zeros(2, np.float32)})
    np.testing.assert_array_equal(found, [3, 4])


def test_sessions_of_a_loaded_model_share_its_large_weights() -> None:
    weights = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
    given = parse("float[2,256] x", "y = MatMul(x, w)", {"w": weights}, outputs="float[2,256] y")
    model, setting = onnx_io.load_model(given), SessionSetting(threads=1)
    one, other = (setting.open(model) for _ in range(2))
    assert one.held_arrays["w"] is other.held_arrays["w"]
    assert one.held_arrays["w"].ctypes.data % 64 == 0
    feeds = {"x": np.ones((2, 256), np.float32)}
    (wanted,) = setting.open(given).run(None, feeds)
    for session in (one, other):
        np.testing.assert_array_equal(session.run(None, feeds)[0], wanted)


def test_weights_in_files_and_defaults_of_inputs_are_given_to_a_session_of_a_loaded_model(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    w, d = (rng.standard_normal((256, 256)).astype(np.float32) for _ in range(2))
    given = parse("float[256,256] x, float[256,256] d", "a = MatMul(x, w); y = Add(a, d)", {"w": w})
    given.graph.initializer.append(numpy_helper.from_array(d, "d"))
    path = tmp_path / "model.onnx"
    onnx.save(given, path, save_as_external_data=True, location="weights", size_threshold=0)
    session = SessionSetting(threads=1).open(onnx_io.load_model(path))
    assert session.held_arrays.keys() == {"w"}
    x = np.eye(256, dtype=np.float32)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], w + d, rtol=1e-6)
    np.testing.assert_allclose(session.run(None, {"x": x, "d": x})[0], w + x, rtol=1e-6)


def test_attributes_in_files_are_given_to_a_session_of_a_loaded_model(tmp_path: Path) -> None:
    given = parse("int64[1] n", "y = ConstantOfShape<value=float[1] {2.0}>(n)", outputs="float[k] y")
    value = given.graph.node[0].attribute[0].t
    value.CopyFrom(numpy_helper.from_array(np.array([2], np.float32)))
    path = tmp_path / "model.onnx"
    options: dict[str, Any] = {"save_as_external_data": True, "location": "weights", "size_threshold": 0}
    onnx.save(given, path, convert_attribute=True, **options)
    session = SessionSetting(threads=1).open(onnx_io.load_model(path))
    np.testing.assert_array_equal(session.run(None, {"n": np.array([3])})[0], [2, 2, 2])


def test_weights_of_a_type_that_the_runtime_lacks_are_refused_in_one_line() -> None:
    given = parse("complex64[16384] x", "y = Identity(w); z = Identity(x)", {"w": np.ones(16384, np.complex64)})
    with pytest.raises(ModelError, match="cannot be loaded"):
        SessionSetting(threads=1).open(onnx_io.load_model(given))


def test_threads_spinning_and_affinity_are_set() -> None:
    seen: list[Any] = []
    model = parse("float[2] x", "y = Neg(x)", outputs="float[2] y")
    setting = SessionSetting(threads=2, spinning=True, affinity="1")
    setting.open(model, configure=seen.append)
    SessionSetting().open(model, configure=seen.append)
    entries = [options.get_session_config_entry("session.intra_op.allow_spinning") for options in seen]
    assert entries == ["1", "0"]
    assert [options.intra_op_num_threads for options in seen] == [2, 1]
    assert seen[0].get_session_config_entry("session.intra_op_thread_affinities") == "1"


def test_a_setting_says_what_it_is() -> None:
    assert str(SessionSetting(threads=2)) == "CPUExecutionProvider, 2 threads"
    assert (
        str(SessionSetting(threads=2, spinning=True, affinity="1"))
        == "CPUExecutionProvider, 2 threads, spinning, pinned to 1"
    )
    assert str(SessionSetting(options={"a": "1"})) == "CPUExecutionProvider, a=1, 1 thread"
    assert re.fullmatch(r"CPUExecutionProvider, \d+ threads? \(one a core\)", str(SessionSetting(threads=0)))


def test_what_onnxruntime_refuses_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "text.onnx"
    path.write_text("hello")
    with pytest.raises(ModelError, match=r"^.*text\.onnx cannot be loaded: .*$"):
        SessionSetting().open(path)
    with pytest.raises(ModelError, match=r"^the model cannot be loaded: .*$"):
        SessionSetting().open(b"hello")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("cuda", r"no CUDAExecutionProvider, only .*CPU.*graphopt\[gpu\]"),
        ("OpenVINO", r"no OpenVINOExecutionProvider, .*onnxruntime-openvino"),
        ("CoreMLExecutionProvider", "no CoreMLExecutionProvider, .*another build of onnxruntime may have it"),
        ("cdua", "no cdua, .*did you mean 'cuda'"),
    ],
)
def test_a_provider_that_is_missing_is_named_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, name: str, hint: str
) -> None:
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(UsageError, match=hint):
        _ = SessionSetting(name).provider_name


def test_a_provider_with_threads_of_its_own_gets_as_many_and_binds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenVINO's provider minds no threads of a session, and ends the process when it runs with an `IOBinding`."""
    told: list[Any] = []

    class Session:
        def __init__(self, _: object, __: object, providers: list[tuple[str, dict[str, str]]], **___: object) -> None:
            told.extend(providers)

        def get_providers(self) -> list[str]:
            return ["OpenVINOExecutionProvider"]

        def get_inputs(self) -> list[Any]:
            return [SimpleNamespace(type="tensor(float)")]

        get_outputs = get_inputs

        def run(self, *_: object) -> str:
            return "ran"

    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["OpenVINOExecutionProvider"])
    monkeypatch.setattr("onnxruntime.InferenceSession", Session)
    for setting in (SessionSetting("openvino", threads=3), SessionSetting("openvino", options={"num_of_threads": "2"})):
        assert make_runner(setting.open(b""), {}, setting)() == "ran"
    assert [options["num_of_threads"] for _, options in told] == ["3", "2"]


def test_a_session_of_one_thread_is_timed_by_what_that_thread_is_charged() -> None:
    assert SessionSetting(threads=1).timer is time.thread_time
    assert SessionSetting(threads=2).timer is time.perf_counter
    assert SessionSetting("AzureExecutionProvider", threads=1).timer is time.perf_counter


def test_onnx_runtime_works_in_the_thread_that_calls_it() -> None:
    """Else its processor time would tell nothing."""
    model = parse("float[256,256] x", "a = MatMul(x, x); b = MatMul(a, a); y = MatMul(b, b)")
    session, feeds = SessionSetting(threads=1).open(model), {"x": np.ones((256, 256), np.float32)}
    thread, process = time.thread_time(), time.process_time()
    for _ in range(20):
        session.run(None, feeds)
    assert time.thread_time() - thread > 0.9 * (time.process_time() - process) > 0

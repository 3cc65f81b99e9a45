"""The two front doors from Python: `graphopt.optimize` and `graphopt.simplify`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto

import graphopt
from graphopt.base.errors import ModelError, UsageError
from graphopt.ir import schemas
from graphopt.opset_choice import StageClock
from graphopt.search.model_tuner import Tuner, TuningOptions, TuningResult
from tests import zoo
from tests.fuzz.traits import graphs
from tests.text import parse

WEIGHTS = {name: np.arange(1, 5, dtype=np.float32) for name in "sbmv"} | {"w": np.ones((4, 3, 1, 1), np.float32)}


def model() -> ModelProto:
    body = "c = Conv(x, w); n = BatchNormalization(c, s, b, m, v); y = Identity(n)"
    return parse("float[batch,3,4,4] x", body, WEIGHTS, outputs="float[batch,4,4,4] y")


def ops(found: ModelProto) -> list[str]:
    return [node.op_type for node in found.graph.node]


def test_the_search_has_less_time_where_loading_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[TuningOptions]()

    def tune(tuner: Tuner) -> TuningResult:
        asked.append(tuner.tuning)
        return TuningResult(tuner.simplified)

    monkeypatch.setattr(Tuner, "tune", tune)
    monkeypatch.setattr(StageClock, "lap", lambda *_: 4.0)
    graphopt.optimize(model(), seconds=30.0, check=False)
    (tuning,) = asked
    assert tuning.seconds == 30.0, "by which is kept what was timed"
    assert tuning.tuning_seconds == 26.0


def test_a_clock_tells_what_stages_took_since_it_was_last_asked() -> None:
    clock = StageClock({"load": 2.0, "simplify": 1.0, "search": 7.0})
    assert clock.lap("search", "check") == 3.0
    clock.add(StageClock({"simplify": 0.5, "check": 1.0}))
    assert clock.lap("search", "check") == 0.5


def test_a_result_unpacks_and_the_callers_model_stays_as_it_was(tmp_path: Path) -> None:
    given = model()
    before = given.SerializeToString(deterministic=True)
    result = graphopt.optimize(given, cost="none")
    optimized, ok = result
    assert ok
    assert result.changed
    assert ops(optimized) == ["Conv"]
    assert given.SerializeToString(deterministic=True) == before
    result.save(tmp_path / "out.onnx")
    assert ops(onnx.load(tmp_path / "out.onnx")) == ["Conv"]


def test_a_result_is_a_line_where_it_is_only_looked_at() -> None:
    result = graphopt.optimize(model(), cost="none", check=False)
    assert repr(result) == "<Result: <Report on model 'test': 3 -> 1 nodes, 2 rewrites, not checked>>"


def test_rules_and_passes_are_chosen_by_name() -> None:
    assert ops(graphopt.optimize(model(), skip=["fuse_bn_into_conv"], cost="none").model) == [
        "Conv",
        "BatchNormalization",
    ]
    only = graphopt.optimize(model(), only=["eliminate_identity"], cost="none")
    assert set(only.report.counts) == {"eliminate_identity"}
    with pytest.raises(UsageError, match="did you mean 'fuse_bn_into_conv'"):
        graphopt.optimize(model(), skip=["fuse_bn_into_con"], cost="none")


def test_sizes_are_fixed_on_request() -> None:
    fixed = graphopt.optimize(model(), dims={"batch": 2}, cost="none").model
    assert [d.dim_value for d in fixed.graph.input[0].type.tensor_type.shape.dim] == [2, 3, 4, 4]
    also: Any = {"batch": np.int64(2)}  # as it is read from an array
    assert graphopt.optimize(model(), dims=also, cost="none").model == fixed
    with pytest.raises(UsageError, match="no input 'z'"):
        graphopt.optimize(model(), input_shapes={"z": [1]}, cost="none")


WRONG_TYPE = parse("float[2] x", "y = Relu(x)", outputs="int64[2] y")
SHORT = parse("float[2] x", "y = Add(x, w)", {"w": np.ones(2, np.float32)}, outputs="float[2] y")
SHORT.graph.initializer[0].raw_data = b"short"


@pytest.mark.parametrize(
    ("model", "options", "said"),
    [
        (WRONG_TYPE, {}, "declared INT64"),
        (SHORT, {}, "holds other data"),
        (parse("float[2] x", "y = Gelu(x)", outputs="float[2] y", opset=20), {"target_opset": 13}, "in opset 13"),
    ],
)
def test_what_is_wrong_with_a_model_in_a_file_is_said_with_its_name(
    model: ModelProto, options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(ModelError, match=f"^{tmp_path}/model.onnx: .*{said}"):
        graphopt.optimize(tmp_path / "model.onnx", cost="none", **options)


@pytest.mark.parametrize("numbers", [{"seed": -1}, {"threads": -1}])
def test_numbers_that_cannot_be_negative(numbers: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=f"{next(iter(numbers))} cannot be -1: it is 0 or more"):
        graphopt.Options(**numbers)  # type: ignore[arg-type]


def test_the_opset_is_raised_on_request_and_otherwise_kept() -> None:
    assert graphopt.optimize(model(), cost="none").model.opset_import[0].version == 18
    assert graphopt.optimize(model(), target_opset=21, cost="none").model.opset_import[0].version == 21


CEIL_MODE = "y = AveragePool <kernel_shape = [{0}, {0}], strides = [2, 2], pads = [0, 0, {1}, {1}], ceil_mode = 1> (x)"
OLD_POOL = parse("float[2, 2, 6, 6] x", CEIL_MODE.format(2, 1), outputs="float[2, 2, 3, 3] y", opset=19)
SAME_POOL = parse("float[n, 2, h, w] x", CEIL_MODE.format(3, 1), outputs="float[n, 2, i, j] y", opset=19)
NO_KERNEL_LATER = parse("double[4] x", "y = ThresholdedRelu(x)", outputs="double[4] y", opset=18)


@pytest.mark.parametrize(
    ("model", "opset", "why"),
    [
        (parse("float[2] x", "y = Relu(x)", outputs="float[2] y", opset=13), schemas.MAX_LOADED_OPSET, None),
        (OLD_POOL, 21, "in opset 22 windows that `ceil_mode` begins in the padding"),
        (SAME_POOL, schemas.MAX_LOADED_OPSET, None),
        (NO_KERNEL_LATER, 18, "no kernel for ThresholdedRelu of tensor(double) in opset"),
    ],
)
def test_the_latest_opset_is_the_newest_that_the_model_can_have(model: ModelProto, opset: int, why: str | None) -> None:
    report = graphopt.optimize(model, target_opset="latest", cost="none").report
    assert report.after.opsets["ai.onnx"] == opset
    assert [note for note in report.notes if "newest opset" in note] == [
        note
        for note in report.notes
        if why and note.startswith(f"the newest opset for this model is {opset}: ") and why in note
    ]
    assert (why is None) == (not report.notes)


def test_simplify_takes_the_keywords_of_onnxsim() -> None:
    simplified, ok = graphopt.simplify(model(), check_n=1, overwrite_input_shapes={"x": [1, 3, 4, 4]})
    assert ok
    assert ops(simplified) == ["Conv"]
    assert ops(graphopt.simplify(model(), skip_fuse_bn=True)[0]) == ["Conv", "BatchNormalization"]
    assert ops(graphopt.simplify(model(), perform_optimization=False)[0]) == ["Conv", "BatchNormalization", "Identity"]
    with pytest.warns(UserWarning, match="no rule or pass 'fuse_qkv'"):
        graphopt.simplify(model(), skipped_optimizers=["fuse_qkv"])
    with pytest.warns(UserWarning, match="no option 'include_subgraph'"):
        graphopt.simplify(model(), include_subgraph=True)


def test_what_is_no_model_is_one_clear_error() -> None:
    with pytest.raises(ModelError):
        graphopt.optimize("missing.onnx", cost="none")


HALVED = "s = Shape(x); n = Gather(s,0); h = Div(n,2); u = Unsqueeze(h,[0]); y = Slice(x,[0],u,[0])"
STRANGE = ("(n//2)", "?0", "n")


@pytest.mark.slow
@pytest.mark.parametrize("first", STRANGE)
def test_models_do_not_change_what_others_become(first: str) -> None:
    """Sizes that are computed have names of their own, which a model before or after may use for its own."""
    wanted = [graphopt.optimize(_halved(name), cost="none").model.SerializeToString() for name in STRANGE]
    graphopt.optimize(_halved(first), cost="none")
    again = [graphopt.optimize(_halved(name), cost="none").model.SerializeToString() for name in reversed(STRANGE)]
    assert again[::-1] == wanted


def _halved(name: str) -> onnx.ModelProto:
    model = parse("float[n] x", HALVED)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = name
    return model


def test_what_becomes_an_output_has_the_size_that_is_declared_for_it() -> None:
    """Else only a second run, which reads it off the file, could make use of it."""
    model = parse("float[n] x", "v = Unique(x); y = Identity(v); s = Shape(v)", outputs="float[3] y, int64[1] s")
    result = graphopt.optimize(model, cost="none", check=False)
    assert ops(result.model) == ["Unique"]
    assert graphopt.optimize(result.model, cost="none", check=False).model == result.model


CHOSEN = """t = Constant<value = bool {1}>() o = If(t) <
    then_branch = f () => (float[A,B] a) { a = Relu(x) },
    else_branch = g () => (float[C] b) { m = Constant<value_ints=[-1]>() b = Reshape(x, m) }>"""
"""Its rank is known once the branch takes its place."""
VIEW = "k = Constant<value_ints=[-1,2]>() y = Reshape(o, k)"
"""Does nothing, which is known once the rank is."""
LATE: Mapping[str, tuple[str, str]] = {
    "a node that declares a size": (f"{CHOSEN} {VIEW}", "y"),
    "what an If returns": (
        f"""o = If(c) <then_branch = h () => (float o) {{ {CHOSEN} }}, else_branch = k () => (float p) {{ p = Neg(x) }}>
        {VIEW}""",
        "y",
    ),
    "what a Loop returns": (
        f"""n = Constant<value_int=3>() w = Constant<value = bool {{1}}>()
        o = Loop(n, w, x) <body = h (int64 i, bool go, float[R,S] s) => (bool go, float o) {{ {CHOSEN} }}> {VIEW}""",
        "y",
    ),
    "what a Scan puts together": (
        f"""q = Scan(x) <num_scan_inputs = 1, body = h (float[2] e) => (float[] o) {{ {CHOSEN} }}>
        n = Constant<value_int=0>() o = Gather(q, n) {VIEW}""",
        "y",
    ),
    "what a body reads": (
        f"""{CHOSEN} z = If(c) <then_branch = h () => (float[R,S] y) {{ {VIEW} }},
                                else_branch = l () => (float[T,U] p) {{ p = Neg(x) }}>""",
        "z",
    ),
    "what a Scan carries": (
        f"""{CHOSEN}
        z = Scan(o, x) <num_scan_inputs = 1, body = h (float[R,S] o, float[2] e) => (float[R,S] y) {{ {VIEW} }}>""",
        "z",
    ),
    "what a Scan goes through": (
        f"""{CHOSEN} z = Scan(o) <num_scan_inputs = 1, body = h (float[R] o) => (float[R] y) {{
            k = Constant<value_ints=[2]>() y = Reshape(o, k) }}>""",
        "z",
    ),
}


@pytest.mark.parametrize(("body", "output"), LATE.values(), ids=LATE)
def test_what_becomes_known_late_is_known_to_all_that_depend_on_it(body: str, output: str) -> None:
    model = parse("float[N,2] x, bool c", body, outputs=output)
    model.graph.value_info.append(onnx.helper.make_tensor_value_info("y", TensorProto.FLOAT, ["R", 2]))
    result = graphopt.optimize(model, cost="none")
    assert "Reshape" not in [node.op_type for graph in graphs(result.model.graph) for node in graph.node]
    assert graphopt.optimize(result.model, cost="none", check=False).model == result.model


@pytest.mark.slow
def test_what_was_loaded_before_changes_nothing() -> None:
    """Sizes mean what is in them: models of one process have no names in common."""
    names = ("bert-torchscript-dynamic", "vit-torchscript-dynamic")

    def optimized(name: str) -> bytes:
        result = graphopt.optimize(zoo.load(name), cost="none", check=False)
        return bytes(result.model.SerializeToString(deterministic=True))

    first, second = (optimized(name) for name in names)
    assert [optimized(name) for name in reversed(names)] == [second, first]


def test_a_misspelt_option_is_told_in_the_name_of_the_function() -> None:
    with pytest.raises(TypeError, match=r"optimize\(\) has no option 'exakt'; did you mean 'exact'\?"):
        graphopt.optimize("model.onnx", exakt=True)  # type: ignore[call-arg]

"""What models are run on: given inputs that fit, and sizes that are usual."""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import pytest

import graphopt
from graphopt.base.errors import UsageError
from graphopt.runtime.input_sizes import fit_inputs, usual_sizes
from graphopt.runtime.model_sketch import sketch_model
from graphopt.runtime.sample_inputs import NORMAL, Array, make_feeds, make_usual_feeds
from tests.text import parse


def test_given_inputs_have_the_type_of_the_input_and_give_the_sizes() -> None:
    model = sketch_model(named("float[N,2] x, int64[M] ids"))
    feeds, sizes = fit_inputs(model, {"x": np.ones((4, 2)), "ids": np.ones(3, np.int32)})
    assert sizes == {"N": 4, "M": 3}
    assert {name: array.dtype.name for name, array in feeds.items()} == {"x": "float32", "ids": "int64"}


def test_what_is_no_array_is_given_as_it_is() -> None:
    sequence = [np.ones(2, np.float32)]
    model = parse("seq(float[2]) x", "y = SequenceLength(x)", outputs="int64 y")
    assert fit_inputs(sketch_model(model), {"x": sequence}) == ({"x": sequence}, {})


@pytest.mark.parametrize(
    ("inputs", "complaint"),
    [
        ({"xx": np.ones((4, 2))}, "there is no input 'xx'; did you mean 'x'?"),
        ({"other": np.ones((4, 2))}, "there is no input 'other'; there is 'x', 'z'"),
        ({"x": np.ones((4, 3))}, "input 'x' is FLOAT[N,2], the given values are float64[4, 3]"),
        ({"x": np.ones(4)}, "input 'x' is FLOAT[N,2], the given values are float64[4]"),
        ({"x": np.ones((4, 2), np.int64)}, "input 'x' is FLOAT[N,2], the given values are int64[4, 2]"),
        (
            {"x": np.ones((4, 2)), "z": np.ones(5)},
            "input 'z' is FLOAT[N], the given values are float64[5]: 'N' is 4 elsewhere",
        ),
    ],
)
def test_given_inputs_that_do_not_fit_are_refused(inputs: Mapping[str, Array], complaint: str) -> None:
    with pytest.raises(UsageError) as raised:
        fit_inputs(sketch_model(named("float[N,2] x, float[N] z")), inputs)
    assert str(raised.value) == complaint


@pytest.mark.parametrize(
    ("declared", "sizes"),
    [
        ("float[batch,3,height,width] x", {"batch": 1, "height": 224, "width": 224}),
        ("float[?,3,?,?] x", {"x.0": 1, "x.2": 224, "x.3": 224}),
        ("uint8[N,H,W,3] x", {"N": 1, "H": 224, "W": 224}),
        ("float[?,?,?,?] x", {"x.0": 1, "x.1": 3, "x.2": 224, "x.3": 224}),
        ("float[n,3,frames,112,112] x", {"n": 1, "frames": 32}),
        ("float[n,3,?,112,112] x", {"n": 1, "x.2": 32}),
        ("int64[batch,sequence_length] ids, float[batch,sequence_length] mask", {"batch": 1, "sequence_length": 128}),
        ("int64[a,k] ids, float[a,1,k,k] attention_mask", {"a": 1, "k": 128}),
        ("float[batch,samples] wave", {"batch": 1, "samples": 16_000}),
        ("float[batch,1,samples] wave", {"batch": 1, "samples": 16_000}),
        ("float[batch,80,time] mel", {"batch": 1, "time": 128}),
    ],
)
def test_open_dims_get_usual_sizes(declared: str, sizes: Mapping[str, int]) -> None:
    assert usual_sizes(sketch_model(named(declared)), {}) == [sizes]


@pytest.mark.parametrize(
    ("ids", "key", "mask"),
    [
        pytest.param("batch,seq", "past_length", "total_length", id="by name"),
        pytest.param("batch,s1", "s2", "s3", id="by place"),
    ],
)
@pytest.mark.parametrize(
    ("given", "lengths"),
    [
        pytest.param({}, [(1, 256, 257), (128, 0, 128)], id="a token behind a cache, and a prompt"),
        pytest.param({0: 1}, [(1, 256, 257)], id="a token"),
        pytest.param({0: 16}, [(16, 0, 16)], id="a prompt of 16 tokens"),
        pytest.param({1: 9}, [(1, 9, 10)], id="a short cache"),
        pytest.param({0: 4, 1: 9}, [(4, 9, 13)], id="some tokens behind a short cache"),
    ],
)
def test_a_decoder_is_run_behind_a_cache_and_on_a_prompt(
    ids: str, key: str, mask: str, given: Mapping[int, int], lengths: Sequence[tuple[int, int, int]]
) -> None:
    declared = f"int64[{ids}] ids, float[batch,4,{key},8] past_key, int64[batch,{mask}] attention_mask"
    names = (ids.removeprefix("batch,"), key, mask)
    sizes = {names[place]: size for place, size in given.items()}
    found = usual_sizes(sketch_model(named(declared)), sizes)
    assert [sizes | each for each in found] == [{"batch": 1, **dict(zip(names, each, strict=True))} for each in lengths]


@pytest.mark.parametrize(("past", "lengths"), [(7, {"seq": 1, "total": 8}), (0, {"seq": 128, "total": 128})])
def test_behind_a_cache_of_a_fixed_length_comes_a_token(past: int, lengths: Mapping[str, int]) -> None:
    declared = f"int64[1,seq] ids, float[1,4,{past},8] past_key, int64[1,total] attention_mask"
    assert usual_sizes(sketch_model(named(declared)), {}) == [lengths]


def test_a_decoder_of_one_token_has_no_prompt() -> None:
    """Whatever the encoder made is no cache of the decoder's."""
    declared = (
        "int64[batch,1] ids, float[batch,4,past,8] past_decoder_key, "
        'float[batch,4,source,8] past_encoder_key, int64[batch,"past + 1"] mask'
    )
    assert usual_sizes(sketch_model(named(declared)), {}) == [{"batch": 1, "past": 256, "source": 224}]


OPTIMUM = (
    "float[batch_size,2,past_sequence_length,16] past_key_values_0_key, int64[batch_size,sequence_length] input_ids, "
)
STEP, PROMPT = {"past_sequence_length": 256, "sequence_length": 1}, {"past_sequence_length": 0, "sequence_length": 128}


@pytest.mark.parametrize(
    ("mask", "lengths"),
    [
        pytest.param("past_sequence_length + sequence_length", [STEP, PROMPT], id="optimum"),
        pytest.param("total_sequence_length", [STEP, PROMPT], id="onnxruntime-genai"),
        pytest.param("past_sequence_length + 1", [STEP], id="a mask for one new token"),
    ],
)
def test_decoders_of_exporters_are_run_at_a_step_and_at_a_prefill(mask: str, lengths: list[dict[str, int]]) -> None:
    model = named(f'{OPTIMUM}int64[batch_size,"{mask}"] attention_mask')
    totals = [{mask: sum(each.values())} if mask == "total_sequence_length" else {} for each in lengths]
    expected = [{"batch_size": 1, **each, **total} for each, total in zip(lengths, totals, strict=True)]
    assert usual_sizes(sketch_model(model), {}) == expected


def test_a_merged_decoder_reads_its_cache_unless_that_is_empty() -> None:
    declared = (
        "int64[batch_size,decoder_sequence_length] input_ids, bool[1] use_cache_branch, "
        "float[batch_size,4,past_decoder_sequence_length,16] past_key_values_0_decoder_key, "
        "float[batch_size,4,encoder_sequence_length,16] past_key_values_0_encoder_key, "
        "int64[batch_size,encoder_sequence_length] encoder_attention_mask"
    )
    sketch = sketch_model(named(declared))
    assert [sizes["encoder_sequence_length"] for sizes in usual_sizes(sketch, {})] == [128, 128]
    found = [
        (sizes["past_decoder_sequence_length"], make_usual_feeds(sketch, sizes, seed=1, given={})["use_cache_branch"])
        for sizes in usual_sizes(sketch, {})
    ]
    assert [(past, switch.tolist()) for past, switch in found] == [(256, [True]), (0, [False])]
    given = {"use_cache_branch": np.array([True])}
    assert make_usual_feeds(sketch, usual_sizes(sketch, {})[1], seed=0, given=given)["use_cache_branch"].all()
    drawn = [make_feeds(sketch, usual_sizes(sketch, {})[0], seed=seed, style=NORMAL) for seed in range(2)]
    assert [feeds["use_cache_branch"].tolist() for feeds in drawn] == [[True], [False]], "a check meets both branches"


@pytest.mark.parametrize("name", ["?", "?1", "-1", "None", "*", ""])
def test_dims_that_exporters_call_alike_for_want_of_a_name_may_differ(name: str) -> None:
    """As the height and the width of what PaddleOCR's classifier of directions is fed."""
    body = "s = Shape(x); h = Gather(s, two); w = Gather(s, three); e = Equal(h, w); z = Neg(x); y = Where(e, x, z)"
    model = parse("float[n,3,h,w] x", body, {"two": np.array(2), "three": np.array(3)}, outputs="float[n,3,h,w] y")
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim[2:]:
            dim.dim_param = name
    image = np.zeros((2, 3, 48, 192), np.float32)
    assert fit_inputs(sketch_model(model), {"x": image})[1] == {"n": 2, "x.2": 48, "x.3": 192}
    result = graphopt.optimize(model, inputs={"x": image}, cost="none")
    assert "Where" in result.report.after.ops, "whether the image is a square is not known"
    (declared,) = result.model.graph.input
    assert [dim.dim_param for dim in declared.type.tensor_type.shape.dim] == ["n", "", name, name]


def named(declared: str) -> onnx.ModelProto:
    """A model with these inputs; a dim that is `?` has no name."""
    model = parse(declared.replace("?", "_"), "y = Identity(x)", outputs="float y")
    for value in model.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param == "_":
                dim.ClearField("dim_param")
    return model


def test_a_given_size_is_part_of_what_follows_from_it() -> None:
    model = named("int64[batch,seq] ids, float[batch,4,past,8] key, int64[batch,total] mask")
    assert usual_sizes(sketch_model(model), {"seq": 1, "past": 7}) == [{"batch": 1, "total": 8}]

"""`--before`: what is held back for tools that come after graphopt, and the commands that find and measure it."""

import json
from pathlib import Path

import onnx
import pytest
from typer.testing import CliRunner

import graphopt
from benchmarks import neighbours, tool_orders
from benchmarks.__main__ import main
from benchmarks.neighbours import Finding, minimal
from benchmarks.results import FOLDER, read_rows
from graphopt.cli.main import app
from graphopt.language import rule_library
from graphopt.neighbours import DATA, NEIGHBOURS, held_back_for
from graphopt.rewrite.passes import PASSES
from tests import zoo
from tests.text import parse

TWO_UNSQUEEZES = "u = Unsqueeze(x, [1]); y = Unsqueeze(u, [2])"


def two_unsqueezes() -> onnx.ModelProto:
    return parse("float[n,4] x", TWO_UNSQUEEZES, outputs="float[n,1,1,4] y")


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node if node.op_type != "Constant"]


def test_what_is_held_back_is_known_and_has_reasons() -> None:
    data = json.loads(DATA.read_text(encoding="utf-8"))
    known = {rule.name for rule in rule_library.load_rules(trades=True)} | {pass_.name for pass_ in PASSES}
    assert tuple(data) == NEIGHBOURS
    for tool in NEIGHBOURS:
        held = data[tool]["held_back"]
        assert held.keys() <= known, "python -m benchmarks neighbours"
        assert all(reasons for reasons in held.values())
    held = held_back_for(["ort-transformers"])
    assert {"fuse_consecutive_unsqueezes", "fuse_gelu_tanh_pow_half_first"} <= set(held)
    assert not set(neighbours.written_alike(held)) - set(held), "all spellings of what is written are held back"


def test_a_rewrite_is_held_back_and_the_report_says_so() -> None:
    usual = graphopt.optimize(two_unsqueezes(), cost="none")
    assert operators(usual.model) == ["Unsqueeze"]
    result = graphopt.optimize(two_unsqueezes(), cost="none", before="ort-transformers")
    assert operators(result.model) == ["Unsqueeze", "Unsqueeze"]
    (note,) = [note for note in result.report.notes if note.startswith("held back for ort-transformers: ")]
    assert "fuse_consecutive_unsqueezes" in note
    assert result.recipe.options["--before"] == "ort-transformers"


def test_several_tools_are_named() -> None:
    options = graphopt.Options(before="quantization,ort-transformers")
    assert options.neighbours == ("quantization", "ort-transformers")
    assert options == graphopt.Options(before="quantization,ort-transformers")
    assert set(options.held_back) >= set(held_back_for(["ort-transformers"]))
    assert graphopt.Options().held_back == ()


def test_an_unknown_tool_is_refused_in_a_line(tmp_path: Path) -> None:
    said = "nothing is known of a tool 'ort-transformer', only of ort-transformers and quantization"
    with pytest.raises(graphopt.UsageError, match=said):
        graphopt.Options(before=["ort-transformer"])
    files = [str(tmp_path / name) for name in ("m.onnx", "n.onnx")]
    onnx.save(two_unsqueezes(), files[0])
    done = CliRunner().invoke(app, ["optimize", *files, "--before", "ort-transformer"])
    assert done.exit_code == 2 and said in done.output and "Traceback" not in done.output


def test_the_command_line_takes_several_tools(tmp_path: Path) -> None:
    onnx.save(two_unsqueezes(), tmp_path / "m.onnx")
    arguments = [str(tmp_path / "m.onnx"), str(tmp_path / "n.onnx"), "--cost", "none"]
    done = CliRunner().invoke(app, ["optimize", *arguments, "--before", "quantization,ort-transformers"])
    assert done.exit_code == 0, done.output
    assert operators(onnx.load(tmp_path / "n.onnx")) == ["Unsqueeze", "Unsqueeze"]


def test_a_classic_bert_keeps_the_chains_that_attention_is_found_by() -> None:
    model = zoo.restore(zoo.CLASSIC_BERT)
    result = graphopt.optimize(model, cost="none", before="ort-transformers")
    assert result.ok
    assert operators(result.model).count("Unsqueeze") >= 2
    assert len(operators(result.model)) < len(operators(model)) / 2


# -- the commands ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [set(), {"c"}, {"a", "g"}, {"b", "c", "d"}, set("abcdefg")])
def test_a_smallest_set_is_found(wanted: set[str]) -> None:
    assert set(minimal("abcdefg", lambda names: set(names) >= wanted)) == wanted


def test_losses_are_told() -> None:
    before = Finding({"attention": 3, "skip": 2}, {"float products": 1}, 1e-7)
    assert before.losses(before) == []
    assert before.losses(Finding({"attention": 3, "skip": 6}, {"float products": 0}, 1e-7)) == []
    assert before.losses(Finding({"skip": 2}, {"float products": 1}, 1e-7)) == ["attention: 3 → 0"]
    assert before.losses(Finding(before.found, {"float products": 4}, 1e-7)) == ["float products: 1 → 4"]
    assert before.losses(Finding(before.found, before.left, 1e-3)) == ["difference: 1e-07 → 0.001"]
    assert before.losses(Finding({}, {}, 0.0, error="KeyError: x")) == ["fails: KeyError: x"]
    quantized_more = Finding(before.found, {"float products": 0}, 1e-3)
    assert before.losses(quantized_more) == [], "what is quantized more differs more"
    assert Finding({}, {}, 0.0, error="x").losses(Finding({}, {}, 0.0, error="y")) == []


def test_what_other_fixtures_showed_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    assert neighbours.found_in_others(["a"], path) == {tool: {} for tool in NEIGHBOURS}
    held = {"one": ["a, x: 1 → 0"], "both": ["a, x: 1 → 0", "b, x: 1 → 0"]}
    path.write_text(json.dumps({"quantization": {"held_back": held}}))
    assert neighbours.found_in_others(["a"], path) == {
        "ort-transformers": {},
        "quantization": {"both": ["b, x: 1 → 0"]},
    }


def test_an_unknown_fixture_is_refused_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["neighbours", "--models", "bert-dynamos"])
    assert ended.value.code == 2
    assert "there is no fixture 'bert-dynamos'; did you mean 'bert-dynamo'?" in capsys.readouterr().err


@pytest.mark.slow
def test_quantized_products_are_counted(tmp_path: Path) -> None:
    model, inputs = neighbours.fixture("bert-dynamo")
    onnx.save(model, tmp_path / "m.onnx")
    _, left = neighbours.count_quantized(model)
    assert left["float products of weights"] > 8 and left["float lookups"] > 0
    _, after = neighbours.count_quantized(neighbours.quantize(tmp_path / "m.onnx", "dynamic", inputs[0]))
    assert after["float products of weights"] == after["float lookups"] == 0


def test_the_page_of_orders_is_that_of_the_results() -> None:
    rows = read_rows(FOLDER / "tool-orders.jsonl")
    page = (FOLDER / "tool-orders.md").read_text(encoding="utf-8")
    assert page == tool_orders.markdown(rows)
    docs = (Path(__file__).parent.parent / "docs" / "order-of-tools.md").read_text(encoding="utf-8")
    summary = "\n".join(tool_orders.summary(rows))
    assert f"<!-- orders -->\n\n{summary}\n\n<!-- /orders -->" in docs, "python -m benchmarks tool_orders"
    assert {row["model"] for row in rows} == set(tool_orders.SMALL)

"""The page without a browser: its data, its words, and the files that it is made of."""

import hashlib
import html
import json
import re
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import ModelProto, helper

import graphopt
from graphopt.io import onnx_io
from graphopt.language.rule_library import load_library
from graphopt.report.graph_data import GraphPair
from graphopt.report.graph_outline import GraphOutline, list_nodes
from graphopt.report.html import Html, data_element, element, joined
from graphopt.report.node_changes import KeptRun, NodeNumbers, iter_kept, kept_nodes
from graphopt.report.page import report_page
from graphopt.report.page_layout import LAYOUT_LIBRARY, LAYOUT_LIBRARY_SHA256
from graphopt.report.report import OperatorTimes, Report, Rewrite, RuleText
from graphopt.report.rule_picture import rule_pictures
from graphopt.report.scope_folding import MAX_CHILDREN, Folding, fold_by_scope
from graphopt.rewrite.refused_changes import RefusedRewrite
from graphopt.search.search_report import VersionRace
from tests import zoo
from tests.commands import run
from tests.test_report import TIMED, find, report, speedup, sweep
from tests.text import parse

pytestmark = pytest.mark.usefixtures("own_cache")


def simplified(model: ModelProto) -> graphopt.Result:
    return graphopt.optimize(model, cost="none", check=False)


@cache
def bert() -> graphopt.Result:
    return simplified(zoo.load("bert-torchscript"))


def embedded(page: str, name: str) -> Any:
    """The data in a page."""
    found = re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', page, re.DOTALL)
    assert found, f"no data '{name}'"
    return json.loads(found[1])


# -- nodes -------------------------------------------------------------------------------------------------------------


def numbers(model: ModelProto) -> NodeNumbers:
    return NodeNumbers.from_graph(onnx_io.load_model(model).graph)


@pytest.mark.parametrize("name", ["bert-torchscript", "gpt2-dynamo", "resnet18-torchscript-bn"])
def test_numbers_are_those_of_the_files(name: str) -> None:
    """A report is about two files: whoever reads these counts the same nodes."""
    original = zoo.load(name)
    result = simplified(original)
    assert numbers(result.model).ops == NodeNumbers.from_graph(result.loaded.graph).ops
    assert numbers(original).ops == NodeNumbers.from_graph(result.original).ops
    outline = GraphOutline.from_graph(result.loaded.graph)
    assert [node.name for node in outline.nodes] == [node.label for _, node in list_nodes(result.loaded.graph)]


def statuses(result: graphopt.Result) -> tuple[list[str], list[str]]:
    before, after = GraphOutline.from_graph(result.original), GraphOutline.from_graph(result.loaded.graph)
    places = [(each.original_nodes, each.result_nodes) for each in result.report.rewrites]
    pair = GraphPair.traced(before, after, result.report.kept_nodes, [("", places)])  # type: ignore[list-item]
    return list(pair.statuses[0]), list(pair.statuses[1])


def test_what_changed_is_known_from_the_rewrites_and_not_from_names() -> None:
    """The Exp that replaces another and has its name is new; the Neg that keeps its vertex reads another value."""
    model = parse("float[n,8] x", "a = Relu(x); b = Relu(a); c = Neg(b); y = Abs(c)", outputs="float[n,8] y")
    result = simplified(model)
    before = [node.op_type for node in model.graph.node]
    after = [node.op_type for node in result.model.graph.node]
    old, new = statuses(result)
    assert len(old) == len(before)
    assert len(new) == len(after)
    assert "removed" in old
    for rewrite in result.report.rewrites:
        assert all(old[number] != "kept" for number in rewrite.original_nodes)
        assert all(new[number] != "kept" for number in rewrite.result_nodes)
    for one, other in iter_kept(result.report.kept_nodes):
        assert before[one] == after[other]


def test_every_removed_and_new_node_has_a_rewrite() -> None:
    old, new = statuses(bert())
    removed = {number for rewrite in bert().report.rewrites for number in rewrite.original_nodes}
    made = {number for rewrite in bert().report.rewrites for number in rewrite.result_nodes}
    assert {number for number, status in enumerate(old) if status != "kept"} <= removed
    assert {number for number, status in enumerate(new) if status != "kept"} <= made
    assert {*old} == {"kept", "rewired", "removed"}
    assert {*new} == {"kept", "rewired", "new"}


def test_nodes_of_bodies_are_numbered_before_the_node_that_has_them() -> None:
    model = parse(
        "float[n,8] x, bool c",
        """a = Neg(x)
        y = If(c) <then_branch = t () => (float[n,8] p) { q = Neg(a)  p = Neg(q) },
                   else_branch = e () => (float[n,8] r) { r = Relu(a) }>""",
        outputs="float[n,8] y",
    )
    graph = onnx_io.load_model(model).graph
    assert [node.op for _, node in list_nodes(graph)] == ["Neg", "Neg", "Neg", "Relu", "If"]
    outline = GraphOutline.from_graph(graph)
    assert [[ref.source for ref in node.inputs] for node in outline.nodes] == [[-1], [0], [1], [0], [-2, 2, 3]]
    result = simplified(model)
    assert [rewrite.original_nodes for rewrite in result.report.rewrites if rewrite.original_nodes]
    old, _ = statuses(result)
    assert old[1] == "removed", "the Negs of the branch are none of the graph around it"


def test_kept_nodes_are_told_in_runs() -> None:
    one, other = (
        NodeNumbers({place: number for number, place in enumerate(places)}, tuple(ops))  # type: ignore[misc]
        for places, ops in (("abcdef", "ABCDEF"), ("abxef", "ABXEG"))
    )
    assert kept_nodes(one, other) == (KeptRun(0, 0, 2), KeptRun(4, 3, 1))


# -- blocks ------------------------------------------------------------------------------------------------------------


def folded(model: ModelProto) -> tuple[GraphOutline, Folding]:
    outline = GraphOutline.from_graph(onnx_io.load_model(model).graph)
    return outline, fold_by_scope(outline, outline, (KeptRun(0, 0, len(outline.nodes)),))


def labels(found: Folding, parent: int = 0) -> list[str]:
    return [block.label for number, block in enumerate(found.blocks) if number and block.parent == parent]


def test_blocks_are_the_modules_of_names() -> None:
    _, found = folded(zoo.load("bert-torchscript"))
    assert labels(found) == ["embeddings", "encoder", "pooler"]
    assert labels(found, [block.label for block in found.blocks].index("encoder")) == ["layer.0", "layer.1"]
    assert found.before == found.after


def test_blocks_are_the_modules_of_pytorchs_metadata() -> None:
    outline, found = folded(zoo.load("swin-dynamo"))
    assert labels(found) == ["patch_embed", "layers", "norm", "head"]
    assert all(node.scope for node in outline.nodes), "nodes that name no module are in that of their neighbours"


def chain(length: int, name: str = "") -> ModelProto:
    nodes = [helper.make_node("Neg", [f"v{i}"], [f"v{i + 1}"], name=name and f"{name}{i}") for i in range(length)]
    value = helper.make_tensor_value_info
    first, last = (value(f"v{i}", onnx.TensorProto.FLOAT, [4]) for i in (0, length))
    graph = helper.make_graph(nodes, "chain", [first], [last])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


@pytest.mark.parametrize("name", ["", "/all/in/one/"], ids=["nameless", "one module"])
def test_no_block_has_too_many_boxes(name: str) -> None:
    _, found = folded(chain(1000, name))
    inside = [0] * len(found.blocks)
    for number, block in enumerate(found.blocks):
        inside[block.parent] += number > 0
    for place in found.before:
        inside[place] += 1
    assert max(inside) <= MAX_CHILDREN
    assert sum(found.before.count(number) for number in range(len(found.blocks))) == 1000


def test_a_nameless_model_is_folded_alike_before_and_after() -> None:
    result = simplified(chain(400))
    before, after = GraphOutline.from_graph(result.original), GraphOutline.from_graph(result.loaded.graph)
    found = fold_by_scope(before, after, result.report.kept_nodes)
    for old, new in iter_kept(result.report.kept_nodes):
        assert found.before[old] == found.after[new]


def test_names_that_would_nest_without_end_do_not() -> None:
    _, found = folded(chain(3, "/" + "a/" * 5000))
    assert len(found.blocks) < 40


# -- the page ----------------------------------------------------------------------------------------------------------


def test_the_page_is_one_file_with_all_sections() -> None:
    page = bert().to_html()
    assert not re.search(r'(src|href)="(?!#)|@import|url\(', page), "nothing is loaded"
    assert re.findall(r'<section id="(\w+)"', page) == ["graph", "rewrites", "operators", "tried", "check", "origin"]
    assert "<h1>Not timed; 101 → 73 nodes; not checked</h1>" in page
    assert "Copyright (c) 2012-2014 Chris Pettitt" in page
    assert len(page.encode()) < 200_000


def test_data_of_the_page() -> None:
    data = embedded(bert().to_html(), "graph-data")
    before, after = data["sides"]
    assert [len(side["nodes"]) for side in data["sides"]] == [101, 73]
    assert before["inputs"] == ["input_ids", "attention_mask", "token_type_ids"]
    assert [name for name, _ in after["outputs"]] == ["last_hidden_state", "pooler_output"]
    assert sum(length for _, _, length in data["kept"]) == 56
    assert [block[0] for block in data["blocks"] if block[1] == 0][1:] == ["embeddings", "encoder", "pooler"]
    names = [rewrite["name"] for rewrite in data["rewrites"]]
    assert "fuse_mul_after_heads_into_matmul_add" in names


def test_a_report_and_two_files_give_the_same_page(tmp_path: Path) -> None:
    original = tmp_path / "bert.onnx"
    onnx.save(zoo.load("bert-torchscript"), original)
    names = [tmp_path / name for name in ("fast.onnx", "report.json", "page.html", "again.html")]
    result, told, page, again = names
    done = run("optimize", original, result, "--cost", "none", "--report", told, "--html", page, "--quiet")
    assert done.exit_code == 0, done.output
    done = run("report", told, original, result, "--html", again)
    assert (done.exit_code, done.output) == (0, f"{again}\n")
    assert again.read_text(encoding="utf-8") == page.read_text(encoding="utf-8")
    assert run("report", told, original, result).output == f"{tmp_path / 'report.html'}\n"


def test_models_of_another_report_are_refused(tmp_path: Path) -> None:
    original, told = tmp_path / "bert.onnx", tmp_path / "report.json"
    onnx.save(zoo.load("bert-torchscript"), original)
    told.write_text(bert().report.to_json(), encoding="utf-8")
    done = run("report", told, original, original)
    assert done.exit_code == 1
    assert done.stderr.startswith(f"graphopt: error: {original} is not the model of this report: it has 21 Add for")
    told.write_text("{}", encoding="utf-8")
    done = run("report", told, original, original)
    assert done.exit_code == 2
    assert f"{told} is no report that this version reads: it is no report of schema 1" in done.stderr
    done = run("report", told, original, original, "--html", told)
    assert f"{told} is what the page is made of: the page needs another name" in done.stderr


def test_a_page_takes_no_others_place(tmp_path: Path) -> None:
    original, out = tmp_path / "net.onnx", tmp_path / "fast.onnx"
    onnx.save(chain(3), original)
    for options, text in (
        (("--html", original), f"{original} is the model: the page needs another name"),
        (("--html", out), f"{out} is the output: the page needs another name"),
        (
            ("--report", tmp_path / "r", "--html", tmp_path / "r"),
            f"{tmp_path / 'r'} is where the report goes: the page needs another name",
        ),
    ):
        done = run("optimize", original, out, "--cost", "none", *options)
        assert (done.exit_code, done.stderr) == (2, f"graphopt: error: {text}\n")
    assert run("compare", original, original, "--html", original).exit_code == 2


def test_pages_of_compare_bench_and_rules(tmp_path: Path) -> None:
    original, page = tmp_path / "net.onnx", tmp_path / "page.html"
    onnx.save(chain(3), original)
    assert run("compare", original, original, "--html", page, "--quiet").exit_code == 0
    text = page.read_text(encoding="utf-8")
    assert "<h1>The models agree: " in text
    assert "nodes are paired by operator and name" in text
    assert {*embedded(text, "graph-data")["statuses"]} == {"kept", "rewired", "removed", "new"}
    bench = ("bench", original, original, "--seconds", "0.1", "--threads", "1", "--html", page, "--quiet")
    assert run(*bench).exit_code == 0
    text = page.read_text(encoding="utf-8")
    assert "by ONNX Runtime&#x27;s profiler" in text or "by ONNX Runtime's profiler" in text
    assert run("rules", "fuse_bn_into_conv", "--html", page).exit_code == 0
    assert "goes into its weights and bias" in page.read_text(encoding="utf-8")
    assert run("rules", "--html", page).stderr == "graphopt: error: --html is the page of one rule: name it\n"
    done = run("rules", "fold_constants", "--html", page)
    assert done.stderr.endswith("of one rule: 'fold_constants' is a pass, which has no pattern to draw\n")


def timed() -> Report:
    """A report with a find that was taken, with what could be simplified then, and a sweep that was left."""
    taken = find("merge_linear", saved_seconds=4.2e-4, together=speedup(1.2), is_taken=True)
    left = sweep("kernels of one size", "mix_all", alone=speedup(1.02), reason="differences are within the noise")
    made = [Rewrite("eliminate_nop_mul", removed=("Mul m",), cause=1), Rewrite("fold_shapes", is_rule=False)]
    made += [Rewrite("merge_linear", removed=("Mul a", "Mul b"), added=("Mul c",), cause=1)] * 12
    races = (VersionRace(speedup=speedup(1.25), gain=speedup(1.0)), VersionRace((1,), (), speedup(1.5), speedup(1.2)))
    timing = replace(TIMED, groups=(left, taken), races=races, device="a processor")
    times = OperatorTimes({"Conv": 2e-3, "Mul": 1e-3}, {"Conv": 2e-3}, runs=5)
    return replace(report(), rewrites=tuple(made), timing=timing, operator_times=times)


def words(page: str) -> str:
    """What is to be read of a page, without its data and scripts."""
    text = re.sub(r"<(script|style).*?</\1>", "", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split())


def test_the_page_lists_what_the_check_refused() -> None:
    refused = (
        RefusedRewrite("forget_relu", values="'r'", difference="different: output 'y' differs by 2"),
        RefusedRewrite("fold_wrong", is_rule=False, values="'z'", is_everywhere=True),
    )
    said = words(report_page(replace(timed(), refused=refused), EMPTY, EMPTY))
    assert (
        "Refused by the check rule or pass values that it replaced with it, the model is"
        " forget_relu 'r' different: output 'y' differs by 2 fold_wrong everywhere" in said
    )
    untimed = words(report_page(replace(timed(), refused=refused, timing=None, rewrites=()), EMPTY, EMPTY))
    assert "No search was asked for. Refused by the check" in untimed


def test_a_second_race_is_told_from_the_first() -> None:
    once = VersionRace(speedup=speedup(1.25), gain=speedup(1.0))
    timing = replace(TIMED, races=(once, replace(once, is_second=True)))
    said = words(report_page(replace(report(), timing=timing), EMPTY, EMPTY))
    assert "simplified 1.250 (1.150–1.350) simplified (again, in new sessions) 1.250 (1.150–1.350)" in said


EMPTY = GraphOutline((), (), (), (), has_scopes=False)


def test_the_page_says_what_gained_and_how_much() -> None:
    said = words(report_page(timed(), EMPTY, EMPTY))
    assert "1.500 times as fast (1.400 to 1.600) as the original; 5 → 4 nodes; the check found both equal" in said
    assert (
        "Found by the search in 12 parts like /layer.0 gain: alone it makes each of these parts 1.300 times as fast"
        " (1.200 to 1.400) as before; saves ≈ 0.42 ms of a run; with all that was taken, 1.200 times as fast"
        " (1.100 to 1.300) as the simplified one merge_linear × 12 −12 nodes" in said
    )
    assert "What could be simplified then: eliminate_nop_mul −1 node" in said
    assert "all together 1.250 times as fast (1.150 to 1.350) as the original; none was timed alone" in said
    assert said.index("12 parts like") < said.index("Simplifications, made"), "what gained more comes first"
    assert "by ONNX Runtime's profiler: the least of 5 runs" in said
    assert "Conv 2.000 2.000 Mul 1.000 0 all 3.000 2.000" in said
    assert "sweep kernels of one size: mix_all 1.020 (0.920–1.120) differences are within the noise" in said
    assert "simplified and 12 × merge_linear 1.500 (1.400–1.600) 1.200 (1.100–1.300)" in said
    assert "machine a processor" in said


def test_the_page_tells_estimates_and_the_speed_of_other_weights_from_what_was_measured() -> None:
    report = timed()
    assert report.timing is not None
    groups = tuple(replace(each, is_estimate=not each.is_taken) for each in report.timing.groups)
    timing = replace(report.timing, groups=groups, is_of_other_weights=True)
    said = words(report_page(replace(report, timing=timing), EMPTY, EMPTY))
    assert "as the original, measured with other weights; 5 → 4 nodes" in said
    assert "sweep kernels of one size: mix_all ≈ 1.02 differences are within the noise" in said


def test_the_page_says_what_simplifications_gain_where_that_was_measured() -> None:
    rules = {"fold_shapes": RuleText("sizes are known", speed_without=speedup(0.875))}
    said = words(report_page(replace(timed(), rules=rules), EMPTY, EMPTY))
    assert "fold_shapes without it 0.875 times as fast (0.775 to 0.975) a pass" in said
    assert "as the original; left out one at a time: 1 of them, which removed the most nodes" in said


@pytest.mark.slow
def test_a_timed_run_is_profiled_for_its_page(tmp_path: Path) -> None:
    """Where the time goes, and what leaving out a rule costs, are measured for a page and else not."""
    model, page, told = tmp_path / "net.onnx", tmp_path / "page.html", tmp_path / "report.json"
    onnx.save(zoo.load("bert-torchscript"), model)
    command = ("optimize", model, tmp_path / "fast.onnx", "--threads=1", "--seconds=6", "--quiet", "--report", told)
    assert run(*command).exit_code == 0
    assert json.loads(told.read_text(encoding="utf-8"))["operator_times"] is None
    assert run(*command, "--html", page).exit_code == 0
    data = json.loads(told.read_text(encoding="utf-8"))
    assert "Softmax" in data["operator_times"]["before"]
    ratios = [text["speed_without"]["median"] for text in data["rules"].values() if text["speed_without"]]
    assert ratios
    assert all(0.3 < ratio < 3 for ratio in ratios)
    assert "Where the time goes" in page.read_text(encoding="utf-8")


def test_operators_are_counted_where_none_was_timed() -> None:
    said = words(report_page(replace(timed(), operator_times=None), EMPTY, EMPTY))
    assert "Nodes by operator. These are no times" in said


def test_a_notebook_shows_the_head_of_the_page() -> None:
    shown = bert()._repr_html_()
    assert "101 → 73" in shown
    assert "fuse_mul_after_heads_into_matmul_add × 2" in shown
    assert "<script" not in shown
    assert shown.count("<tr>") == 13


# -- Model Explorer ----------------------------------------------------------------------------------------------------


def test_graphs_for_model_explorer(tmp_path: Path) -> None:
    """The form is that of the files in the tests of Model Explorer, and of its `graph_builder`."""
    original, out = tmp_path / "bert.onnx", tmp_path / "pair.json"
    onnx.save(zoo.load("bert-torchscript"), original)
    command = ("optimize", original, tmp_path / "fast.onnx", "--cost", "none", "--no-check", "--quiet")
    assert run(*command, "--model-explorer", out).exit_code == 0
    told = json.loads(out.read_text(encoding="utf-8"))
    assert told["label"] == "bert.onnx"
    assert [graph["id"] for graph in told["graphs"]] == ["before", "after"]
    for graph, nodes in zip(told["graphs"], (101, 73), strict=True):
        ids = [node["id"] for node in graph["nodes"]]
        assert len(ids) == len({*ids}) == nodes + 3 + 2
        edges = [edge for node in graph["nodes"] for edge in node.get("incomingEdges", ())]
        assert {edge["sourceNodeId"] for edge in edges} <= {*ids}
        assert {text for edge in edges for text in map(type, edge.values())} == {str}
    removed = next(node for node in told["graphs"][0]["nodes"] if node.get("style"))
    facts = {fact["key"]: fact["value"] for fact in removed["attrs"]}
    assert facts["status"] in ("removed", "rewired")
    assert facts["rewrites"]
    assert "encoder/layer.0/attention/output" in {node["namespace"] for node in told["graphs"][1]["nodes"]}


# -- text --------------------------------------------------------------------------------------------------------------


def test_text_is_escaped() -> None:
    assert element("p", "<b>", title='"') == '<p title="&quot;">&lt;b&gt;</p>'
    assert joined([Html("<i>"), "&"]) == "<i>&amp;"
    assert element("input", hidden=True, data_x=None, id=False) == "<input hidden></input>"
    held = data_element("d", ["</script><!--"])
    assert held.count("</script>") == 1
    assert "<!--" not in held
    assert embedded(held, "d") == ["</script><!--"]


def test_a_hostile_report_breaks_no_page() -> None:
    evil = '"></script><script>alert(1)</script>'
    told = json.loads(report().to_json())
    told |= {"source": evil, "notes": [evil], "session_code": evil}
    told["rewrites"][0]["name"] = evil
    told["rules"] = {evil: {"why": evil, "algebra": evil, "line": "{}"}}
    page = report_page(Report.from_json(json.dumps(told)), EMPTY, EMPTY)
    assert evil not in page
    assert "&lt;script&gt;alert(1)" in page


# -- files -------------------------------------------------------------------------------------------------------------


def test_the_layout_library_is_what_its_authors_published() -> None:
    data = files("graphopt.report").joinpath(LAYOUT_LIBRARY).read_bytes()
    assert hashlib.sha256(data).hexdigest() == LAYOUT_LIBRARY_SHA256
    text = files("graphopt.report").joinpath("vendor/dagre.LICENSE.txt").read_text(encoding="utf-8")
    assert "Permission is hereby granted, free of charge" in text


def test_every_rule_can_be_drawn() -> None:
    for rule in load_library().all_rules:
        for picture in rule_pictures(rule):
            assert picture.boxes
            assert all(0 <= end < len(picture.boxes) for edge in picture.edges for end in edge)


def test_picture_of_a_rule() -> None:
    rule = next(rule for rule in load_library().all_rules if rule.name == "fuse_mul_into_matmul")
    before, after = rule_pictures(rule)
    assert before.boxes == (
        ("x", "input"),
        ("w", "constant"),
        ("MatMul", "node removed"),
        ("c", "constant"),
        ("Mul", "node removed"),
    )
    assert after.boxes == (("x", "input"), ("w * c", "constant"), ("MatMul", "node new"))
    assert after.edges == ((0, 2), (1, 2))

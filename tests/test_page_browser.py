"""The page in a real browser: what is drawn, what a click does, that nothing fails, and how long it takes."""

import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import onnx
import pytest

import graphopt
from benchmarks import scaling
from graphopt.io import onnx_io
from graphopt.report.page import rule_page
from graphopt.rule import Rule, tensor
from tests import zoo
from tests.browser import needs_browser, run_in_page
from tests.text import parse

pytestmark = [needs_browser, pytest.mark.slow]

BOXES = """
    const boxes = (side) => [...document.querySelectorAll(`#pane-${side} .box`)];
    const texts = (side) => boxes(side).map((box) => box.querySelector("text").textContent);
    const box = (side, text) => boxes(side).find((box) => box.querySelector("text").textContent === text);
    const click = (element) => element.dispatchEvent(new MouseEvent("click", { bubbles: true }));
    const listed = (text) => [...document.querySelectorAll("#graph-list button")].find(
        (each) => each.textContent.startsWith(text));
    const press = (element, key) => element.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
    const path = () => document.getElementById("graph-path").textContent;
"""


@cache
def page(name: str) -> str:
    return graphopt.optimize(zoo.load(name), cost="none", check=False).to_html()


def ask(text: str, script: str, folder: Path) -> Any:
    return run_in_page(text, BOXES + script, folder)


def test_first_view(tmp_path: Path) -> None:
    shown = ask(
        page("bert-torchscript"),
        """return { title: document.title, heading: document.querySelector("h1").textContent,
            before: texts("before"), after: texts("after"), path: path(),
            drawn: Number(document.documentElement.dataset.drawn),
            removed: boxes("before").filter((box) => box.classList.contains("removed")).length,
            size: box("before", "encoder/layer.0").querySelector(".detail").textContent,
            pictures: document.querySelectorAll(".picture svg").length }""",
        tmp_path,
    )
    assert shown["heading"] == "Not timed; 101 → 73 nodes; not checked"
    assert {"encoder/layer.0", "encoder/layer.1", "embeddings", "attention_mask"} <= {*shown["before"]}
    assert 10 <= len(shown["before"]) <= 40
    assert shown["size"] == "35 → 32 nodes"
    assert shown["path"] == "whole model"
    assert shown["removed"] > 0
    assert shown["pictures"] > 4
    assert shown["drawn"] < 2000


def test_a_block_opens_and_closes(tmp_path: Path) -> None:
    shown = ask(
        page("bert-torchscript"),
        """click(box("before", "encoder/layer.0"));
        const inside = [path(), texts("before"), texts("after")];
        const stubs = document.querySelectorAll("#pane-before text.stub").length;
        press(boxes("after")[0], "Escape");
        const outside = path();
        click(listed("layer.1"));
        return { inside, stubs, outside, list: path() };""",
        tmp_path,
    )
    path, before, after = shown["inside"]
    assert path == "whole model / encoder / layer.0"
    assert {"Softmax", "MatMul", "embeddings"} <= {*before} & {*after}
    assert shown["stubs"] > 0, "three matrices read the embeddings"
    assert shown["outside"] == "whole model / encoder"
    assert shown["list"] == "whole model / encoder / layer.1"


def test_a_node_tells_its_rewrite(tmp_path: Path) -> None:
    shown = ask(
        page("bert-torchscript"),
        """click(box("before", "encoder/layer.0"));
        click(boxes("before").find((box) => box.classList.contains("node") && box.classList.contains("removed")));
        const detail = document.getElementById("graph-detail").textContent;
        const link = document.querySelector("#graph-detail a");
        click(link);
        return { detail, opened: document.querySelector(link.getAttribute("href")).open,
            selected: document.querySelectorAll(".box.selected").length };""",
        tmp_path,
    )
    assert "removed by fuse_mul" in shown["detail"]
    assert shown["opened"] is True
    assert shown["selected"] == 1


def test_a_place_is_shown_in_the_graph(tmp_path: Path) -> None:
    shown = ask(
        page("bert-torchscript"),
        """const place = document.querySelector("button[data-rewrite]");
        click(place);
        return { path: path(), marked: document.querySelectorAll(".box.selected").length };""",
        tmp_path,
    )
    assert shown["path"]
    assert shown["marked"] > 0


def test_search(tmp_path: Path) -> None:
    shown = ask(
        page("bert-torchscript"),
        """const field = document.getElementById("graph-search");
        const find = (text) => { field.value = text; field.dispatchEvent(new Event("input")); };
        find("softmax");
        const results = [...document.querySelectorAll("#graph-results li")].map((each) => each.textContent);
        click(document.querySelector("#graph-results button"));
        const found = { path: path(), marked: document.querySelectorAll(".box.selected text").length };
        find("");
        return { results, found, hidden: document.getElementById("graph-results").hidden };""",
        tmp_path,
    )
    assert shown["results"] == [
        "2 found",
        "Softmax /encoder/layer.0/attention/self/Softmax",
        "Softmax /encoder/layer.1/attention/self/Softmax",
    ]
    assert shown["found"] == {"path": "whole model / encoder / layer.0 / attention / self", "marked": 2}
    assert shown["hidden"] is True


def test_keys_move_between_boxes_and_zoom(tmp_path: Path) -> None:
    shown = ask(
        page("bert-torchscript"),
        """const width = () => Number(document.querySelector("#pane-after svg").getAttribute("width"));
        document.querySelector("#pane-after .box[tabindex='0']").focus();
        const first = document.activeElement.getAttribute("aria-label");
        press(document.activeElement, "ArrowDown");
        const second = document.activeElement.getAttribute("aria-label");
        const before = width();
        press(document.activeElement, "-");
        const smaller = width();
        box("after", "encoder/layer.0").focus();
        press(document.activeElement, "Enter");
        const opened = [path(), document.activeElement.classList.contains("box")];
        return { first, second, before, smaller, opened,
            named: boxes("after").every((box) => box.getAttribute("aria-label")),
            roles: boxes("after").every((box) => box.getAttribute("role") === "button") };""",
        tmp_path,
    )
    assert shown["first"] == "input attention_mask"
    assert shown["second"] != shown["first"]
    assert shown["smaller"] < shown["before"]
    assert shown["opened"] == ["whole model / encoder / layer.0", True]
    assert shown["named"] is shown["roles"] is True


HOSTILE = "</script><img src=x onerror=document.title='broken'>"


def test_names_are_only_text(tmp_path: Path) -> None:
    model = parse("float[n,8] x", "a = Neg(x); b = Neg(a); y = Exp(b)", outputs="float[n,8] y")
    for node in model.graph.node:
        node.name = f"/{HOSTILE}/{HOSTILE}"
    model.graph.name = HOSTILE
    result = graphopt.optimize(model, cost="none", check=False)
    assert HOSTILE not in result.to_html()
    assert HOSTILE not in result._repr_html_()
    shown = ask(
        result.to_html(),
        """document.querySelectorAll("#pane-before .block").forEach(click);
        document.querySelectorAll("#pane-before .node").forEach(click);
        return { title: document.title, images: document.querySelectorAll("img").length,
            text: document.getElementById("graph-detail").textContent };""",
        tmp_path,
    )
    assert shown["images"] == 0
    assert shown["title"] != "broken"
    assert HOSTILE in shown["text"]


def named_transformer(nodes: int) -> onnx.ModelProto:
    """A transformer whose nodes tell their layers, as exporters name them."""
    model = scaling.transformer(nodes)
    for number, node in enumerate(model.graph.node):
        node.name = f"/encoder/layer.{number // 80}/{node.op_type}_{number}"
    return model


LARGE: Mapping[str, Any] = {
    "named": lambda: named_transformer(1000),
    "nameless": lambda: scaling.varied(3000),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_models_are_drawn_in_time(name: str, tmp_path: Path) -> None:
    text = graphopt.optimize(LARGE[name](), cost="none", check=False).to_html()
    assert len(text.encode()) < 1_000_000
    shown = ask(
        text,
        """const most = { boxes: 0, milliseconds: 0 };
        const open = (depth) => {
            most.boxes = Math.max(most.boxes, boxes("before").length, boxes("after").length);
            const block = depth < 4 && boxes("before").find((box) => box.classList.contains("block"));
            if (!block) return;
            const start = performance.now();
            click(block);
            most.milliseconds = Math.max(most.milliseconds, performance.now() - start);
            open(depth + 1);
        };
        const drawn = Number(document.documentElement.dataset.drawn), first = boxes("before").length;
        open(0);
        return { drawn, first, ...most };""",
        tmp_path,
    )
    sys.stdout.write(f"{name}: {len(text) // 1000} kB, {shown}\n")
    assert shown["first"] <= 60
    assert shown["boxes"] <= 300
    assert shown["drawn"] < 2000
    assert shown["milliseconds"] < 2000


def test_a_comparison_and_a_benchmark_are_drawn(tmp_path: Path) -> None:
    from graphopt.check.compare import compare_models
    from graphopt.report.model_pages import ModelPair, comparison_page

    one = parse("float[n,8] x", "a = Neg(x); y = Exp(a)", outputs="float[n,8] y")
    other = parse("float[n,8] x", "a = Neg(x); b = Identity(a); y = Exp(b)", outputs="float[n,8] y")
    pair = ModelPair.from_models(onnx_io.load_model(one), onnx_io.load_model(other))
    shown = ask(
        comparison_page(compare_models(one, other), pair),
        """return { heading: document.querySelector("h1").textContent, after: texts("after"),
            fresh: boxes("after").filter((box) => box.classList.contains("new")).length };""",
        tmp_path,
    )
    assert shown["heading"].startswith("The models agree")
    assert "Identity" in shown["after"]
    assert shown["fresh"] == 1


def test_a_rule_is_drawn(tmp_path: Path) -> None:
    x = tensor("x")
    text = rule_page(Rule("double_is_sum", x * 2.0, x + x), None)
    shown = ask(
        text, """return [...document.querySelectorAll(".picture svg")].map((each) => each.textContent);""", tmp_path
    )
    assert len(shown) == 2
    assert "Mul" in shown[0]
    assert "Add" in shown[1]

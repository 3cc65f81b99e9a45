"""What was done, as data, as JSON and as a table."""

import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, numpy_helper, parser
from rich.console import Console

from graphopt.check.verdict import ComparisonCase, EqualityVerdict, ModelComparison, OutputDifference, format_comparison
from graphopt.io import onnx_io
from graphopt.language.rule_library import load_library
from graphopt.report.report import (
    ModelInspection,
    Report,
    Rewrite,
    format_file_size,
    format_growth,
    format_search,
    model_summary,
    print_comparison,
)
from graphopt.runtime.measure import Speedup
from graphopt.search.search_report import GroupKind, RewriteGroup, SearchTiming
from graphopt.search.stopping import StopReason

GRAPH = """
<ir_version: 10, opset_import: ["" : 20, "acme" : 1]>
g (float[batch,4] x, bool c) => (float[batch,4] z) {
    a = Mul(x, w)
    b = acme.Magic(a)
    z = If(c) <
        then_branch = t () => (float[batch,4] p) { p = Neg(b) },
        else_branch = e () => (float[batch,4] q) { q = Relu(b) }
    >
}
"""


def model() -> ModelProto:
    made = parser.parse_model(GRAPH)
    made.graph.initializer.append(numpy_helper.from_array(np.ones(4, np.float32), "w"))
    return made


EQUAL = ModelComparison(
    EqualityVerdict.EQUAL,
    (OutputDifference("z", "FLOAT", 2.4e-7, 6.1e-8, 2.1e-6, "4·(ε·√(16+L) + ε₃₂·√K)", ok=True),),
    (ComparisonCase(0, {"batch": 1}, "normal"), ComparisonCase(1, {"batch": 3}, "wide", ("w",))),
    "onnxruntime 1.24.0, all its optimizations off",
)
DIFFERENT = ModelComparison(
    EqualityVerdict.DIFFERENT,
    (
        OutputDifference(
            "z", "FLOAT", math.inf, math.inf, 2.1e-6, "…", ok=False, detail="has the shape [2], not [3], seed 0"
        ),
    ),
    (ComparisonCase(0, {}, "normal"),),
)


def report() -> Report:
    """A report as `optimize` makes it, of a model that has lost a Mul and a weight."""
    before = model_summary(onnx_io.load_model(model()))
    ops = {op: count for op, count in before.ops.items() if op != "Mul"}
    return Report(
        source="model.onnx",
        before=replace(before, file_bytes=1_234_567),
        after=replace(before, ops=ops, initializers=0, weight_bytes=0, file_bytes=1_100_000),
        rewrites=(Rewrite("fold_constants", is_rule=False), *[Rewrite("eliminate_nop_mul", removed=("Mul m",))] * 2),
        comparison=EQUAL,
        seconds={"load": 0.04, "simplify": 1.26},
        notes=("rule fuse_gelu needs Gelu: opset 20, the model has 17; --target-opset 20 converts it",),
        versions={"graphopt": "0.1.0"},
    )


def printed(what: Report | ModelInspection | ModelComparison, width: int = 80, *, terminal: bool = False) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, highlight=False, markup=False)
    if isinstance(what, ModelComparison):
        print_comparison(what, console)
    else:
        what.print(console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


TABLE = """\
model.onnx, opset 20, acme 1

              before   after
If                 1       1
Mul                1       0
Neg                1       1
Relu               1       1
acme.Magic         1       1

nodes              5       4
initializers       1       0
weights         16 B     0 B
file          1.2 MB  1.1 MB

input   x  FLOAT[batch,4]
input   c  BOOL[]
output  z  FLOAT[batch,4]

rewrites           3
eliminate_nop_mul  2
fold_constants     1

check    equal: differs by at most 6.1e-08 of the largest element of 'z', where
         2.1e-06 is allowed (absolute 2.4e-07; seeds 0, 1; batch=1; batch=3)
oracle   onnxruntime 1.24.0, all its optimizations off
seconds  simplify 1.3
note     fuse_gelu needs Gelu: opset 20, the model has 17; --target-opset 20
         converts it
"""


def test_the_table() -> None:
    assert printed(report()) == TABLE


@pytest.mark.parametrize("width", [40, 30, 20])
def test_a_narrow_terminal_loses_nothing(width: int) -> None:
    narrow = printed(report(), width)
    assert max(map(len, narrow.splitlines())) <= width
    assert sorted("".join(narrow.split())) == sorted("".join(TABLE.split()))


def test_fewer_is_green_and_the_same_is_plain_on_a_terminal() -> None:
    lines = printed(report(), terminal=True).splitlines()
    assert "\x1b[32m" in next(line for line in lines if "Mul" in line)
    assert "\x1b[" not in next(line for line in lines if "Relu" in line)
    assert "\x1b" not in printed(report())


def test_more_is_yellow() -> None:
    grown = replace(report(), after=replace(report().after, weight_bytes=10_000))
    assert "\x1b[33m" in next(line for line in printed(grown, terminal=True).splitlines() if "weights" in line)


def test_a_proof_is_shown_where_one_is_known() -> None:
    proved = replace(report(), rewrites=(Rewrite("eliminate_nop_mul", proof="proved (exact)"), Rewrite("other")))
    assert "eliminate_nop_mul  1  proved (exact)" in printed(proved)


def test_what_the_search_made_is_told_from_what_is_always_done() -> None:
    made = Rewrite("merge_linear", proof="proved, exact")
    rewrites = (
        made,
        Rewrite("fold_constants", is_rule=False),
        replace(made, cause=1),
        Rewrite("use_winograd", cause=0),
    )
    assert """\
rewrites        4
merge_linear    1  proved, exact
fold_constants  1
by the search   2
merge_linear    1  proved, exact
use_winograd    1
""" in printed(replace(report(), rewrites=rewrites))


def test_uses_of_a_rule_are_counted_by_their_cause() -> None:
    made = Rewrite("merge_linear", proof="proved, exact", weight_bytes=4)
    found = replace(report(), rewrites=(replace(made, cause=1), made, made, replace(made, cause=0)), comparison=None)
    assert [(use.cause, use.places, use.weight_bytes) for use in found.rule_uses] == [
        (None, 2, 8),
        (0, 1, 4),
        (1, 1, 4),
    ]
    assert {(use.name, use.is_rule, use.proof) for use in found.rule_uses} == {("merge_linear", True, "proved, exact")}


def test_rules_with_the_same_to_say_share_a_note() -> None:
    rest = "needs Gelu: opset 20, the model has 17; --target-opset 20 converts it"
    notes = tuple(f"rule fuse_gelu_{i} {rest}" for i in range(40))
    line = "note     40 rules need Gelu: opset 20, the model has 17; --target-opset 20 converts it"
    assert line in printed(replace(report(), notes=notes), 100)


def speedup(ratio: float) -> Speedup:
    return Speedup(ratio, ratio, ratio - 0.1, ratio + 0.1, rounds=15)


TIMED = SearchTiming(
    "measured",
    "CPUExecutionProvider",
    threads=1,
    speedup=speedup(1.5),
    simplified=speedup(1.25),
    stop="nothing was left to try",
)
FOUND = """\
what the search found                    alone       saves
12 × a_rule, another          1.30 (1.20–1.40)  ≈ 0.346 ms  taken
kernels of one size: mix_all  1.02 (0.92–1.12)      1.5 ms   left
3 × estimated                           ≈ 1.25      ≈ 1 ms  taken
reordered: untimed                   not timed               left
"""
SPEED = """\
speed   1.500 times as fast (1.400 to 1.600) as the original; CPUExecutionProvider, 1 thread
        1.250 times as fast (1.150 to 1.350) by what is done without a search
search  no part in which a rule trades, 0 graphs, 0 measured; nothing was left to try
"""


def find(*rules: str, parts: int = 12, **more: Any) -> RewriteGroup:
    """A find in equal parts, measured to be 1.3 times as fast unless something else is said."""
    places = tuple(f"/layer.{number}" for number in range(parts))
    return RewriteGroup(
        GroupKind.FIND, f"{parts} parts like /layer.0", rules, places, **{"alone": speedup(1.3), **more}
    )


def sweep(name: str, *rules: str, **more: Any) -> RewriteGroup:
    return RewriteGroup(GroupKind.SWEEP, name, rules, **more)


def test_names_of_finds_are_not_cut_in_a_terminal_of_usual_width() -> None:
    names = tuple(rule.name for rule in load_library().trades if len(rule.name) < 45)
    text = printed(
        replace(report(), timing=replace(TIMED, groups=(find(*names, saved_seconds=3e-4, is_taken=True),))), 80
    )
    assert all(f"{name}," in text for name in names[:-1])


def test_each_find_says_what_it_brings_to_the_part_and_to_the_whole() -> None:
    finds = (
        find("a_rule", "another", saved_seconds=3.456e-4, is_taken=True),
        sweep("kernels of one size", "mix_all", alone=speedup(1.02), saved_seconds=1.5e-3),
        find("estimated", parts=3, alone=speedup(1.25), is_estimate=True, saved_seconds=1e-3, is_taken=True),
        sweep("reordered", "untimed"),
    )
    made = replace(report(), timing=replace(TIMED, groups=finds))
    assert f"{FOUND}\n{SPEED}" in printed(made, 100)
    assert Report.from_json(made.to_json()) == made


def test_what_simplifying_brings_is_said_where_the_search_found_nothing() -> None:
    assert SPEED in printed(replace(report(), timing=TIMED), 100)


def test_a_loss_by_simplifying_that_may_be_noise_is_called_that() -> None:
    noisy = Speedup(0.9, 0.812, 0.7, 1.1, rounds=15)
    text = printed(replace(report(), timing=replace(TIMED, simplified=noisy)), 120)
    said = "0.812 times as fast (0.700 to 1.100) by what is done without a search"
    assert f"{said}, which may be no difference\n" in text
    lost = replace(noisy, high=0.9)
    assert f"{said.replace('1.100', '0.900')}\n" in printed(
        replace(report(), timing=replace(TIMED, simplified=lost)), 120
    )


def test_a_report_is_a_line_where_it_is_only_looked_at() -> None:
    text = repr(replace(report(), timing=TIMED))
    assert text.startswith("<Report on ") and text.endswith(", 1.500 times as fast, equal>")
    assert len(text) < 120


@pytest.mark.parametrize(
    ("ratio", "why"),
    [
        (Speedup(1.0, 1.004, 0.995, 1.008, 25), "no gain: differences of 1% or less are within the noise"),
        (Speedup(0.98, 1.05, 0.95, 1.15, 25), "no gain: it is between 0.950 and 1.150 after 25 rounds: --seconds"),
        (Speedup(1.3, 1.3, 1.2, 1.4, 3), "no gain: 3 rounds are too few to tell: --seconds gives it longer"),
        (Speedup(0.97, 0.98, 0.95, 1.0, 5), "no gain: after 5 rounds it is probably none"),
        (Speedup(0.9, 0.9, 0.89, 0.91, 25), "no gain: it is slower"),
    ],
)
def test_no_gain_says_why(ratio: Speedup, why: str) -> None:
    assert why in printed(replace(report(), timing=replace(TIMED, speedup=ratio)), 120)


def test_of_a_search_that_ended_early_it_is_not_said_that_nothing_trades() -> None:
    assert "no part in which a rule trades" in format_search(replace(TIMED, copies=0, stop=StopReason.DONE))
    assert (
        format_search(replace(TIMED, copies=0, stop=StopReason.INTERRUPTED))
        == "no part was searched; it was interrupted"
    )


def test_a_find_that_is_left_out_says_why() -> None:
    reason = "the model with it is 1.004 times as fast (0.990 to 1.010) as without"
    groups = find("a_rule", reason=reason), sweep("kernels of one size", "another", reason=reason)
    made = replace(report(), timing=replace(TIMED, groups=groups))
    assert f"left: 12 × a_rule; kernels of one size: another: {reason}\n" in printed(made, 120)
    assert Report.from_json(made.to_json()) == made


def test_what_the_search_brought_beside_simplifying_is_said() -> None:
    made = replace(report(), timing=replace(TIMED, searched=speedup(1.2)))
    assert "1.200 times as fast (1.100 to 1.300) as without what the search found" in printed(made, 100)


def test_rewrites_that_were_all_taken_back_are_not_called_none() -> None:
    text = printed(replace(report(), rewrites=(), timing=replace(TIMED, speedup=None)))
    assert "no rewrite was kept: see the notes" in text
    assert "no rewrite applies" not in text


def test_a_result_that_was_not_timed_is_not_called_the_original() -> None:
    reason = "not timed: there was no time or no room"
    text = printed(replace(report(), timing=replace(TIMED, speedup=None, untimed=reason)), 120)
    assert f"speed   {reason}" in text
    assert "the original, as it was" not in text


@pytest.mark.parametrize(
    ("names", "line"),
    [
        ("a", "a was not applied: it is proved for finite values only"),
        ("ab", "a, b were not applied: they are proved for finite values only"),
        ("abcd", "4 rules were not applied: they are proved for finite values only"),
    ],
)
def test_a_note_on_several_rules_is_in_the_plural(names: str, line: str) -> None:
    notes = tuple(f"rule {name} was not applied: it is proved for finite values only" for name in names)
    assert f"note     {line}\n" in printed(replace(report(), notes=notes), 120)


def test_rules_that_are_no_gain_are_named_together() -> None:
    what = "matches at 2 places and makes nothing smaller there: list it in TRADES, and the search times it"
    text = printed(replace(report(), notes=tuple(f"rule {name} {what}" for name in "ab")), 120)
    assert (
        "a, b match at 2 places and make nothing smaller there: list them in TRADES, and the search times them" in text
    )


def test_decisions_are_told_a_line_each() -> None:
    groups = (
        sweep("kernels of one size", "mix_all", alone=speedup(1.02), reason="it is slower"),
        find("a_rule", "another", alone=None, is_taken=True),
    )
    fused = [
        Rewrite("fuse_bn_into_conv", removed=(f"Conv c{i}", f"BatchNormalization b{i}"), added=(f"Conv c{i}",))
        for i in range(53)
    ]
    mixed = Rewrite("fuse_bn_into_conv", removed=("Mul m", "Add a"), added=("Mul m",))
    many = Rewrite("drop", removed=tuple(f"Relu r{i}" for i in range(6)))
    folded = Rewrite("fold_constants", removed=("ConstantOfShape w",), weight_bytes=9_437_184)
    found = [Rewrite("a_rule", removed=(f"Relu {i}",), added=(f"Clip {i}",), cause=1) for i in range(12)]
    rewrites = (*fused, mixed, many, folded, Rewrite("move"), *found)
    made = replace(report(), rewrites=rewrites, timing=replace(TIMED, groups=groups))
    assert list(made.decisions()) == [
        "fuse_bn_into_conv, 54 times: Conv, BatchNormalization -> Conv and 1 other form, first at c0",
        "drop: Relu, Relu, Relu, 3 more -> nothing, at r0",
        "fold_constants: ConstantOfShape -> nothing, at w, 9.4 MB of weights",
        "move: moves no node",
        "left: kernels of one size: mix_all (alone 1.02 (0.92–1.12)): it is slower",
        "taken: 12 parts like /layer.0 (alone not timed)",
        "    a_rule, 12 times: Relu -> Clip, first at 0",
    ]


def test_decisions_on_equal_layers_are_told_once() -> None:
    """Of 12 layers, to each of which 30 rules were applied."""
    rewrites = [
        Rewrite(f"fuse_something_into_something_else_{rule}", removed=(f"MatMul node_{layer}", f"Add add_{layer}"))
        for layer in range(12)
        for rule in range(30)
    ]
    text = "\n".join(replace(report(), rewrites=tuple(rewrites)).decisions())
    assert len(text.splitlines()) == 30 and len(text) < 4096


def grown(before: int, after: int, *rewrites: Rewrite) -> str:
    """What is said of a model whose weights have grown."""
    one, other = (replace(report().before, weight_bytes=size) for size in (before, after))
    return format_growth(replace(report(), before=one, after=other, rewrites=rewrites))


FOLDED = Rewrite("fold_constants", is_rule=False, removed=("ConstantOfShape c",), weight_bytes=1_000_000)


def test_weights_that_grow_say_by_what_and_how_to_avoid_it() -> None:
    larger = Rewrite("fold_constants", is_rule=False, removed=("ConstantOfShape w",), weight_bytes=9_000_000)
    fused = Rewrite("fuse_bn_into_conv", removed=("Conv a", "BatchNormalization b"), weight_bytes=2_500_000)
    small = Rewrite("split", removed=("Concat s",), weight_bytes=400)
    fewer = Rewrite("merge_duplicate_initializers", is_rule=False, weight_bytes=-310_000)
    said = (
        "grew from 10.4 KB to 12.2 MB: fold_constants adds 10.0 MB at 2 places, most at ConstantOfShape w,"
        " fuse_bn_into_conv adds 2.5 MB at Conv a; to avoid it: --skip fold_constants,fuse_bn_into_conv"
    )
    assert grown(10_400, 12_200_800, FOLDED, larger, fused, small, fewer) == said
    made = replace(report(), before=replace(report().before, weight_bytes=1), rewrites=(FOLDED,))
    text = " ".join(printed(replace(made, after=replace(made.after, weight_bytes=1_000_001)), 120).split())
    assert "weights grew from 1 B to 1.0 MB: fold_constants adds 1.0 MB at ConstantOfShape c; to avoid it" in text


@pytest.mark.parametrize(("before", "after"), [(100_000, 50_000), (1_000, 10_000), (10_000_000, 10_090_000)])
def test_of_weights_that_hardly_grow_nothing_is_said(before: int, after: int) -> None:
    assert grown(before, after, FOLDED) == ""


def test_growth_that_no_rewrite_explains_is_told_all_the_same() -> None:
    assert grown(100, 1_000_100) == "grew from 100 B to 1.0 MB"


def test_nothing_done_is_said() -> None:
    text = printed(replace(report(), rewrites=(), comparison=None))
    assert "no rewrite applies" in text
    assert "check    not made" in text


@pytest.mark.parametrize(
    "comparison", [None, EQUAL, DIFFERENT, ModelComparison(EqualityVerdict.SKIPPED, reason="no kernel")]
)
def test_json_there_and_back(comparison: ModelComparison | None) -> None:
    made = replace(report(), comparison=comparison)
    assert Report.from_json(made.to_json()) == made


def test_json_is_readable_by_anything() -> None:
    data = json.loads(replace(report(), comparison=DIFFERENT).to_json(), parse_constant=pytest.fail)
    assert data["comparison"]["outputs"][0]["absolute"] is None
    assert data["before"]["ops"]["Mul"] == 1


def test_a_later_version_may_know_more() -> None:
    data = json.loads(report().to_json()) | {"gain": 1.3}
    assert Report.from_json(json.dumps(data)) == report()


@pytest.mark.parametrize(
    ("data", "has"), [({"schema_version": 99}, "99"), ({"source": "m.onnx"}, "none"), ([], "none")]
)
def test_a_report_of_another_form_is_refused(data: Any, has: str) -> None:
    with pytest.raises(ValueError, match=f"it is no report of schema 1, but of {has}"):
        Report.from_json(json.dumps(data))


def test_a_report_of_a_model() -> None:
    loaded = onnx_io.load_model(model())
    plain = Report.build(model_summary(loaded), loaded, None, {"load": 0.1})
    made = replace(plain, rewrites=(Rewrite("a"), Rewrite("b"), Rewrite("b")))
    assert made.before.nodes == 5
    assert made.before.parameters == 4
    assert list(made.counts.items()) == [("b", 2), ("a", 1)]
    assert made.versions["onnx"]


def test_a_report_knows_the_size_of_what_was_saved(tmp_path: Path) -> None:
    made = model()
    made.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones((4096, 4), np.float32), "w"))
    loaded = onnx_io.load_model(made)
    plain = Report.build(model_summary(loaded), loaded, None, {})
    for name, external in (("one.onnx", False), ("two.onnx", True)):
        size = plain.with_file_sizes(onnx_io.save_model(loaded, tmp_path / name, external=external)).after.file_bytes
        assert size == sum(path.stat().st_size for path in tmp_path.glob(f"{name}*"))
        again = model_summary(onnx_io.load_model(tmp_path / name))
        assert again.file_bytes == size
        assert again.weight_bytes == 4 * 4 * 4096


@pytest.mark.parametrize(
    ("size", "text"),
    [(None, ""), (0, "0 B"), (999, "999 B"), (1_000, "1.0 KB"), (999_990, "1.0 MB"), (97_800_000, "97.8 MB")],
)
def test_sizes(size: int | None, text: str) -> None:
    assert format_file_size(size) == text


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (None, "not made"),
        (ModelComparison(EqualityVerdict.SKIPPED, reason="no kernel for acme.Magic"),
         "skipped: no kernel for acme.Magic"),
        (ModelComparison(EqualityVerdict.EQUAL, (OutputDifference("z", "INT8", 0, 0, 0, "", ok=True),),
                         EQUAL.cases[:1]),
         "equal: the same in every bit (seed 0; batch=1)"),
        (DIFFERENT, "different: output 'z' has the shape [2], not [3], seed 0"),
        (ModelComparison(EqualityVerdict.EQUAL, (OutputDifference("z", "INT8", 0, 0, 0, "", ok=True),),
                         reason="too large"),
         "equal: the same in every bit; too large"),
    ],
)  # fmt: skip
def test_a_comparison_in_a_sentence(found: ModelComparison | None, text: str) -> None:
    assert format_comparison(found) == text


def test_a_comparison_as_a_table() -> None:
    assert printed(DIFFERENT) == (
        "output   type  difference  relative  tolerance\n"
        "z       FLOAT         inf       inf    2.1e-06  DIFFERENT\n"
        "\n"
        "verdict    different\n"
        "           z has the shape [2], not [3], seed 0\n"
        "tolerance  …\n"
        "run        seed 0, normal values\n"
    )


FUNCTION = """
<ir_version: 10, opset_import: ["" : 20, "local" : 1], producer_name: "somebody">
g (float[2] x) => (float[2] z) { z = local.twice(x) }
<domain: "local", opset_import: ["" : 20]>
twice (a) => (b) { b = Add(a, a) }
"""


def test_an_inspection_counts_bodies_and_names_what_is_unknown() -> None:
    found = ModelInspection.from_model(onnx_io.load_model(model()))
    assert (found.bodies, found.unknown, found.functions) == (2, ("acme.Magic",), ())
    assert "unknown     acme.Magic" in printed(found)


def test_an_inspection_names_functions_and_files(tmp_path: Path) -> None:
    found = ModelInspection.from_model(onnx_io.load_model(parser.parse_model(FUNCTION), inline_functions=False))
    assert (found.functions, found.unknown, found.producer) == (("local.twice",), (), "somebody")
    made = model()
    made.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones((4096, 4), np.float32), "w"))
    onnx_io.save_model(onnx_io.load_model(made), tmp_path / "m.onnx", external=True)
    assert ModelInspection.from_model(onnx_io.load_model(tmp_path / "m.onnx")).external == (
        str(tmp_path / "m.onnx.data"),
    )

"""Rules drawn in text."""

import pytest

from graphopt.language.rule_library import load_library
from graphopt.report.rule_drawing import draw_rule
from graphopt.rule import Rule, const, fn, op, tensor
from tests.tiers import sampled

RULES = {rule.name: rule for rule in load_library().all_rules}

DRAWINGS = {
    "push_nan_guard_below_narrower_matmul": """\
before                           after
MatMul                           Where
├─ Where                         ├─ IsNaN
│  ├─ IsNaN                      │  └─ (a) MatMul
│  │  └─ (a) Softmax  axis=-1    │     ├─ Softmax  axis=-1
│  │     └─ x [*b M K]           │     │  └─ x [*b M K]
│  ├─ 0.0                        │     └─ v [*b K N]
│  └─ (a)                        ├─ 0.0
└─ v [*b K N]                    └─ (a)""",
    "merge_2_parallel_matmuls": """\
before                         after
0: MatMul                      0: (a) Split  axis=-1 [output 0]
   ├─ x [*b M K]                  ├─ MatMul
   └─ w0 [K W0], a constant       │  ├─ x [*b M K]
1: MatMul                         │  └─ = Concat(w0, w1, axis=-1)
   ├─ x [*b M K]                  └─ sizes('W0 W1')
   └─ w1 [K W1], a constant    1: (a) [output 1]

= is computed once, when the model is optimized""",
    "fuse_bn_into_conv": """\
before
BatchNormalization  epsilon=epsilon, momentum=momentum
├─ Conv  …
│  ├─ x [N C *s]
│  ├─ w [M I *k], a constant
│  └─ b [M], a constant
├─ scale [M], a constant
├─ offset [M], a constant
├─ mean [M], a constant
└─ variance [M], a constant

after
Conv  …
├─ x [N C *s]
├─ = w * Reshape(scale / Sqrt(variance + epsilon), sizes('M 1 1*k'))
└─ = (b - mean) * (scale / Sqrt(variance + epsilon)) + offset

= is computed once, when the model is optimized""",
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_both_sides_are_trees_from_the_outputs_down(name: str) -> None:
    assert draw_rule(RULES[name]) == DRAWINGS[name]


def test_sides_that_are_wider_than_the_page_stand_in_turn() -> None:
    x = tensor("x")
    rule = Rule("double_neg", op.Neg(op.Neg(x)), x)
    assert draw_rule(rule, width=20) == "before     after\nNeg        x\n└─ Neg\n   └─ x"
    assert draw_rule(rule, width=10) == "before\nNeg\n└─ Neg\n   └─ x\n\nafter\nx"


def test_an_operand_that_is_absent_is_not_drawn() -> None:
    x, top = tensor("x"), const("top", "")
    rule = Rule("min_is_clip", op.Min(x, top), op.Clip(x, None, top), when=fn.is_float(fn.dtype(x)))
    assert draw_rule(rule).splitlines()[1:] == [
        "Min                      Clip",
        "├─ x                     ├─ x",
        "└─ top [], a constant    └─ top [], a constant",
    ]


@pytest.mark.parametrize("name", sampled(sorted(RULES), 20))
def test_every_rule_is_drawn_with_all_that_it_reads(name: str) -> None:
    before, _, after = draw_rule(RULES[name], width=0).partition("\n\nafter\n")
    drawn = {line.lstrip("│├└─ 0123456789:").split(" ")[0].rstrip(",") for line in before.splitlines()}
    read = {str(hole) for hole in RULES[name].holes.values() if hole.kind in ("tensor", "const", "tensors")}
    assert read <= drawn and after

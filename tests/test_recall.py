"""What a search found survives being written down and read again."""

import pytest

from graphopt.base.records import to_json
from graphopt.language.rule import Rule
from graphopt.search import search_cache
from graphopt.search.explore import Exploration
from graphopt.search.stopping import StopReason
from tests.test_search import DETOUR, DOUBLE, LONG_WAY, SUM_IS_DIFFERENCE, Prices, found, load, told
from tests.text import parse

RULES = (DOUBLE, SUM_IS_DIFFERENCE)
GRAPH = load(DETOUR).graph


def exploration() -> Exploration:
    return found(DETOUR, LONG_WAY, Prices(Mul=2, Add=4, Sub=0.2, Neg=0.2))[1]


def test_finds_are_read_as_they_were_written() -> None:
    before = exploration()
    after = search_cache.parse_exploration(to_json(before), RULES, GRAPH)
    assert after is not None
    (was,), (is_,) = before.solutions, after.solutions
    assert (is_.copies, is_.moves, is_.speedup, is_.estimated_seconds, is_.result) == (
        *(was.copies, was.moves, was.speedup, was.estimated_seconds, was.result),
    )
    assert told(is_) == [("double_is_sum", 1, True), ("sum_is_difference", 1, True)]
    assert after.stop is StopReason.DONE
    assert (after.regions, after.copies, after.states, after.trials) == (1, 1, before.states, before.trials)


@pytest.mark.parametrize("rules", [(), (DOUBLE,)])
def test_finds_of_rules_that_are_gone_are_none(rules: tuple[Rule, ...]) -> None:
    assert search_cache.parse_exploration(to_json(exploration()), rules, GRAPH) is None


@pytest.mark.parametrize("text", [None, "", "{}", "[1]", "null", '{"solutions": [{}]}', "x"])
def test_what_is_no_find_is_none(text: str | None) -> None:
    assert search_cache.parse_exploration(text, RULES, GRAPH) is None


def test_a_damaged_find_is_none() -> None:
    text = to_json(exploration())
    assert search_cache.parse_exploration(text[:-5], RULES, GRAPH) is None
    assert search_cache.parse_exploration(text.replace('"minimum": ', '"minimum": -'), RULES, GRAPH) is None
    assert search_cache.parse_exploration(text.replace("nothing was left", "something was left"), RULES, GRAPH) is None


def test_graphs_with_other_numbers_are_others() -> None:
    """Finds are told by the numbers of vertices."""
    one, same, other = (
        load(parse("float[4] x", f"{body}; y = Add(a, b)")).graph
        for body in ("a = Sin(x); b = Cos(x)", "a = Sin(x); b = Cos(x)", "b = Cos(x); a = Sin(x)")
    )
    assert search_cache.graph_key(one) == search_cache.graph_key(same) != search_cache.graph_key(other)


def test_other_rules_are_another_search() -> None:
    assert search_cache.rules_key(RULES) == search_cache.rules_key(RULES)
    assert search_cache.rules_key(RULES) != search_cache.rules_key(RULES[:1])

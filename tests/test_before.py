"""A few of the rules of before, drawn by seed: what each of them did is still done."""

from random import Random

import pytest

from tests.before import Before, lines, loss, read

FEW = 40


@pytest.mark.parametrize("before", [*map(read, Random(13).sample(lines(), FEW))], ids=str)
def test_what_a_rule_of_before_did_is_still_done(before: Before) -> None:
    assert not loss(before)

"""A few of the rules of before, drawn by seed: what each of them did is still done."""

from random import Random

import pytest

from tests.before import Before, lines, loss, read
from tests.tiers import sampled

FEW = 40


@pytest.mark.parametrize("before", sampled(map(read, Random(13).sample(lines(), FEW)), 4, str))
def test_what_a_rule_of_before_did_is_still_done(before: Before) -> None:
    assert not loss(before)

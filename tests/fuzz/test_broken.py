"""Whatever is in a file, the run ends soon, and in a right model or in one line that says what is wrong with it."""

import itertools
import re
from pathlib import Path

import pytest

from tests.fuzz.driver import fuzz
from tests.fuzz.hostile import FILES, Written
from tests.fuzz.mutations import case

SHARDS = 2
"""Parts of the work, for two cores."""

CASES = 1200
"""That are run where no time is asked for, in all: about a minute on two cores."""


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SHARDS))
def test_broken_models(shard: int, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    seconds = pytestconfig.getoption("--fuzz-seconds")
    numbers = itertools.count(shard, SHARDS) if seconds else range(shard, CASES, SHARDS)
    tally = fuzz(numbers, seconds or 600.0, tmp_path)
    faults = [f"{case(fault['number'])}\n  {fault['found']}: {fault['said']}" for fault in tally.faults]
    assert not faults, "\n".join([f"{dict(tally.counts)}; `python -m tests.fuzz NUMBER` runs one again", *faults])
    assert tally.counts["optimized"] > 3
    assert tally.counts["refused"] > 3


@pytest.mark.slow
@pytest.mark.parametrize(("write", "line"), FILES.values(), ids=FILES.keys())
def test_hostile_files(write: Written, line: str, tmp_path: Path) -> None:
    from graphopt.base.limits import resident_bytes
    from tests.fuzz.worker import said_of

    path, before = write(tmp_path), resident_bytes()
    code, lines = said_of(["optimize", path, tmp_path / "out.onnx", "--cost", "none", "--run-limit", "1"])
    assert code == 1
    assert len(lines) == 1
    assert re.fullmatch(f"graphopt: error: .*({line}).*", lines[0]), lines[0]
    assert not (tmp_path / "out.onnx").exists()
    assert resident_bytes() - before < 500e6

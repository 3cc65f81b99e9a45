"""Weights that a save leaves which fails or is killed: the next one removes them, and no file of anyone else."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from graphopt.base import files
from graphopt.base.errors import OutputError
from graphopt.io import onnx_io, weight_files
from tests.test_files import ended, killed_at, numbers, restore, save, version
from tests.test_onnx_files import contents

forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")


def failing(monkeypatch: pytest.MonkeyPatch, number: int, fail: Callable[[], object]) -> None:
    """Let the n-th rename fail, or the first one after it that there is."""
    left, replace = [number], os.replace

    def renaming(source: str, target: str) -> None:
        left[0] -= 1
        if left[0] < 0:
            fail()
        replace(source, target)

    monkeypatch.setattr(os, "replace", renaming)


def full() -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("renames", [0, 1])
@pytest.mark.parametrize("old", [None, False, True])
@pytest.mark.parametrize("new", [False, True])
def test_where_a_rename_fails_all_is_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: bool | None, new: bool, renames: int
) -> None:
    path = tmp_path / "model.onnx"
    if old is not None:
        save(1, path, external=old)
    before = contents(tmp_path)
    with monkeypatch.context() as patch:
        failing(patch, renames if new else 0, full)
        with pytest.raises(OutputError, match="No space left on device"):
            save(2, path, external=new)
    assert contents(tmp_path) == before
    save(2, path, external=new)
    assert (numbers(path), len(contents(tmp_path))) == ({2}, 1 + new)


def test_weights_that_were_there_stay_where_a_rename_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another model reads them, and this one would as well."""
    path = tmp_path / "model.onnx"
    save(1, path)
    path.rename(tmp_path / "other.onnx")
    before = contents(tmp_path)
    failing(monkeypatch, 0, full)
    with pytest.raises(OutputError):
        save(1, path)
    assert contents(tmp_path) == before


@forks
@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "last"), [(True, True, True), (None, True, True), (True, False, True), (True, True, False)]
)
def test_the_next_save_removes_what_one_has_left_that_was_killed(
    tmp_path: Path, old: bool | None, new: bool, last: bool
) -> None:
    """The next one has other weights, beside the model or in it."""
    path, step, killed, lengths = tmp_path / "model.onnx", 0, True, set[int]()
    model = onnx_io.load_model(version(2))
    if old is not None:
        save(1, path, external=old)
    before = contents(tmp_path)
    while killed:
        restore(tmp_path, before)
        killed = killed_at(step, lambda: onnx_io.save_model(model, path, external=new))
        lengths.add(len(contents(tmp_path)))
        save(3, path, external=last)
        assert (numbers(path), len(contents(tmp_path))) == ({3}, 1 + last), [*contents(tmp_path)]
        step += 1
    assert step > 20
    assert max(lengths) > 2, "nothing was left"


def killed_between(monkeypatch: pytest.MonkeyPatch, path: Path, number: int, renames: int) -> None:
    """Leave what a save leaves that is killed before one of its renames, or after the last."""

    def work() -> None:
        with monkeypatch.context() as patch:
            failing(patch, renames, lambda: os.kill(os.getpid(), signal.SIGKILL))
            patch.setattr(weight_files, "_remove_unmentioned", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
            save(number, path)

    assert ended(work) == -signal.SIGKILL


@forks
@pytest.mark.slow
@pytest.mark.parametrize("renames", [1, 2])
def test_a_save_that_sweeps_may_be_killed_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: int) -> None:
    path, step, killed = tmp_path / "model.onnx", 0, True
    save(1, path)
    killed_between(monkeypatch, path, 2, renames)
    before, model = contents(tmp_path), onnx_io.load_model(version(3))
    assert len([name for name in before if name.endswith(".data")]) == 2
    for name in before:  # a note tells files by what `restore` would change
        os.link(tmp_path / name, tmp_path.with_name(f"{tmp_path.name}-{name}"))
    while killed:
        for left in tmp_path.iterdir():
            left.unlink()
        for name in before:
            os.link(tmp_path.with_name(f"{tmp_path.name}-{name}"), tmp_path / name)
        killed = killed_at(step, lambda: onnx_io.save_model(model, path, external=True))
        assert numbers(path) in ({2} if renames == 2 else {1}, {3})
        save(4, path)
        assert (numbers(path), len(contents(tmp_path))) == ({4}, 2), [*contents(tmp_path)]
        step += 1
    assert step > 20


@forks
def test_a_save_that_fails_removes_what_it_has_found_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.onnx"
    save(1, path)
    before = contents(tmp_path)
    killed_between(monkeypatch, path, 2, 1)
    assert len(contents(tmp_path)) > 2
    with monkeypatch.context() as patch:
        failing(patch, 0, full)
        with pytest.raises(OutputError):
            save(2, path)
    assert contents(tmp_path) == before


@forks
@pytest.mark.slow
def test_one_of_two_saves_to_a_folder_is_killed(tmp_path: Path) -> None:
    path, other, step, killed = tmp_path / "model.onnx", tmp_path / "other.onnx", 0, True
    models = [onnx_io.load_model(version(number)) for number in (1, 2, 3)]
    onnx_io.save_model(models[0], path, external=True)
    onnx_io.save_model(models[0], other, external=True)
    while killed:
        writer = os.fork()
        if writer == 0:
            try:
                for place, model in [(path, models[2]), (other, models[2]), (path, models[0])]:
                    onnx_io.save_model(model, place, external=True)
                os._exit(0)
            finally:
                os._exit(99)
        killed = killed_at(step, lambda: onnx_io.save_model(models[1], path, external=True))
        assert os.waitstatus_to_exitcode(os.waitpid(writer, 0)[1]) == 0
        assert numbers(path) in ({1}, {2})
        assert numbers(other) == {3}
        save(4, path)
        assert (numbers(path), numbers(other), len(contents(tmp_path))) == ({4}, {3}, 4), [*contents(tmp_path)]
        step += 2
    assert step > 20


# -- what stays --------------------------------------------------------------------------------------------------------

LEFT = "model.onnx.0123456789ab.data"
NOTE = ".model.onnx.0123456789ab.drop"


def note(folder: Path, *names: str) -> Path:
    """Write what a killed save notes before it begins."""
    going = {name: weight_files._identity_of((folder / name).lstat()) for name in names}
    (folder / NOTE).write_text(json.dumps({"kept": "", "going": going}))
    return folder / NOTE


@pytest.fixture
def left(tmp_path: Path) -> Iterator[Path]:
    """Weights that a save has left which was killed."""
    save(1, tmp_path / "model.onnx")
    (tmp_path / LEFT).write_bytes(b"weights")
    note(tmp_path, LEFT)
    yield tmp_path / LEFT
    assert not (tmp_path / NOTE).exists()


@pytest.mark.parametrize("external", [False, True])
def test_what_was_left_goes(left: Path, external: bool) -> None:
    save(2, left.with_name("model.onnx"), external=external)
    assert not left.exists()


def test_what_was_left_stays_where_another_model_mentions_it(left: Path) -> None:
    left.with_name("other.onnx").write_bytes(b"... " + LEFT.encode())
    save(2, left.with_name("model.onnx"))
    assert left.exists()


def test_what_was_left_stays_while_a_living_process_needs_it(left: Path) -> None:
    living = json.dumps({"kept": LEFT, "going": {}}).encode()
    with files.locked_marker(left.with_name(".model.onnx.ba9876543210.drop"), living):
        save(2, left.with_name("model.onnx"))
        assert left.exists()
    save(3, left.with_name("model.onnx"))
    assert left.exists(), "its note is gone: it may be the file of someone else by now"


@pytest.mark.parametrize("change", ["replaced", "written to", "a link"])
def test_what_lies_in_the_place_of_what_was_left_stays(left: Path, change: str) -> None:
    if change == "written to":
        left.write_bytes(b"other weights")
    else:
        left.rename(left.with_name("moved"))
        if change == "a link":
            left.symlink_to("moved")
        else:
            left.write_bytes(b"weights")
    save(2, left.with_name("model.onnx"))
    assert left.exists()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (NOTE, "mine"),
        (NOTE, "[]"),
        (NOTE, '{"kept": "", "going": {"mine.bin": [0, 0, 0]}}'),
        (NOTE, '{"kept": "", "going": {"../model.onnx.data": [0, 0, 0]}}'),
        (NOTE, '{"kept": "", "going": {"model.onnx.data": "all"}}'),
        (NOTE, "[" * 100_000),
        (".model.onnx.mine.drop", '{"kept": "", "going": {}}'),
        (".another.onnx.0123456789ab.drop", '{"kept": "", "going": {}}'),
    ],
)
def test_what_is_no_note_of_a_save_of_this_model_stays(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    (tmp_path / "mine.bin").touch()
    (tmp_path / "model.onnx.data").write_bytes(b"mine")
    save(1, tmp_path / "model.onnx")
    assert (tmp_path / name).read_text() == text
    assert (tmp_path / "mine.bin").exists()
    assert (tmp_path / "model.onnx.data").read_bytes() == b"mine"


def test_a_note_that_was_not_written_goes(tmp_path: Path) -> None:
    (tmp_path / NOTE).touch()
    save(1, tmp_path / "model.onnx")
    assert [*contents(tmp_path)] == ["model.onnx", "model.onnx.data"]

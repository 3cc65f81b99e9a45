"""A save is whole or not there: whatever is killed, interrupted, full or read in between, and through links."""

from __future__ import annotations

import multiprocessing
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import BuiltinFunctionType, FrameType
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, numpy_helper

from graphopt.base import files
from graphopt.base.errors import ModelError, OutputError
from graphopt.io import onnx_io
from graphopt.ir.tensor import Tensor
from graphopt.operators import proto_conversion
from tests.test_onnx_files import contents, linear

SIZE = 600


def version(number: int) -> ModelProto:
    """A model whose weights and whose bias, which stays in the model file, both hold a number: y = x · w + b."""
    proto = linear(SIZE)
    weights, bias = proto.graph.initializer
    weights.CopyFrom(numpy_helper.from_array(np.full((SIZE, 2), number, np.float32), "w"))
    bias.CopyFrom(numpy_helper.from_array(np.full(2, number, np.float32), "b"))
    return proto


def numbers(path: Path) -> set[float]:
    """The numbers that a model holds: one, unless it is torn."""
    graph = onnx_io.load_model(path).graph
    held = [node.data.numpy() for _, node in graph.vertices_and_nodes() if node.data is not None]
    return {float(value) for array in held for value in array.ravel()}


def save(number: int, path: Path, *, external: bool = True) -> None:
    onnx_io.save_model(onnx_io.load_model(version(number)), path, external=external)


# -- what files are called, and when they go ---------------------------------------------------------------------------


def test_weights_of_a_new_model_lie_beside_it_under_its_name(tmp_path: Path) -> None:
    save(1, tmp_path / "model.onnx")
    assert [*contents(tmp_path)] == ["model.onnx", "model.onnx.data"]


def test_weights_that_replace_others_are_called_by_their_content(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    save(1, path)
    save(2, path)
    model, weights = contents(tmp_path)
    assert (model, len(weights)) == ("model.onnx", len("model.onnx..data") + 12)
    assert numbers(path) == {2}
    save(3, path)
    assert len(contents(tmp_path)) == 2
    save(2, path)
    assert [*contents(tmp_path)] == [model, weights]


def test_saving_again_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    for number in (1, 1, 2, 2):
        save(number, path)
        before = contents(tmp_path)
        save(number, path)
        assert contents(tmp_path) == before


@pytest.mark.parametrize("again", [False, True])
def test_a_model_that_takes_its_weights_in_leaves_none_behind(tmp_path: Path, again: bool) -> None:
    path = tmp_path / "model.onnx"
    save(1, path)
    if again:
        save(2, path)
    onnx_io.save_model(onnx_io.load_model(path), path, external=False)
    assert [*contents(tmp_path)] == ["model.onnx"]
    assert numbers(path) == {2 if again else 1}


@pytest.mark.parametrize("other", ["a.onnx", "model.onnx.bak"])
def test_weights_that_another_model_reads_stay(tmp_path: Path, other: str) -> None:
    path = tmp_path / "model.onnx"
    save(1, path)
    (tmp_path / other).write_bytes(path.read_bytes())
    save(2, path)
    assert len(contents(tmp_path)) == 4
    assert (numbers(path), numbers(tmp_path / other)) == ({2}, {1})


def test_weights_that_lie_in_the_way_stay(tmp_path: Path) -> None:
    """`b.onnx` was renamed `a.onnx`, its weights were not."""
    save(1, tmp_path / "b.onnx")
    (tmp_path / "b.onnx").rename(tmp_path / "a.onnx")
    onnx_io.save_model(onnx_io.load_model(version(2)), tmp_path / "b.onnx", external=True)
    assert (numbers(tmp_path / "a.onnx"), numbers(tmp_path / "b.onnx")) == ({1}, {2})


def test_weights_that_graphopt_has_not_named_stay(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(version(1), path, save_as_external_data=True, location="mine.bin")
    save(2, path)
    assert (tmp_path / "mine.bin").exists()
    assert numbers(path) == {2}


def test_an_attribute_in_a_file_is_taken_in(tmp_path: Path) -> None:
    """Else it would be looked for beside the new model."""
    proto = linear()
    (tmp_path / "c.data").write_bytes(np.arange(3, dtype=np.float32).tobytes())
    node = proto.graph.node.add(op_type="Custom", domain="acme", output=["z"])
    attribute = node.attribute.add(name="table", type=onnx.AttributeProto.TENSOR)
    attribute.t.CopyFrom(onnx.TensorProto(name="t", data_type=1, dims=[3], data_location=onnx.TensorProto.EXTERNAL))
    attribute.t.external_data.add(key="location", value="c.data")
    proto.opset_import.add(domain="acme", version=1)
    proto.graph.output.add(name="z")
    (tmp_path / "model.onnx").write_bytes(proto.SerializeToString())
    (tmp_path / "out").mkdir()
    for external in (False, True):
        onnx_io.save_model(onnx_io.load_model(tmp_path / "model.onnx"), tmp_path / "out" / "o.onnx", external=external)
        saved = onnx.load(tmp_path / "out" / "o.onnx").graph.node
        (table,) = (node.attribute[0].t for node in saved if node.op_type == "Custom")
        assert numpy_helper.to_array(table).tolist() == [0, 1, 2]


# -- killed at every step ----------------------------------------------------------------------------------------------

SYSTEM = {"posix", "fcntl", "_io"}


def touches_files(function: Any) -> bool:
    """Whether a function of C may make a system call on files."""
    owner = getattr(function, "__self__", None)
    module = getattr(function, "__module__", None) or type(owner).__module__
    return isinstance(function, BuiltinFunctionType) and module in SYSTEM


def ended(work: Callable[[], object]) -> int:
    """The exit code of a copy of this process in which some work was done; of a signal it is the negative."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def killed_at(step: int, work: Callable[[], object]) -> bool:
    """Do some work in a process that is killed after its n-th call to the system; False if it has fewer."""

    def run() -> None:
        left = step

        def count(_: FrameType, event: str, function: Any) -> None:
            nonlocal left
            if event == "c_return" and touches_files(function):
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.setprofile(count)
        work()
        sys.setprofile(None)

    return ended(run) == -signal.SIGKILL


def restore(folder: Path, files: dict[str, bytes]) -> None:
    for left in folder.iterdir():
        left.unlink()
    for name, content in files.items():
        (folder / name).write_bytes(content)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
@pytest.mark.parametrize(("old", "new"), [(True, True), (True, False), (False, True), (False, False), (None, True)])
def test_a_save_that_is_killed_anywhere_leaves_the_old_model_or_the_new_one(
    tmp_path: Path, old: bool | None, new: bool
) -> None:
    """With weights beside the model or in it, before and after; None: there is no old model."""
    path, seen, step = tmp_path / "model.onnx", [], 0
    model = onnx_io.load_model(version(2))
    if old is not None:
        save(1, path, external=old)
    before = contents(tmp_path)
    killed = True
    while killed:
        restore(tmp_path, before)
        killed = killed_at(step, lambda: onnx_io.save_model(model, path, external=new))
        seen.append(numbers(path) if path.exists() else set())
        onnx_io.save_model(model, path, external=new)
        assert not [name for name in contents(tmp_path) if name.endswith(".part")]
        assert numbers(path) == {2}
        step += 1
    assert len(seen) > 20
    first = seen.index({2})
    assert seen == [{1} if old is not None else set()] * first + [{2}] * (len(seen) - first)


def saved_in_turns(path: Path, times: int) -> None:
    models = [onnx_io.load_model(version(number)) for number in (1, 2, 3)]
    for number in range(times):
        onnx_io.save_model(models[number % 3], path, external=number % 7 != 0)


@pytest.mark.slow
def test_a_reader_never_sees_weights_of_another_model(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    saved_in_turns(path, 1)
    writer = multiprocessing.get_context("fork").Process(target=saved_in_turns, args=(path, 120))
    writer.start()
    seen: list[set[float]] = []
    while writer.is_alive() or not seen:
        with suppress(ModelError):  # its weights went after the model was read: that is said
            seen.append(numbers(path))
    writer.join()
    assert writer.exitcode == 0
    assert len(seen) > 3
    assert all(len(found) == 1 for found in seen)


@pytest.mark.slow
def test_two_writers_of_one_model_leave_one_of_two(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    writers = [threading.Thread(target=saved_in_turns, args=(path, 30)) for _ in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(numbers(path)) == 1
    assert len(contents(tmp_path)) == 2


# -- what is left behind -----------------------------------------------------------------------------------------------


def leave_a_part(path: Path) -> None:
    """As a process does that is killed while it writes."""

    def work() -> None:
        with files.temporary_for(path):
            os.kill(os.getpid(), signal.SIGKILL)

    ended(work)


def test_parts_of_killed_runs_are_swept(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    for name in ("model.onnx", "model.onnx.data", "another.onnx"):
        leave_a_part(tmp_path / name)
    (tmp_path / ".model.onnx.mine.part").touch()
    assert len(contents(tmp_path)) == 4
    save(1, path, external=False)
    left = [*contents(tmp_path)]
    assert [name.partition(".onnx")[0] for name in left] == [".another", ".model", "model"]
    assert left[1] == ".model.onnx.mine.part"


def test_a_part_that_is_being_written_is_not_swept(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    with files.temporary_for(path) as part:
        save(1, path, external=False)
        assert Path(part.name).exists()
    assert [*contents(tmp_path)] == ["model.onnx"]


# -- a save that fails or is interrupted leaves all as it was ----------------------------------------------------------


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_an_interrupted_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, external: bool
) -> None:
    path = tmp_path / "model.onnx"
    onnx_io.save_model(onnx_io.load_model(linear()), path, external=external)
    before, loaded, chunks = contents(tmp_path), onnx_io.load_model(path), proto_conversion.raw_chunks

    def failing(tensor: Tensor) -> Iterator[bytes | memoryview]:
        yield b"half of it" if tensor.nbytes > 10 else b""
        raise error

    monkeypatch.setattr(proto_conversion, "raw_chunks", failing)
    with pytest.raises(KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else OutputError):
        onnx_io.save_model(loaded, path, external=external)
    assert contents(tmp_path) == before
    monkeypatch.setattr(proto_conversion, "raw_chunks", chunks)
    onnx_io.save_model(loaded, path, external=external)


INTERRUPTED = 7


def interrupted_at(step: int, work: Callable[[], object]) -> bool | None:
    """Do some work in a process that hears Ctrl-C after its n-th call to the system; None if it has fewer."""

    def run() -> None:
        left = step

        def count(_: FrameType, event: str, function: Any) -> None:
            nonlocal left
            if event == "c_return" and touches_files(function):
                left -= 1
                if left == -1:
                    os.kill(os.getpid(), signal.SIGINT)

        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.setprofile(count)
        try:
            work()
        except KeyboardInterrupt:
            os._exit(INTERRUPTED)
        finally:
            sys.setprofile(None)
        os._exit(1 if left < 0 else 0)

    code = ended(run)
    return None if code == 0 else code == INTERRUPTED


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
@pytest.mark.parametrize("external", [False, True])
def test_an_interrupt_anywhere_in_a_save_is_heard_and_leaves_the_old_files_or_the_new_ones(
    tmp_path: Path, external: bool
) -> None:
    path, model, step, heard = tmp_path / "model.onnx", onnx_io.load_model(version(2)), 0, []
    save(1, path, external=external)
    old = contents(tmp_path)
    save(2, path, external=external)
    new = contents(tmp_path)
    while True:
        restore(tmp_path, old)
        outcome = interrupted_at(step, lambda: onnx_io.save_model(model, path, external=external))
        if outcome is None:
            break
        assert contents(tmp_path) in (old, new)
        heard.append(outcome)
        step += 1
    assert all(heard[:-2])
    assert len(heard) > 20


@pytest.mark.slow
def test_a_full_disk(tmp_path: Path) -> None:
    """The limit on the size of files stands for the end of the disk."""
    script = f"""
import resource, signal
from pathlib import Path
from graphopt.io import onnx_io
from graphopt.base.errors import OutputError
from tests.test_onnx_files import linear
folder = Path({str(tmp_path)!r})
onnx_io.save_model(onnx_io.load_model(linear(100)), folder / "model.onnx")
before = (folder / "model.onnx").read_bytes()
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
for external in (False, True):
    try:
        onnx_io.save_model(onnx_io.load_model(linear()), folder / "model.onnx", external=external)
    except OutputError as error:
        print(error)
assert [path.name for path in folder.iterdir()] == ["model.onnx"]
assert (folder / "model.onnx").read_bytes() == before
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{tmp_path / 'model.onnx'} cannot be written: File too large\n" * 2


def test_an_output_that_cannot_be_written(tmp_path: Path) -> None:
    loaded = onnx_io.load_model(linear())
    for path, message in [(tmp_path / "nowhere" / "y.onnx", "No such file"), (tmp_path, "it is no ordinary file")]:
        with pytest.raises(OutputError, match=message):
            onnx_io.save_model(loaded, path)
    with pytest.raises(OutputError, match="no ordinary file"):
        onnx_io.save_model(loaded, os.devnull)
    assert not Path(os.devnull).is_file()


# -- links, modes and what is no file ----------------------------------------------------------------------------------


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_is_written_through(tmp_path: Path, exists: bool) -> None:
    link, target = tmp_path / "link.onnx", tmp_path / "elsewhere" / "model.onnx"
    target.parent.mkdir()
    if exists:
        save(1, target)
    link.symlink_to("elsewhere/model.onnx")
    save(2, link, external=False)
    assert link.is_symlink()
    assert numbers(target) == {2}
    assert [*contents(target.parent)] == ["model.onnx"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "link.onnx"]


def test_weights_beside_the_target_of_a_link_elsewhere_would_be_missed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link.onnx").symlink_to("elsewhere/model.onnx")
    (tmp_path / "beside.onnx").symlink_to("model.onnx")
    with pytest.raises(OutputError, match=r"link\.onnx cannot be written: .*elsewhere/model\.onnx.*another folder"):
        save(1, tmp_path / "link.onnx")
    assert not [*contents(tmp_path / "elsewhere")]
    save(1, tmp_path / "beside.onnx")
    assert numbers(tmp_path / "beside.onnx") == numbers(tmp_path / "model.onnx") == {1}


def test_a_link_to_itself_is_no_output(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OutputError, match="a link that leads back to itself"):
        save(1, tmp_path / "a")


def test_the_mode_of_a_file_stays(tmp_path: Path) -> None:
    """That of a model is also for its weights; a new one has what the user's mask leaves."""
    path, report = tmp_path / "model.onnx", tmp_path / "report.json"
    before = os.umask(0o027)
    try:
        save(1, path)
        files.write_text(report, "1")
        assert {modes(left) for left in tmp_path.iterdir()} == {0o640}
        for kept in (path, report):
            kept.chmod(0o604)
        save(2, path)
        files.write_text(report, "2")
        assert {modes(left) for left in tmp_path.iterdir()} == {0o604}
    finally:
        os.umask(before)


def modes(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_text_goes_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("report.json")
    for text in ("one", "two"):
        files.write_text(tmp_path / "link", text)
        assert (tmp_path / "report.json").read_text() == text
    assert (tmp_path / "link").is_symlink()
    assert len(contents(tmp_path)) == 2

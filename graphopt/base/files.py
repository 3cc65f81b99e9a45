"""Files that appear whole or not at all, whoever reads or is killed meanwhile; and the folder of the cache."""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import BinaryIO

from graphopt.base.errors import ModelError, OutputError

if sys.platform != "win32":
    import fcntl

LOCK_TIMEOUT = 5.0
"""Seconds to wait for a folder that is locked: another run needs milliseconds, and another program may need hours."""

# -- in the place of another file --------------------------------------------------------------------------------------


def resolve_target(path: Path) -> Path:
    """Return the file that a path leads to: what is written under a link becomes its target, and the link stays.

    A link to what is no ordinary file is itself the answer: the target of `/dev/fd/3` may be no path, but a pipe.

    Raises:
        OutputError: the link leads back to itself.
    """
    if not path.is_symlink() or (path.exists() and not path.is_file()):
        return path
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise OutputError(f"{path} cannot be written: it is a link that leads back to itself")
    return target


@contextmanager
def temporary_for(final: Path) -> Iterator[BinaryIO]:
    """Yield a file beside the one whose place it takes by `commit`; without that it is gone at the end.

    It is locked as long as its process lives. Parts that killed runs have left for the same file are removed.
    """
    path = final.with_name(f".{final.name}.{os.urandom(6).hex()}.part")  # in containers all processes have one number
    try:
        with ExitStack() as stack:
            with folder_lock(final.parent):
                remove_stale(final)
                file = stack.enter_context(path.open("xb"))
                _lock(file.fileno())
            yield file
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def remove_stale(final: Path) -> None:
    """Remove the parts of a file that belong to no living process. The caller holds `folder_lock`."""
    ours = re.compile(rf"\.{re.escape(final.name)}\.[0-9a-f]{{12}}\.part")
    with suppress(OSError):
        for name in filter(ours.fullmatch, os.listdir(final.parent)):
            _remove_if_abandoned(final.with_name(name))


def _remove_if_abandoned(part: Path) -> None:
    with suppress(OSError):
        if sys.platform == "win32":
            part.unlink()  # fails while it is open
            return
        with part.open("r+b") as file:
            if _lock(file.fileno()):
                part.unlink()


def _lock(handle: int) -> bool:
    """Lock a file or folder until it is closed; False where the system has no locks for it.

    Raises:
        BlockingIOError: another process has it.
    """
    if sys.platform == "win32":
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


@contextmanager
def locked_marker(path: Path, content: bytes) -> Iterator[None]:
    """Keep a file with some content, locked, until the block is done: an unlocked one is left by a process that is
    gone."""
    try:
        with path.open("xb") as file:
            _lock(file.fileno())
            file.write(content)
            file.flush()
            yield
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def is_abandoned(path: Path) -> bool:
    """Return whether the process that held a file is gone; False where the system does not say, as on Windows."""
    if sys.platform == "win32":
        return False
    with suppress(OSError), path.open("r+b") as file:
        return _lock(file.fileno())
    return False


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Keep other runs of graphopt from changing files in a folder, where the system has locks."""
    with ExitStack() as stack:
        with suppress(OSError):  # Windows opens no folders, and one may be writable but not readable
            handle = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, handle)
            _wait_for_lock(handle)
        yield


def _wait_for_lock(handle: int) -> None:
    deadline = time.monotonic() + LOCK_TIMEOUT
    while time.monotonic() < deadline:
        try:
            _lock(handle)
            return
        except BlockingIOError:
            time.sleep(0.005)


def flush_to_disk(file: BinaryIO) -> None:
    """Bring to the disk what was written: a power cut after `commit` must not leave a name without its content."""
    file.flush()
    os.fsync(file.fileno())


def commit(part: BinaryIO, final: Path, *, like: Path | None = None) -> None:
    """Give a part its name, and the mode of the file that had it, or of another. The caller holds `folder_lock`."""
    with suppress(FileNotFoundError):
        mode = stat.S_IMODE((like or final).stat().st_mode)
        if mode != stat.S_IMODE(os.fstat(part.fileno()).st_mode):
            os.chmod(part.name, mode)
    part.close()  # Windows renames no open file
    os.replace(part.name, final)
    with suppress(OSError):  # Windows opens no folders, and some file systems sync none
        folder = os.open(final.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def temporary_folder_for(final: Path) -> Iterator[Path]:
    """Yield a folder beside the one that it becomes when the block is done; if that fails, nothing is left of it.

    It is locked as long as its process lives. Folders that killed runs have left for the same one are removed.

    Raises:
        OutputError: there is something of that name by now.
    """
    path = final.with_name(f".{final.name}.{os.urandom(6).hex()}.part")
    try:
        with ExitStack() as stack:
            with folder_lock(final.parent):
                _remove_stale_folders(final)
                path.mkdir()
                stack.enter_context(locked_marker(path / UNFINISHED, b""))
            yield path
            with folder_lock(final.parent), deferred_signals():
                stack.close()
                try:
                    path.rename(final)
                except OSError as error:
                    raise OutputError(f"{final} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(path, ignore_errors=True)


UNFINISHED = ".unfinished"
"""Name of the locked file in a folder that is being filled."""


def _remove_stale_folders(final: Path) -> None:
    """Remove the unfinished folders that belong to no living process. The caller holds `folder_lock`."""
    ours = re.compile(rf"\.{re.escape(final.name)}\.[0-9a-f]{{12}}\.part")
    with suppress(OSError):
        for name in filter(ours.fullmatch, os.listdir(final.parent)):
            if is_abandoned(final.with_name(name) / UNFINISHED):
                shutil.rmtree(final.with_name(name), ignore_errors=True)


@contextmanager
def deferred_signals() -> Iterator[None]:
    """Let signals that end the program wait until the block is done. Signals without a handler in Python still kill."""
    if threading.current_thread() is not threading.main_thread():  # only that one hears signals
        yield
        return
    came: list[int] = []
    handlers = {}

    def wait(number: int, _: FrameType | None) -> None:
        came.append(number)

    try:
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # Windows has no SIGHUP
            number = getattr(signal, name, None)
            if number is not None and callable(handler := signal.getsignal(number)):
                handlers[number] = handler
                signal.signal(number, wait)
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in came[:1]:
            signal.raise_signal(number)


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all; stdout, a device or a pipe takes the text as it comes.

    Two processes or threads may write the same file: one of the two texts will be in it.
    """
    if is_stdout(path):
        sys.stdout.write(printable_text(text))
        return
    target = resolve_target(path)
    if target.exists() and not target.is_file():
        target.write_text(printable_text(text), encoding="utf-8")
        return
    with temporary_for(target) as part:
        part.write(printable_text(text).encode())
        flush_to_disk(part)
        with folder_lock(target.parent), deferred_signals():
            commit(part, target)


# -- errors ------------------------------------------------------------------------------------------------------------


def is_stdout(path: Path) -> bool:
    """Return whether an output is meant for stdout, whatever that is."""
    return str(path) in ("-", "/dev/stdout")


def is_same_file(one: Path, other: Path) -> bool:
    """Return whether two paths lead to one file, or would."""
    if os.path.realpath(one) == os.path.realpath(other):
        return True
    return one.exists() and other.exists() and one.samefile(other)


def file_identity(path: Path) -> tuple[int, ...] | None:
    """Return a key that changes when another file takes the place of this one; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


MAX_NAME_BYTES = 255 - len("..0123456789ab.part")
"""Longest file name, in bytes: file systems take 255, of which the name of the temporary file needs some."""


def check_name(path: Path) -> None:
    """Raise OutputError where the name of a file is too long to be written."""
    if len(os.fsencode(path.name)) > MAX_NAME_BYTES:
        raise OutputError(f"{path} cannot be written: its name has more than {MAX_NAME_BYTES} bytes")


def check_readable(path: Path) -> None:
    """Fail before the work where there is no model.

    Raises:
        ModelError: there is no such file, or it is a folder, or a pipe: to open that would be to wait for who writes.
    """
    try:
        kind = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise ModelError(f"{path} does not exist") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {getattr(error, 'strerror', error)}") from error
    if stat.S_ISDIR(kind):
        raise ModelError(f"{path} is a folder, not a model")
    if not stat.S_ISREG(kind):
        raise ModelError(f"{path} is no ordinary file")


def check_writable(path: Path, *, is_plain: bool = True) -> None:
    """Fail before the work, not after it. Only a plain file can appear whole or not at all; `is_plain` demands one.

    Raises:
        OutputError: the file cannot be written; says why.
    """
    if is_stdout(path):
        return
    check_name(path)
    target = resolve_target(path)
    folder = target.parent
    if not folder.is_dir():
        raise OutputError(f"{path} cannot be written: {folder} is {'no folder' if folder.exists() else 'missing'}")
    if target.is_dir():
        raise OutputError(f"{path} cannot be written: it is a folder")
    if target.exists() and not target.is_file():
        if is_plain:
            raise OutputError(f"{path} cannot be written: it is no ordinary file (- is stdout)")
    elif not os.access(folder, os.W_OK):
        raise OutputError(f"{path} cannot be written: {folder} is read-only")


def check_new_folder(path: Path) -> None:
    """Fail before the work where a folder cannot be made: it appears whole or not at all, and replaces nothing.

    Raises:
        OutputError: there is something already, or the folder around it is missing or read-only.
    """
    check_name(path)
    folder = path.parent
    if os.path.lexists(path):
        raise OutputError(f"{path} is there already: remove it, or name another folder")
    if not folder.is_dir():
        raise OutputError(f"{path} cannot be written: {folder} is {'no folder' if folder.exists() else 'missing'}")
    if not os.access(folder, os.W_OK):
        raise OutputError(f"{path} cannot be written: {folder} is read-only")


@contextmanager
def naming_write_errors(path: Path) -> Iterator[None]:
    """Name the file where it cannot be written after all.

    Raises:
        OutputError: in the place of an OSError.
    """
    try:
        yield
    except OSError as error:
        raise OutputError(f"{path} cannot be written: {error.strerror or error}") from error


def cache_folder() -> Path:
    """Return the folder of the cache: that of the system, unless the variable `GRAPHOPT_CACHE` names another.

    Where the user has no home, as in some containers, it is one in which nothing can be kept.
    """
    named = os.environ.get("GRAPHOPT_CACHE")
    if named:
        return Path(named)
    from platformdirs import user_cache_path

    found = user_cache_path("graphopt", appauthor=False)
    return found if found.is_absolute() else Path(os.devnull) / "graphopt"  # else it would be a folder called `~`


# -- for a while -------------------------------------------------------------------------------------------------------


def printable_text(text: str) -> str:
    """Return a text that can be written: names of files may hold bytes that are no UTF-8, which become escapes."""
    return text.encode(errors="backslashreplace").decode()


def escape_unprintable(text: str, keep: str = "") -> str:
    """Return a text in which characters that a terminal does not print, such as a line break or an escape, are written
    as in Python, but for those to `keep`."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in keep else repr(char)[1:-1] for char in text)


@contextmanager
def scratch_folder(refusal: type[Exception] = OutputError) -> Iterator[Path]:
    """Yield a folder that is gone at the end, for what is read again at once.

    Raises:
        refusal: there can be none, or a file in it cannot be written.
    """
    try:
        temporary = TemporaryDirectory(prefix="graphopt-", ignore_cleanup_errors=True)
    except OSError as error:
        raise refusal(f"there can be no temporary folder: {error.strerror or error}") from error
    with temporary as folder:
        try:
            yield Path(folder)
        except OutputError as error:
            raise refusal(str(error)) from error

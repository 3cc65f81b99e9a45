"""The state of a run that no other sees: its integers, notes and arithmetic, operators it defines, libraries, limits.

Whoever runs something enters a `Session`; whoever needs a part of it asks the one that is entered, `current_session()`.
Threads and processes begin in the default session: what works in them enters one of its own, or one that it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import ContextVar, Token
from dataclasses import dataclass, field, replace
from functools import cache, wraps
from itertools import count
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from graphopt.base.limits import RunLimits

P = ParamSpec("P")
R = TypeVar("R")
OperatorKey = tuple[str, str]
"""The name of an operator, and its domain."""


class MemoTable(dict[Callable[..., Any], Callable[..., Any]]):
    """Functions that remember their answers, by the original function; made when they are first asked for."""

    def __missing__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        remembering = self[function] = cache(function)
        return remembering


class Interner:
    """Integers and formulas of which equal ones are one object, numbered as they were made.

    0 and 1 are the numbers of `TRUE` and `FALSE`, which are those of all interners.
    """

    def __init__(self) -> None:
        self.table: dict[Any, Any] = {}
        self.serials = count(2)
        self.fresh_names = count()
        """The numbers of unknown integers."""
        self.memos = MemoTable()
        self.composite_numbers: dict[Any, int] = {}
        """Numbers of composite integers in questions that were asked (`verifier.solver`)."""


class PartialCallLog:
    """Log of the functions that are computed and that floats do not have everywhere (`expr/partial_calls.py`)."""

    def __init__(self) -> None:
        self.calls: set[Any] | None = None
        """The calls, where somebody wants to know of them."""
        self.binders: tuple[Any, ...] = ()
        self.guard: Any = None
        """The condition under which they are computed, None for no condition."""


class OperatorDefinitions:
    """Operators that ONNX does not have, each with its definitions and the schema that these make.

    Those of a parent are known as well, until an operator is defined anew.
    """

    def __init__(self, parent: OperatorDefinitions | None = None) -> None:
        self._parent = parent
        self._own: dict[OperatorKey, tuple[tuple[Any, ...], Any]] = {}
        self._memos = MemoTable()
        self._changes = 0
        self._parent_change_count = 0
        """The changes of all parents when the memories began."""

    def definitions_of(self, key: OperatorKey) -> tuple[Any, ...]:
        """Return the definitions of an operator, none where there are none."""
        found = self._lookup(key)
        return () if found is None else found[0]

    def schema(self, key: OperatorKey) -> Any:
        """Return the schema of an operator, None where it is not defined."""
        found = self._lookup(key)
        return None if found is None else found[1]

    def _lookup(self, key: OperatorKey) -> tuple[tuple[Any, ...], Any] | None:
        found = self._own.get(key)
        return self._parent._lookup(key) if found is None and self._parent is not None else found

    def __iter__(self) -> Iterator[OperatorKey]:
        return iter({**dict.fromkeys(self._parent or ()), **self._own})

    def set(self, key: OperatorKey, definitions: tuple[Any, ...], schema: Any) -> None:
        """Set the definitions and the schema of an operator; all remembered answers about operators are forgotten."""
        self._own[key] = definitions, schema
        self._changes += 1
        self._memos.clear()

    @property
    def change_count(self) -> int:
        """Number of definitions so far."""
        return self._changes + (self._parent.change_count if self._parent is not None else 0)

    @property
    def memos(self) -> MemoTable:
        """Answers about operators that hold until another is defined."""
        if self._parent is None:
            return self._memos
        if not self._own:
            return self._parent.memos
        if self._parent_change_count != self._parent.change_count:
            self._memos.clear()
            self._parent_change_count = self._parent.change_count
        return self._memos


@dataclass(frozen=True, slots=True)
class CustomOpLibrary:
    """A shared library of custom operators."""

    path: Path
    digest: str
    """Digest of its bytes: part of the key of what is timed or asked with it."""


@dataclass(eq=False)
class Session:
    """The state of one run. It is entered by one thread at a time: `with session:`."""

    interner: Interner = field(default_factory=Interner)
    partial_calls: PartialCallLog = field(default_factory=PartialCallLog)
    arithmetic: Any = None
    """The `expressions.ExtendedArithmetic` in which values are computed; None for that of real numbers."""
    definitions: OperatorDefinitions = field(default_factory=lambda: OperatorDefinitions(DEFAULT_SESSION.definitions))
    libraries: tuple[CustomOpLibrary, ...] = ()
    """The libraries of custom operators that sessions of ONNX Runtime register."""
    limits: RunLimits = field(default_factory=RunLimits)
    unknown_sizes: Iterator[int] = field(default_factory=count)
    """The numbers of sizes of which nothing is known."""
    scratch: dict[int, Any] = field(default_factory=dict)
    """Weak references to the file that computed weights lie in (`ir.spilled`), by process."""
    _entered: list[Token[Session]] = field(default_factory=list, init=False, repr=False)

    def __enter__(self) -> Session:
        self._entered.append(_CURRENT.set(self))
        return self

    def __exit__(self, *_: object) -> None:
        _CURRENT.reset(self._entered.pop())

    def replace(self, **changes: Any) -> Session:
        """Return a session that shares all parts with this one but those that are given."""
        return replace(self, **changes)

    def child(self) -> Session:
        """Return a session for a run: it knows what is defined here, and what it defines is not seen here."""
        return Session(definitions=OperatorDefinitions(self.definitions), libraries=self.libraries, limits=self.limits)

    def with_fresh_integers(self) -> Session:
        """Return a session with no integers yet, in which one question is answered or one rule proved."""
        return self.replace(interner=Interner(), partial_calls=PartialCallLog(), arithmetic=None)


DEFAULT_SESSION: Session = Session(definitions=OperatorDefinitions())
"""The session of scripts, and of what modules define when they are imported."""

_CURRENT: ContextVar[Session] = ContextVar("graphopt.base.session", default=DEFAULT_SESSION)
current_session = _CURRENT.get
"""Return the session that is entered."""


def memoized(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function work out each answer once for the integers of a session."""

    @wraps(function)
    def remembering(*args: P.args, **keywords: P.kwargs) -> R:
        found: R = current_session().interner.memos[function](*args, **keywords)
        return found

    return remembering

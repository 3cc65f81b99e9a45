"""An option, declared once: the field of a dataclass that says what it means, to Python and to a shell.

The command line, its help, the keywords of Python and the tables of the documentation are made of these fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from inspect import cleandoc
from textwrap import fill
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class TextForm:
    """A form of values in a shell, where an option may be repeated, and the function that reads it."""

    parse: Callable[[Sequence[str]], Any]
    """Turns all texts of the option into its value; raises UsageError where one is of another form."""
    pattern: str = ""
    """Regular expression of a value that may follow another without a flag of its own; empty if none may."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """The description of an option: its help, and its spelling in a shell."""

    help: str
    """One sentence, as the help of a command has it."""
    more: str = ""
    """Further sentences, for the documentation."""
    metavar: str = ""
    """The value, as help shows it."""
    flags: tuple[str, ...] = ()
    """Its spellings in a shell; empty for `--name`."""
    form: TextForm | None = None
    """Form of a value that is made of texts; None if Python and the shell write the same."""
    type: Any = None
    """Type of a single value; None for that of the default."""
    choices: tuple[str, ...] = ()
    """The only values; empty if there are others."""
    minimum: float | None = None
    """Least value."""
    maximum: float | None = None
    """Greatest value."""
    shown_default: str | bool = True
    """Default as help shows it: True for the value itself, a text for that text, False for none."""
    in_shell: bool = True
    """True unless it is a keyword of Python alone."""


def option(default: Any, help: str, **details: Any) -> Any:  # noqa: A002  (as typer and argparse call it)
    """Declare a field of a dataclass: its default, and the help and other `details` of its `Option`."""
    return field(default=default, metadata={"option": Option(help=help, **details)})


def same_option(kind: type, name: str) -> Any:
    """Declare a field that is the option of this name of another dataclass."""
    known = {each.name: each for each in fields(kind)}[name]
    return field(default=known.default, metadata=known.metadata)


def iter_options(kind: type) -> Iterator[tuple[Field[Any], Option]]:
    """Yield the declared fields of a dataclass: its own, then those of its bases."""
    declared = {each.name: each for each in fields(kind)}
    for owner in kind.__mro__:
        for name in vars(owner).get("__annotations__", ()):
            if name in declared and (found := declared[name].metadata.get("option")):
                yield declared.pop(name), found


def flags_of(name: str, said: Option) -> tuple[str, ...]:
    """Return the spellings of a field in a shell, the usual one first."""
    return said.flags or (f"--{name.replace('_', '-')}",)


def changed_flags(options: Any) -> list[str]:
    """Return the flags of the options that differ from their defaults."""
    return [
        flags_of(each.name, said)[0]
        for each, said in iter_options(type(options))
        if each.default is not MISSING and getattr(options, each.name) != each.default
    ]


def document_options(kind: type[T]) -> type[T]:
    """Add the descriptions of the fields to the docstring of a dataclass, for `help`."""
    lines = [f"{each.name}: {' '.join(filter(None, (said.help, said.more)))}" for each, said in iter_options(kind)]
    wrapped = (fill(line, 100, initial_indent="    ", subsequent_indent=" " * 8) for line in lines)
    kind.__doc__ = "\n".join([cleandoc(kind.__doc__ or ""), "\nAttributes:", *wrapped])
    return kind

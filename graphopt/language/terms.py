"""The language of rules: a term is a hole, a literal or an operator applied to terms.

`op.Conv(x, w, strides=s)` spells operators and attributes exactly as ONNX does; `+ - * / @` are sugar. Attributes and
conditions are terms too: scalar functions, applied in the domain `SCALAR`, whose one table is in `scalar_functions.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Literal, TypeAlias, TypeGuard, cast

from graphopt.base.errors import RuleError
from graphopt.ir import schemas

SCALAR = "scalar"
"""The domain of the scalar functions: numbers, lists of numbers and truth values, no tensors."""

HoleKind = Literal["tensor", "tensors", "const", "integer", "integers", "real", "string", "attributes"]
Number: TypeAlias = int | float
LiteralValue: TypeAlias = int | float | str | tuple[int | float, ...]
TermLike: TypeAlias = "Term | LiteralValue"


_AXIS_PATTERN = re.compile(r"_|\d+|[A-Z]\w*|\*[a-z]\w*|1\*[a-z]\w*")


class _OperatorOverloads:
    """Python's operators: on tensors `x + y` is `op.Add(x, y)`, `x < y` is `op.Less(x, y)`; on scalars, the function.

    `//` and `%` are for scalars alone, `**` and `@` for tensors. `==` is not among them: it compares terms, as sets and
    dictionaries do.
    """

    __slots__ = ()

    def __add__(self, other: TermLike) -> App:
        return _apply_binary("Add", "add", self, other)

    def __sub__(self, other: TermLike) -> App:
        return _apply_binary("Sub", "sub", self, other)

    def __mul__(self, other: TermLike) -> App:
        return _apply_binary("Mul", "mul", self, other)

    def __truediv__(self, other: TermLike) -> App:
        return _apply_binary("Div", "truediv", self, other)

    def __matmul__(self, other: TermLike) -> App:
        return _apply_binary("MatMul", "", self, other)

    def __pow__(self, other: TermLike) -> App:
        return _apply_binary("Pow", "", self, other)

    def __floordiv__(self, other: TermLike) -> App:
        return _apply_binary("", "floordiv", self, other)

    def __mod__(self, other: TermLike) -> App:
        return _apply_binary("", "mod", self, other)

    def __neg__(self) -> App:
        inner = term(self)
        return App("neg", (inner,), domain=SCALAR) if is_scalar(inner) else App("Neg", (inner,))

    def __radd__(self, other: TermLike) -> App:
        return _apply_binary("Add", "add", other, self)

    def __rsub__(self, other: TermLike) -> App:
        return _apply_binary("Sub", "sub", other, self)

    def __rmul__(self, other: TermLike) -> App:
        return _apply_binary("Mul", "mul", other, self)

    def __rtruediv__(self, other: TermLike) -> App:
        return _apply_binary("Div", "truediv", other, self)

    def __lt__(self, other: TermLike) -> App:
        return _apply_binary("Less", "lt", self, other)

    def __le__(self, other: TermLike) -> App:
        return _apply_binary("LessOrEqual", "le", self, other)

    def __gt__(self, other: TermLike) -> App:
        return _apply_binary_swapped("Greater", "lt", self, other)

    def __ge__(self, other: TermLike) -> App:
        return _apply_binary_swapped("GreaterOrEqual", "le", self, other)


@dataclass(frozen=True, slots=True)
class Var(_OperatorOverloads):
    """A hole; its kind says what it may stand for (see the functions that make holes)."""

    name: str
    kind: HoleKind
    axes: tuple[str, ...] | None = None
    default: Number | None = None

    def __str__(self) -> str:
        return "…" if self.kind == "attributes" else f"*{self.name}" if self.kind == "tensors" else self.name

    def __iter__(self) -> Iterator[Var]:
        """Let a hole for many tensors be unpacked among operands: `op.Concat(*xs, axis=axis)`."""
        if self.kind != "tensors":
            raise TypeError(f"'{self.name}' is one {self.kind}: only a hole made by tensors() can be unpacked")
        yield self


@dataclass(frozen=True, slots=True)
class Lit(_OperatorOverloads):
    """A number, a text or a list of numbers."""

    value: LiteralValue

    def __str__(self) -> str:
        return "[" + ", ".join(map(str, self.value)) + "]" if isinstance(self.value, tuple) else repr(self.value)


@dataclass(frozen=True, slots=True)
class App(_OperatorOverloads):
    """An operator applied to terms; `output` selects one of its `outputs`. A None among `args` is an absent input."""

    op: str
    args: tuple[Term | None, ...]
    attrs: tuple[tuple[str, Term], ...] = ()
    domain: str = ""
    output: int = 0
    outputs: int = 1
    inputs: tuple[Term | None, ...] = field(init=False, repr=False, compare=False)
    """The arguments in the positions of the operator's inputs, absent ones included."""
    attributes_hole: Var | None = field(init=False, repr=False, compare=False)
    """The hole for "the other attributes", if it has one."""
    _parts: tuple[Term, ...] = field(init=False, repr=False, compare=False)
    """`parts`, empty until they are asked for."""
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:  # matching asks for these all the time: made once
        args = self.args
        bundles = [arg for arg in args if isinstance(arg, Var) and arg.kind == "attributes"]
        object.__setattr__(self, "inputs", tuple(arg for arg in args if arg not in bundles) if bundles else args)
        object.__setattr__(self, "attributes_hole", bundles[0] if bundles else None)
        object.__setattr__(self, "_parts", ())
        object.__setattr__(self, "_hash", hash((self.op, args, self.attrs, self.domain, self.output, self.outputs)))

    def __hash__(self) -> int:
        return self._hash

    def __bool__(self) -> bool:
        """Return True for a tensor, so that `given or usual` reads as ever.

        Raises:
            RuleError: `and`, `or`, `not` or `a < b < c` would decide now what is to be asked of each model.
        """
        if self.domain == SCALAR:
            raise RuleError(
                f"'{self}' is neither true nor false while a rule is written: for `a and b`, `a or b`, `not a` and"
                " `a < b < c` write fn.all_of(a, b), fn.any_of(a, b), fn.not_(a) and fn.all_of(a < b, b < c)"
            )
        return True

    def __reduce__(self) -> tuple[type[App], tuple[object, ...]]:
        """Return how to make the term when it is unpickled: each process hashes texts in its own way."""
        return App, (self.op, self.args, self.attrs, self.domain, self.output, self.outputs)

    @property
    def parts(self) -> tuple[Term, ...]:
        """The application and every term in it, attributes included, outermost first."""
        if not self._parts:
            found, waiting = list[Term](), list[Term | None]([self])
            while waiting:
                part = waiting.pop()
                if isinstance(part, App) and not part._parts:
                    found.append(part)
                    waiting += [value for _, value in reversed(part.attrs)]
                    waiting += reversed(part.args)
                elif part is not None:
                    found += walk_term(part)
            object.__setattr__(self, "_parts", tuple(found))
        return self._parts

    @property
    def node(self) -> App:
        """The application itself, equal for all outputs of one node."""
        return self if self.output == 0 else App(self.op, self.args, self.attrs, self.domain, 0, self.outputs)

    @property
    def operands(self) -> tuple[Term, ...]:
        """Its arguments that are tensors or stand in input positions: no attribute holes, no absent inputs."""
        return tuple(arg for arg in self.inputs if arg is not None)

    def __str__(self) -> str:
        return render_term(self)


Term: TypeAlias = Var | Lit | App


def is_scalar(subject: Term) -> bool:
    """Return True for terms that are numbers or lists of numbers, not tensors; a literal is either."""
    match subject:
        case Var(kind=kind):
            return kind not in ("tensor", "tensors", "const")
        case App(domain=domain):
            return domain == SCALAR
    return True


def is_index_list(subject: Term) -> bool:
    """Return whether a term is a list of indices that the contents of constants determine."""
    return is_content_query(subject) and subject.op not in ("block_count", "first_index")


def is_content_query(subject: Term) -> TypeGuard[App]:
    """Return whether a term asks what constants hold: where they are zero or equal, in how many blocks, from where they
    count."""
    return (
        isinstance(subject, App)
        and subject.domain == SCALAR
        and subject.op in ("nonzero_indices", "block_count", "first_index", "unique_indices", "inverse_indices")
    )


def axis_arguments(app: App) -> tuple[str, ...]:
    """Return the axes that a scalar function is given by name."""
    (axes, *_) = app.args
    assert isinstance(axes, Lit)
    return tuple(str(axes.value).split())


def queried_constants(app: App) -> tuple[Var, ...]:
    """Return the constants whose contents a term asks for."""
    return tuple(arg for arg in app.args if isinstance(arg, Var))


def multiple_argument(app: App) -> int:
    """Return the number of which a list of indices, or each side of a block, has to be a multiple."""
    said = app.args[1] if len(app.args) > 1 else None
    return said.value if isinstance(said, Lit) and isinstance(said.value, int) else 1


def axis_position(axis: str, axes: Sequence[str]) -> int:
    """Return the position of an axis among those that a hole declares, counted from the end behind a pack."""
    position = axes.index(axis)
    return position - len(axes) if any("*" in token for token in axes[:position]) else position


def is_pack(subject: Term) -> bool:
    """Return whether a term stands for any number of tensors: a hole for them, or an operator on elements of each."""
    match subject:
        case Var(kind=kind):
            return kind == "tensors"
        case App(domain=domain) if domain == schemas.ANY_POINTWISE:
            return any(map(is_pack, subject.operands))
    return False


def term(operand: _OperatorOverloads | LiteralValue) -> Term:
    """Return a Python number, text or list of numbers as a literal, and a term as it is.

    Raises:
        RuleError: it is something else, such as an array.
    """
    if isinstance(operand, _OperatorOverloads):
        return cast("Term", operand)  # there are no others
    if isinstance(operand, tuple | list):
        return Lit(tuple(map(_plain_number, operand)))
    return Lit(operand if isinstance(operand, str) else _plain_number(operand))


def _plain_number(value: Any) -> Number:
    """Return the Python number that a scalar of numpy stands for, too."""
    if type(value) in (int, float, bool):
        return cast("Number", value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    raise RuleError(
        f"{value!r} cannot be part of a rule: it holds terms, numbers, texts and lists of numbers;"
        " what a model's tensors hold is said by holes, such as const('c')"
    )


def is_whole_number(subject: Term) -> bool:
    """Return whether a number or a list of the rule is plainly of whole numbers: nothing real goes into it."""
    match subject:
        case Var(kind=kind):
            return kind != "real"
        case Lit(value=value):
            return all(isinstance(item, int) for item in (value if isinstance(value, tuple) else (value,)))
        case App(op=name):
            return name not in ("truediv", "sqrt") and all(map(is_whole_number, subject.operands))


def is_literal_only(subject: Term) -> bool:
    """Return whether a term is made of numbers alone, through operators or not: no tensor fixes its element type."""
    if is_scalar(subject):
        return True
    return isinstance(subject, App) and bool(subject.operands) and all(map(is_literal_only, subject.operands))


def _apply_binary(
    op_name: str, function: str, left: _OperatorOverloads | LiteralValue, right: _OperatorOverloads | LiteralValue
) -> App:
    both = (term(left), term(right))
    if function and _both_scalar(both):
        return App(function, both, domain=SCALAR)
    if not op_name:
        raise RuleError(f"fn.{function} is of numbers, not of the tensors '{both[0]}' and '{both[1]}'")
    return App(op_name, both)


def _apply_binary_swapped(
    op_name: str, function: str, left: _OperatorOverloads | LiteralValue, right: _OperatorOverloads | LiteralValue
) -> App:
    """Return a scalar function with its operands swapped: there is no greater, only less."""
    both = (term(left), term(right))
    return App(function, both[::-1], domain=SCALAR) if _both_scalar(both) else App(op_name, both)


def _both_scalar(both: tuple[Term, Term]) -> bool:
    return all(map(is_scalar, both)) and not all(isinstance(side, Lit) for side in both)


# -- holes ---------------------------------------------------------------------------------------------------------


def _parse_axes(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    tokens = tuple(text.split())
    for token in tokens:
        if not _AXIS_PATTERN.fullmatch(token):
            raise RuleError(f"'{token}' names no axis{_axis_name_hint(token)}")
    if sum("*" in token for token in tokens) > 1:
        raise RuleError(f"'{text}' has more than one pack of axes")
    return tokens


def _axis_name_hint(token: str) -> str:
    """Return how axes are named, and names that a wrong text may have meant."""
    forms = (token.capitalize(), f"*{token.strip('*').lower()}")
    meant = [f"'{form}'" for form in forms if _AXIS_PATTERN.fullmatch(form)]
    likely = f"; did you mean {' or '.join(meant)}?" if meant else ""
    return f": one axis is N, C, … or _, one of size 1 is 1, any number of axes *b, as many of size 1 are 1*b{likely}"


def tensor(name: str, axes: str | None = None) -> Var:
    """Any value. `axes` names its axes: equal names are equal sizes in the whole rule.

    `N` one axis, `_` one axis that nothing else refers to, `1` an axis of size 1, `*b` any number of axes,
    `1*b` as many axes of size 1 as `*b` has. Without `axes` the rank is arbitrary, and two such holes may differ.
    """
    return Var(name, "tensor", _parse_axes(axes))


def tensors(name: str) -> Var:
    """Any number of values, none among them, as operands of a Concat: `op.Concat(*before, x, *after, axis=axis)`.

    What stands for an operator on one element is applied to each: `op.Concat(f(xs), axis=axis)`. How long all of them
    are together is `fn.extent(xs)`.
    """
    return Var(name, "tensors")


def const(name: str, axes: str | None = None, *, default: Number | None = None) -> Var:
    """Return a known value: an initializer. With `default`, an absent optional input stands for a tensor of that
    number.

    As an operand of an elementwise operator, a constant that broadcasts to the declared axes matches as well, and
    is used in its declared shape: `[1,1,N]`, `[1]` and `[]` all match `N`.
    """
    return Var(name, "const", _parse_axes(axes), default)


def integer(name: str) -> Var:
    """Return the value of an integer attribute, or of a constant integer input with one element."""
    return Var(name, "integer")


def integers(name: str) -> Var:
    """Return the value of an integer-list attribute, or of a constant integer input of rank 1."""
    return Var(name, "integers")


def real(name: str) -> Var:
    """Return the value of a float attribute, or of a constant floating-point input with one element."""
    return Var(name, "real")


def string(name: str) -> Var:
    """Return the value of a string attribute."""
    return Var(name, "string")


def attributes(name: str) -> Var:
    """All attributes that the pattern does not mention; passed to an operator like one more argument."""
    return Var(name, "attributes")


# -- operators -----------------------------------------------------------------------------------------------------


class Operators:
    """`op.Name(…)` applies the operator `Name` of one domain; `op.Name.split(n, …)` gives a tuple of its n outputs."""

    def __init__(self, domain: str = "") -> None:
        self._domain = domain

    def __getattr__(self, name: str) -> OperatorBuilder:
        if name.startswith("_"):
            raise AttributeError(name)
        built = self.__dict__[name] = OperatorBuilder(name, self._domain)  # rules name an operator many times
        return built


@dataclass(frozen=True, slots=True)
class OperatorBuilder:
    """One ONNX operator, ready to be applied."""

    name: str
    domain: str = ""

    def __call__(self, *args: TermLike | None, **attrs: TermLike) -> App:
        terms = tuple([None if arg is None else term(arg) for arg in args])
        named = tuple([(name, term(attrs[name])) for name in sorted(attrs)])
        return App(self.name, terms, named, self.domain)

    def split(self, count: int, *args: TermLike | None, **attrs: TermLike) -> tuple[App, ...]:
        """Return the application of an operator with several outputs: one term per output."""
        first = self(*args, **attrs)
        return tuple(App(first.op, first.args, first.attrs, first.domain, i, count) for i in range(count))


op = Operators()
"""The operators of the ONNX domain."""
microsoft = Operators("com.microsoft")
"""ONNX Runtime's contributed operators."""
fn = Operators(SCALAR)
"""The scalar functions of `scalar_functions.py`: `fn.eq(fn.size("K"), 1)`, `fn.compose(p, q)`."""


def pointwise(name: str) -> OperatorBuilder:
    """Any operator that computes each element from one element: with its attributes, and scalars beside its operand.

    `f(x)` stands for Relu(x), LeakyRelu(x, alpha=0.1), Cast(x, to=FLOAT16), x * 2, 1 - x, Clip(x, 0, 6), … Wherever a
    rule says f, operator, attributes, scalars and the element type of its operand are the same.
    """
    return OperatorBuilder(name, schemas.ANY_POINTWISE)


def binary(name: str) -> OperatorBuilder:
    """Any operator that computes each element from two that broadcast, either way round.

    `g(x, y)` stands for x + y, x - y, y - x, x < y, Max(x, y), … and is the same wherever a rule says g.
    """
    return OperatorBuilder(name, schemas.ANY_BINARY)


def reduction(name: str) -> OperatorBuilder:
    """Any of the operators `Reduce…`: `r(x, axes, keepdims=0)` stands for ReduceSum, ReduceMax, ReduceL2, …

    It is the same wherever a rule says r; its axes, and whether it keeps them, are said each time.
    """
    return OperatorBuilder(name, schemas.ANY_REDUCTION)


# -- walking and printing ------------------------------------------------------------------------------------------


def walk_term(subject: Term) -> tuple[Term, ...]:
    """Return the term and every term in it, attributes included, outermost first."""
    return subject.parts if isinstance(subject, App) else (subject,)


def holes(subject: Term) -> Iterator[Var]:
    """Yield the holes in a term, as often as they occur."""
    return (part for part in walk_term(subject) if isinstance(part, Var))


def operator_hole_applications(subject: Term) -> Iterator[App]:
    """Yield the applications of holes for operators in a term."""
    return (part for part in operator_applications(subject) if part.domain in schemas.CLASS_SCHEMAS)


def pack_holes(subject: Term) -> Iterator[Var]:
    """Yield the holes for any number of tensors in a term."""
    return (hole for hole in holes(subject) if hole.kind == "tensors")


def operator_applications(subject: Term) -> Iterator[App]:
    """Yield the ONNX operators in a term (no scalar functions), outermost first."""
    return (part for part in walk_term(subject) if isinstance(part, App) and part.domain != SCALAR)


_INFIX = {"Add": ("+", 1), "Sub": ("-", 1), "Mul": ("*", 2), "Div": ("/", 2), "MatMul": ("@", 2)}
_INFIX |= {"add": ("+", 1), "sub": ("-", 1), "mul": ("*", 2), "truediv": ("/", 2)}
_INFIX |= {"eq": ("==", 0), "ne": ("!=", 0), "lt": ("<", 0), "le": ("<=", 0)}


def render_term(subject: Term, binding: int = 0) -> str:
    """Return the term as algebra, parenthesised where it binds less than `binding`."""
    if not isinstance(subject, App):
        return str(subject)
    if subject.op in _INFIX and len(subject.args) == 2 and not subject.attrs:
        sign, strength = _INFIX[subject.op]
        left, right = subject.args
        assert left is not None and right is not None
        text = f"{render_term(left, strength)} {sign} {render_term(right, strength + 1)}"
        return f"({text})" if strength < binding else text
    shown = ["–" if arg is None else render_term(arg) for arg in subject.inputs]
    shown += [f"{name}={render_term(value)}" for name, value in subject.attrs]
    shown += ["…"] if subject.attributes_hole else []
    name = (
        f"{subject.domain}.{subject.op}" if subject.domain not in ("", SCALAR, *schemas.CLASS_SCHEMAS) else subject.op
    )
    text = f"{name}({', '.join(shown)})"
    return f"{text}[{subject.output}]" if subject.outputs > 1 else text

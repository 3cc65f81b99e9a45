"""The words of terms alone; `graphopt.rule` has them, too."""

from graphopt.language.term import (
    App,
    Lit,
    Operand,
    Operators,
    Term,
    Var,
    attributes,
    const,
    fn,
    integer,
    integers,
    microsoft,
    op,
    real,
    string,
    tensor,
)

__all__ = [
    "App",
    "Lit",
    "Operand",
    "Operators",
    "Term",
    "Var",
    "attributes",
    "const",
    "fn",
    "integer",
    "integers",
    "microsoft",
    "op",
    "real",
    "string",
    "tensor",
]

"""Everything that a file of rules imports: `Rule`, `define`, and the words that their terms are made of."""

from graphopt.io.function_import import define_function
from graphopt.language.rule import *  # noqa: F403  (what its `__all__` names)
from graphopt.language.rule import __all__ as _words

__all__ = [*_words, "define_function"]  # noqa: PLE0604  (it is a list of names)

"""What a file of rules imports: `Rule`, and the words that its terms are made of."""

from graphopt.language.rule import *  # noqa: F403  (what its `__all__` names)
from graphopt.language.rule import __all__  # noqa: F401

"""Mutants of the denotations that compute the same, each with its reason."""

from collections.abc import Mapping

EQUIVALENT: Mapping[tuple[str, str, str], str] = {}
"""By function, text and what it is replaced by."""

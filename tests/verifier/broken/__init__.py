"""Wrong rules, by what is wrong. None may be proved; of those that a small instance shows to be wrong it is found."""

from tests.verifier.broken import (
    bodies,
    classics,
    edges,
    families,
    floats,
    functions,
    given,
    grouped,
    hidden,
    operators,
    placed,
    plain,
    pruned,
    quantized,
    repeated,
)

REFUTED = (
    *plain.BROKEN,
    *classics.NEIGHBOURS,
    *operators.REFUTED,
    *functions.REFUTED,
    *hidden.REFUTED,
    *given.REFUTED,
    *families.REFUTED,
    *quantized.REFUTED,
    *pruned.REFUTED,
    *grouped.REFUTED,
    *repeated.REFUTED,
    *bodies.REFUTED,
)
UNPROVED = (
    *edges.HOSTILE,
    *operators.UNPROVED,
    *functions.UNPROVED,
    *placed.UNPROVED,
    *hidden.UNPROVED,
    *hidden.GUARDS,
    *given.UNPROVED,
    *families.UNPROVED,
    *quantized.UNPROVED,
    *pruned.UNPROVED,
    *grouped.UNPROVED,
    *repeated.UNPROVED,
    *floats.UNPROVED,
    *bodies.UNPROVED,
)
VACUOUS = plain.VACUOUS

"""Wrong rules, by what is wrong. None may be proved; of those that a small instance shows to be wrong it is found."""

from tests.verifier.broken import (
    attention,
    bodies,
    classics,
    edges,
    families,
    filled,
    floats,
    functions,
    given,
    hidden,
    operators,
    placed,
    plain,
    pruned,
    quantized,
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
    *filled.REFUTED,
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
    *filled.UNPROVED,
    *floats.UNPROVED,
    *bodies.UNPROVED,
    *attention.UNPROVED,
)
VACUOUS = plain.VACUOUS

"""Proofs of rules: the verdict of each, and the ledger that ships with the rules. Knows no solver."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from textwrap import indent
from typing import Any

from graphopt.base.dtype import DType
from graphopt.base.files import write_text
from graphopt.language.coverage import DecisionTree, describe_tree


class Verdict(StrEnum):
    """Outcome of a proof; only PROVED lets a rule rewrite a model. VACUOUS: no types and sizes fit the left side."""

    PROVED = "PROVED"
    REFUTED = "REFUTED"
    UNKNOWN = "UNKNOWN"
    VACUOUS = "VACUOUS"


class ProofModel(StrEnum):
    """Arithmetic in which the two sides are equal, the strictest first.

    EXACT: bit for bit. EXTENDED: over the real numbers, infinities and NaN where constants are finite, so floats may
    round differently. REAL: over the real numbers alone, so the values have to be finite as well.
    """

    EXACT = "EXACT"
    EXTENDED = "EXTENDED"
    REAL = "REAL"


@dataclass(frozen=True, slots=True)
class Proof:
    """The outcome of proving one rule: for all sizes, for these ranks and this many cases of attributes."""

    rule: str
    digest: str
    verdict: Verdict
    model: ProofModel | None = None
    ranks: str = ""
    cases: int = 0
    seconds: float = 0.0
    solver: str = ""
    counterexample: str = ""
    detail: str = ""
    coverage: DecisionTree = field(default_factory=list)
    """Ranks, lists and attributes for which it was proved."""
    asks_finite: bool = False
    """True if the rule requires a tensor to be finite."""
    hint: str = ""
    """Condition, or number, with which a refuted rule would be proved, as a report says it."""

    @property
    def holds(self) -> bool:
        """True if the rule may be applied."""
        return self.verdict is Verdict.PROVED

    @property
    def claim_text(self) -> str:
        """Text beside a rewrite in a report."""
        if not self.holds:
            return f"not proved: {self.verdict.lower()}"
        if not self.reassociates:
            return "proved, exact"
        said = "proved, reassociates, finite" if self.assumes_finite else "proved, reassociates"
        return f"{said} ({self.detail})" if self.detail else said

    @property
    def coverage_text(self) -> str:
        """Ranks, and lengths of lists, for which it was made: `1–4, *s of 1–2 axes, p of 0–3 numbers`."""
        lists = describe_tree(self.coverage, ("pack", "length", "elements"))
        return f"{self.ranks}, {lists}" if lists else self.ranks

    @property
    def failure_text(self) -> str:
        """Reason why it does not hold: the difference if there is one, else the obligation not shown; several lines."""
        why = self.counterexample or self.detail or "no element types and sizes of at least 1 fit the left side"
        lines = "\n".join(filter(None, (why, self.hint)))
        return f"{self.rule}  {self.verdict}\n{indent(lines, '    ')}"

    @property
    def reassociates(self) -> bool:
        """True if floats may be rounded in another order than before."""
        return self.model in (ProofModel.EXTENDED, ProofModel.REAL)

    @property
    def assumes_finite(self) -> bool:
        """True if it is about finite values only: with an infinity or NaN the two sides may differ."""
        return self.model is ProofModel.REAL or self.asks_finite

    def licenses(self, dtype: DType) -> bool:
        """Return whether the rule may be applied to a result of this element type: only EXACT speaks of others than
        floats."""
        return self.holds and (self.model is ProofModel.EXACT or dtype.is_float)

    def to_json(self) -> dict[str, Any]:
        """Return the proof as plain data, without empty fields."""
        plain = {key: str(value) if isinstance(value, StrEnum) else value for key, value in asdict(self).items()}
        return {key: value for key, value in plain.items() if value not in ("", None, [], False)}

    @staticmethod
    def from_json(data: Any) -> Proof:
        """Return the proof that `to_json` wrote.

        Raises:
            ValueError, OverflowError: the data was made of no proof.
        """
        if not isinstance(data, dict) or not _FIELD_JSON_TYPES.keys() >= data.keys():
            raise ValueError("it is no proof")
        for name, value in data.items():
            if type(value) not in _FIELD_JSON_TYPES[name]:
                raise ValueError(f"{value!r:.40} is no {name} of a proof")
        if not {"rule", "digest", "verdict"} <= data.keys():
            raise ValueError("rule, digest or verdict is missing")
        model = ProofModel(data["model"]) if "model" in data else None
        seconds = float(data.get("seconds", 0.0))
        made = Proof(**data | {"verdict": Verdict(data["verdict"]), "model": model, "seconds": seconds})
        if made.holds and model is None:
            raise ValueError("the arithmetic is missing")
        if made.cases < 0 or not 0 <= made.seconds < math.inf:
            raise ValueError("a proof of less than no cases, or of no seconds that could be")
        check_decision_tree(made.coverage)
        return made

    def __str__(self) -> str:
        if not self.holds:
            return self.failure_text
        scope = f"for all sizes; ranks {self.coverage_text}; {self.cases} cases"
        return f"{self.rule}: {self.claim_text}, {scope}, {self.seconds:.2g} s"


_JSON_TYPES_BY_ANNOTATION = {
    **dict.fromkeys(("str", "Verdict", "ProofModel | None"), (str,)),
    "int": (int,),
    "float": (float, int),
    "DecisionTree": (list,),
    "bool": (bool,),
}
_FIELD_JSON_TYPES = {each.name: _JSON_TYPES_BY_ANNOTATION[str(each.type)] for each in fields(Proof)}
"""JSON types of each field."""


def check_decision_tree(tree: Any) -> None:
    """Raise ValueError for data that is no `DecisionTree`: a walk down a tree must come to an end."""
    if not isinstance(tree, list):
        raise ValueError("the coverage is no tree")
    for place, node in enumerate(tree):
        match node:
            case []:
                continue
            case [str(question), _, list(leads)] if question.partition(" ")[0] in _LABEL_TYPES:
                if all(_is_edge_to_earlier(lead, place, question) for lead in leads):
                    continue
        raise ValueError(f"{node!r:.40} is no node of a tree of what is covered")


_LABEL_TYPES = {
    **dict.fromkeys(("pack", "rank", "length", "elements"), (int,)),
    "absent": (bool,),
    "value": (int, float, str, list, bool, type(None)),
}
"""Types of labels, by the kind of question."""


def _is_edge_to_earlier(lead: Any, place: int, question: str) -> bool:
    """Return whether a branch leads from the node in this place to an earlier one."""
    match lead:
        case [list(labels), int(subtree)] | [list(labels), int(subtree), True]:
            kinds = _LABEL_TYPES[question.partition(" ")[0]]
            return type(subtree) is int and 0 <= subtree < place and all(type(label) in kinds for label in labels)
    return False


class ProofLedger:
    """Proofs by digest of the rule; valid for one state of the verifier's source, whose digest it carries."""

    def __init__(self, proofs: Iterable[Proof] = (), verifier: str = "") -> None:
        self.verifier = verifier
        self._proofs = {proof.digest: proof for proof in proofs}

    def get(self, digest: str) -> Proof | None:
        """Return the proof of the rule with this digest, if there is one."""
        return self._proofs.get(digest)

    def add(self, proof: Proof) -> None:
        self._proofs[proof.digest] = proof

    def __iter__(self) -> Iterator[Proof]:
        return iter(sorted(self._proofs.values(), key=lambda proof: proof.rule))

    def __len__(self) -> int:
        return len(self._proofs)

    @staticmethod
    def load(path: Path) -> ProofLedger:
        """Read a ledger; one that is missing is empty.

        Raises:
            ValueError: the file holds something else.
        """
        try:
            data = json.loads(path.read_bytes())
            return ProofLedger(map(Proof.from_json, data["proofs"]), data["verifier"])
        except FileNotFoundError:
            return ProofLedger()
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise ValueError(f"{path} is no ledger: {error!r}") from error

    def save(self, path: Path) -> None:
        """Write it whole or not at all: one proof a line, so that changes read well."""
        lines = ",\n".join(json.dumps(proof.to_json(), ensure_ascii=False) for proof in self)
        write_text(path, f'{{"verifier": "{self.verifier}", "proofs": [\n{lines}\n]}}\n')

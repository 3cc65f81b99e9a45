"""What is known of a rule's truth: a proof's verdict, and the ledger that ships with the rules. Knows no solver."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from textwrap import indent
from typing import Any

from graphopt.base.files import write_text
from graphopt.base.types import DType
from graphopt.language.coverage import Tree, told


class Verdict(StrEnum):
    """Only PROVED lets a rule touch a model."""

    PROVED = "PROVED"
    REFUTED = "REFUTED"
    UNKNOWN = "UNKNOWN"
    VACUOUS = "VACUOUS"


class Model(StrEnum):
    """In which arithmetic the two sides are equal, the strictest first.

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
    model: Model | None = None
    ranks: str = ""
    cases: int = 0
    seconds: float = 0.0
    solver: str = ""
    counterexample: str = ""
    detail: str = ""
    coverage: Tree = field(default_factory=list)
    """For which ranks, lists and attributes."""
    asks_finite: bool = False
    """Whether the rule asks of a tensor that it is finite."""
    hint: str = ""
    """The condition or the number with which a refuted rule would be proved, as a report says it."""

    @property
    def holds(self) -> bool:
        """Whether the rule may be applied."""
        return self.verdict is Verdict.PROVED

    @property
    def claim(self) -> str:
        """What a report says beside a rewrite."""
        if not self.holds:
            return f"not proved: {self.verdict.lower()}"
        if not self.reassociates:
            return "proved, exact"
        said = "proved, reassociates, finite" if self.is_finite else "proved, reassociates"
        return f"{said} ({self.detail})" if self.detail else said

    @property
    def reach(self) -> str:
        """For which ranks, and how long lists, it was made: `1–4, *s of 1–2 axes, p of 0–3 numbers`."""
        lists = told(self.coverage, ("pack", "length", "elements"))
        return f"{self.ranks}, {lists}" if lists else self.ranks

    @property
    def complaint(self) -> str:
        """Why it does not hold, over several lines: what differs where something does, else what could not be shown."""
        why = self.counterexample or self.detail or "no element types and sizes of at least 1 fit the left side"
        lines = "\n".join(filter(None, (why, self.hint)))
        return f"{self.rule}  {self.verdict}\n{indent(lines, '    ')}"

    @property
    def reassociates(self) -> bool:
        """Whether floats may be rounded in another order than before."""
        return self.model in (Model.EXTENDED, Model.REAL)

    @property
    def is_finite(self) -> bool:
        """Whether it speaks of finite values only: where there is an infinity or NaN the two sides may differ."""
        return self.model is Model.REAL or self.asks_finite

    def licenses(self, dtype: DType) -> bool:
        """Return whether the rule may be applied to a result of this element type: only EXACT speaks of others than
        floats."""
        return self.holds and (self.model is Model.EXACT or dtype.is_float)

    def to_json(self) -> dict[str, Any]:
        """As plain data, without what is empty."""
        given = {key: value for key, value in asdict(self).items() if value not in ("", None, [], False)}
        return {key: str(value) if isinstance(value, StrEnum) else value for key, value in given.items()}

    @staticmethod
    def from_json(data: Any) -> Proof:
        """Return what `to_json` made plain.

        Raises:
            ValueError, OverflowError: the data was made of no proof.
        """
        if not isinstance(data, dict) or not _KINDS.keys() >= data.keys():
            raise ValueError("it is no proof")
        for name, value in data.items():
            if type(value) not in _KINDS[name]:
                raise ValueError(f"{value!r:.40} is no {name} of a proof")
        if not {"rule", "digest", "verdict"} <= data.keys():
            raise ValueError("a proof of nothing")
        model = Model(data["model"]) if "model" in data else None
        seconds = float(data.get("seconds", 0.0))
        made = Proof(**data | {"verdict": Verdict(data["verdict"]), "model": model, "seconds": seconds})
        if made.holds and model is None:
            raise ValueError("a proof in no arithmetic")
        if made.cases < 0 or not 0 <= made.seconds < math.inf:
            raise ValueError("a proof of less than no cases, or of no seconds that could be")
        check_tree(made.coverage)
        return made

    def __str__(self) -> str:
        if not self.holds:
            return self.complaint
        return f"{self.rule}: {self.claim}, for all sizes; ranks {self.reach}; {self.cases} cases, {self.seconds:.2g} s"


_IN_JSON = {
    **dict.fromkeys(("str", "Verdict", "Model | None"), (str,)),
    "int": (int,),
    "float": (float, int),
    "Tree": (list,),
    "bool": (bool,),
}
_KINDS = {each.name: _IN_JSON[str(each.type)] for each in fields(Proof)}
"""Of what type each field is in JSON."""


def check_tree(tree: Any) -> None:
    """Raise ValueError for what is no decision tree as `Tree` says it: whoever walks down one must come to an end."""
    if not isinstance(tree, list):
        raise ValueError("what is covered is no tree")
    for place, node in enumerate(tree):
        match node:
            case []:
                continue
            case [str(question), _, list(leads)] if question.partition(" ")[0] in _LABELS:
                if all(_is_lead(lead, place, question) for lead in leads):
                    continue
        raise ValueError(f"{node!r:.40} is no node of a tree of what is covered")


_LABELS = {
    **dict.fromkeys(("pack", "rank", "length", "elements"), (int,)),
    "absent": (bool,),
    "value": (int, float, str, list, bool, type(None)),
}
"""What labels are, by the kind of question."""


def _is_lead(lead: Any, place: int, question: str) -> bool:
    """Return whether a branch leads from the node in this place to one before it."""
    match lead:
        case [list(labels), int(subtree)] | [list(labels), int(subtree), True]:
            kinds = _LABELS[question.partition(" ")[0]]
            return type(subtree) is int and 0 <= subtree < place and all(type(label) in kinds for label in labels)
    return False


class Ledger:
    """Proofs by digest of the rule; valid for one state of the verifier's source, whose digest it carries."""

    def __init__(self, proofs: Iterable[Proof] = (), verifier: str = "") -> None:
        self.verifier = verifier
        self._proofs = {proof.digest: proof for proof in proofs}

    def get(self, digest: str) -> Proof | None:
        """Return the proof of a rule with this digest, if there is one."""
        return self._proofs.get(digest)

    def add(self, proof: Proof) -> None:
        self._proofs[proof.digest] = proof

    def __iter__(self) -> Iterator[Proof]:
        return iter(sorted(self._proofs.values(), key=lambda proof: proof.rule))

    def __len__(self) -> int:
        return len(self._proofs)

    @staticmethod
    def load(path: Path) -> Ledger:
        """Read a ledger; one that is missing is empty.

        Raises:
            ValueError: the file holds something else.
        """
        try:
            data = json.loads(path.read_bytes())
            return Ledger(map(Proof.from_json, data["proofs"]), data["verifier"])
        except FileNotFoundError:
            return Ledger()
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise ValueError(f"{path} is no ledger: {error!r}") from error

    def save(self, path: Path) -> None:
        """Write it whole or not at all: one proof a line, so that changes read well."""
        lines = ",\n".join(json.dumps(proof.to_json(), ensure_ascii=False) for proof in self)
        write_text(path, f'{{"verifier": "{self.verifier}", "proofs": [\n{lines}\n]}}\n')

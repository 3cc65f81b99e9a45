"""The explanation of a simplified model: what was applied, and what almost was; as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from graphopt.base.records import to_json
from graphopt.rewrite.mismatches import label_node
from graphopt.rewrite.near_misses import MissKind, NearMiss
from graphopt.search.slower_rewrites import SlowerRewrites


@dataclass(frozen=True, slots=True)
class Explanation:
    """Explanation of a model: the rules that simplification applies to it, and where others almost match."""

    source: str
    graph: str
    """Name of the model's graph, beside those of bodies."""
    opsets: Mapping[str, int]
    applied: Mapping[str, int]
    """Number of times each rule or pass was applied, the most frequent first; of rules that were asked about, theirs
    alone."""
    misses: tuple[NearMiss, ...] = ()
    """The nearest misses, best first; of several rules that were asked about, rule by rule."""
    rules: tuple[str, ...] = ()
    """Rules that were asked about; none for all."""
    node: str = ""
    """Node to whose places the misses are restricted."""
    absent: Mapping[str, str] = field(default_factory=dict)
    """Reasons why rules have no near miss, by name."""
    notes: tuple[str, ...] = ()
    slower: SlowerRewrites | None = None
    """Races of the simplified model with versions without some rewrites; None where they were not asked for."""

    def to_json(self) -> str:
        """Return JSON that any reader takes."""
        return to_json(self, indent=2)

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        opsets = (f"{name} {number}" if name != "ai.onnx" else str(number) for name, number in self.opsets.items())
        yield f"{self.source}, opset {', '.join(opsets)}"
        yield ""
        width = max(map(len, self.applied), default=0)
        yield "applied" if self.applied else "none of these rules was applied" if self.rules else "nothing was applied"
        yield from (f"    {name:{width}}  {count}" for name, count in self.applied.items())
        for name, why in self.absent.items():
            yield from ("", f"{name}: {why}")
        told = [miss for miss in self.misses if self.rules or miss.kind is not MissKind.TRADE]
        where = f" at {self.node}" if self.node else ""
        if told:
            yield from ("", f"nearest misses{where}")
            for miss in told:
                yield from self._miss_lines(miss)
        elif not self.absent:
            yield from ("", f"no rule is nearly applied{where}")
        trades = [miss for miss in self.misses if miss not in told]
        if trades:
            yield from ("", f"trades that match{where}: optimize applies them where they measure faster")
            yield from (f"    {miss.rule}{_format_places(miss)}" for miss in trades)
        for note in self.notes:
            yield from ("", note)
        if self.slower is not None:
            yield from ("", str(self.slower))

    def _miss_lines(self, miss: NearMiss) -> Iterator[str]:
        """Yield a miss: the rule and the place, what failed first and, for rules that were asked about, what is
        bound."""
        body = f" in {miss.graph}" if miss.graph != self.graph else ""
        place = f"at {label_node(miss.node, miss.operator)}{body}"
        yield f"    {miss.rule}  {place}, {miss.matched} of {miss.parts} parts match{_format_places(miss)}"
        yield f"        {miss.reason}"
        if self.rules:
            yield from (f"            {term} = {bound}" for term, bound in miss.bindings.items())


def _format_places(miss: NearMiss) -> str:
    return f"  × {miss.places}" if miss.places > 1 else ""

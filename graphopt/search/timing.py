"""What the search and the timing found, for the report."""

from __future__ import annotations

from dataclasses import dataclass

from graphopt.runtime.measure import Speedup, TimingPolicy, Verdict
from graphopt.search.race import Latency


@dataclass(frozen=True, slots=True)
class Group:
    """Rewrites that were taken or left together."""

    rules: tuple[str, ...]
    copies: int
    """Equal parts of the model in which they were made; 0 for the model as a whole."""
    speedup: float | None
    """How many times as fast each part became, measured or estimated alone; None where it could not be timed."""
    is_taken: bool
    rewrites: tuple[int, int] = (0, 0)
    """Where in the report's list its rewrites begin and end; 0 twice where it was not taken."""
    saved: float = 0.0
    """Seconds of a run that are hoped for, in all copies together: what they are estimated to take, at that speedup. Of
    the model as a whole they are measured."""
    reason: str = ""
    """Why it was left out: what the whole model with it gave."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How fast the result is, and what the search did."""

    cost: str
    """`measured` or `analytic`."""
    provider: str
    threads: int
    speedup: Speedup | None = None
    """Of the result over the original; None where they were not timed."""
    untimed: str = ""
    """Why a result that differs from the original was not timed."""
    simplified: Speedup | None = None
    """Of the model that is simplified only, over the original: what is done without a search."""
    searched: Speedup | None = None
    """Of the result over the model that is simplified only, where the search brought something."""
    latencies: tuple[Latency, ...] = ()
    groups: tuple[Group, ...] = ()
    stop: str = ""
    """Why the search came to its end."""
    regions: int = 0
    """Distinct parts of the model that were searched."""
    copies: int = 0
    """Parts in all."""
    states: int = 0
    """Graphs looked at."""
    trials: int = 0
    """Graphs of which the cost was asked."""
    gainable: float | None = None
    """The part of the simplified model's time in kernels that is outside of convolutions and matrix products; None
    where it is not known, or an estimate spoke for rewrites of these."""
    noise: float = TimingPolicy.noise
    """As far apart as two copies of the original were seen to be: no smaller gain is taken for one."""

    @property
    def is_gain(self) -> bool:
        """True where the result was measured to be faster beyond noise."""
        return self.speedup is not None and self.speedup.verdict is Verdict.FASTER


def said(ratio: Speedup) -> str:
    """`1.031 times as fast (1.022 to 1.040)`."""
    return f"{ratio.median:.3f} times as fast ({ratio.low:.3f} to {ratio.high:.3f})"


def unresolved(ratio: Speedup, policy: TimingPolicy) -> str:
    """Return why a ratio is no gain; nothing where it is one."""
    if ratio.verdict is not Verdict.SAME:
        return "" if ratio.verdict is Verdict.FASTER else "it is slower"
    gain = ratio.median - 1
    if gain <= policy.noise:
        return f"what differs by {policy.noise:.0%} or less is not told from chance"
    if not ratio.is_steady(policy):
        return f"two copies of the original differ by up to {ratio.noise:.0%}: a quieter machine may tell"
    if ratio.has_too_few_rounds:
        return f"{ratio.rounds} rounds are too few to tell: --seconds gives it longer"
    if ratio.low <= 1:
        return "it may be chance, for the interval reaches below 1"
    return f"not all of it is beyond the {ratio.noise:.0%} by which two copies of the original may differ"

"""The policy of a search: every number by which it decides, with its unit and its reason.

A policy is a value that is passed on; its defaults are here. The stopping rules that use it are in `stopping`.
"""

from __future__ import annotations

from dataclasses import dataclass

from graphopt.rewrite.regions import BlockSizes
from graphopt.runtime.measure import TimingPolicy


@dataclass(frozen=True)
class RecomputationPolicy:
    """Limits on what an integer program decides about values that are computed again."""

    least_share: float = 0.002
    """Bytes of a value over those of the peak from which it may be recomputed; smaller ones stay."""
    least_pause: int = 16
    """Places in the order of execution between two reads from which a value may be recomputed in between."""
    anchor_window: int = 16
    """Places before a late reader among which the node is chosen that copies wait for."""
    stages: int = 80
    """Stages into which the order of execution is cut at most."""
    gap: float = 0.05
    """Relative distance from the optimum at which the solver may stop."""
    unreachable_penalty: float = 1e3
    """Price of a byte above the limit, as a multiple of the mean price of computing one again."""


@dataclass(frozen=True)
class SearchPolicy:
    """Limits on what is tried, durations of timing, and shares of the time."""

    timing: TimingPolicy = TimingPolicy()
    """Policy of timing, and of when two times differ."""
    blocks: BlockSizes = BlockSizes()
    """Sizes of the blocks that the model is cut into."""
    recomputation: RecomputationPolicy = RecomputationPolicy()
    """Policy of what a training step computes again for a memory budget."""

    # -- the search in one region --------------------------------------------------------------------------------------

    states: int = 600
    """Graphs looked at for one region, at most."""
    states_per_round: int = 40
    """Graphs looked at between two measurements: of 26 graphs that were faster than their region, in eight models, the
    last was the 88th, and the first of each region the 3rd to 44th."""
    measured_per_round: int = 6
    """Graphs measured beside a region in one round."""
    slack: float = 2.0
    """Largest estimated cost of an intermediate graph that is expanded further, as a multiple of the region's."""
    least_improvement: float = 0.001
    """Part of the model's time that a graph is expected to save, beyond the fastest that is known, to be measured."""
    fusion_error: float = 0.01
    """Standard deviation of a predicted gain, as a part of the region's time, beside that of the kernels' times: where
    these were known to 0.5 %, measured gains lay 0.9 to 1.2 % apart from predicted ones."""
    least_saving: float = 0.002
    """Part of the model's time that a region has to save to be worth a measurement: less is not seen in a race."""
    most_saving: float = 0.5
    """Largest fraction of a region's time that a find is assumed to save; regions that cannot reach `least_saving` are
    skipped."""
    max_idle_rounds: int = 2
    """Rounds without an improvement after which a region is left: of the 26 graphs above, one more was found in the
    third such round, which gained 0.07 % of the model's time."""
    refusing_copies: int = 4
    """Copies in which a refused first move is tried before it is given up: then the weights of one copy are not the
    reason."""
    min_turn_share: float = 0.05
    """Shortest turn of a region, as a fraction of the search's time."""
    held_graphs: int = 60
    """Graphs of one region that are kept between two rounds, at most: the others are made anew where they are asked
    for."""
    held_bytes: int = 1 << 26
    """Bytes of new weights in the graphs of one region that are kept, at most."""
    probed_states: int = 10
    """Graphs of each region that tell whether there is anything to gain in heavy kernels: in all 18 parts of models for
    which the estimate spoke, the first such graph was among them, but for convolutions of signals."""

    # -- sweeps --------------------------------------------------------------------------------------------------------

    sweep_rounds: int = 40
    """Rounds, and one more for each node, after which a sweep is given up: its rules undo each other, or what
    simplifies undoes them."""

    sweep_margin: float = 3.0
    """Largest gain assumed of a sweep, as a multiple of the estimated time of the nodes that it replaces: those around
    them may run in another layout. A sweep that cannot gain more than noise is not timed."""

    optimism: float = 1.0
    """Standard deviations of what a sweep is predicted to save that count for it where sweeps are ordered: what is
    uncertain is worth a look."""

    kept_part: float = 0.5
    """Size of a value up to which it may stay whole, as a part of that which is computed in parts for a memory
    budget."""
    least_buffer_share: float = 0.1
    """Share of a buffer in the peak of a run below which it is not computed in parts, and the share
    of the buffer that this has to save."""
    kept_part_of_tiles: float = 0.2
    """The same where a value is computed in tiles of rows."""
    least_tiled_share: float = 0.15
    """Share of a buffer in the peak of a run below which it is not computed in tiles of rows: tiles of the many small
    values of a deep net take longer to try than they save."""
    least_saving_of_tiles: float = 0.25
    """Part of a buffer that tiles of rows have to save, since some rows are computed twice."""
    tile_ends: int = 6
    """Operators tried as the end of a chain that is computed in tiles of rows."""
    memory_plans: int = 4
    """Plans for a memory budget that are made and measured at most, each for a lower estimate."""
    memory_plan_seconds: float = 60.0
    """Longest time in which to plan what is computed in parts, or what a training step computes again."""
    reported_memory: int = 100_000_000
    """Estimated bytes of a run from which its memory is measured without a budget, too."""
    offered_memory_saving: float = 0.1
    """Part of the memory that options of a session have to save to be offered without a budget."""
    memory_share: float = 0.1
    """Part of the time in which that is measured."""
    unnoticed_slowdown: float = 1.02
    """Ratio of times up to which such options cost no time."""

    recipe_sweep_share: float = 0.5
    """Part of the places that a sweep of a recipe matches which have to be as they were for it to be made: it pays only
    all over a model."""

    screened_race_seconds: float = 2.0
    """Seconds from which a race of all sweeps is not run: a few profiled runs say in a third of its time what they
    gain, and the races of the choice whether that is so. Short races are of short runs, which the profiler slows."""

    # -- races of regions ----------------------------------------------------------------------------------------------

    pair_seconds: float = 0.4
    """Seconds for which a region and one candidate take turns, at most."""
    region_rounds: tuple[int, int] = (5, 100)
    """Fewest and most rounds in which candidates take turns with a region: after five that are all slower a candidate
    is probably no gain."""
    profiled_region_rounds: tuple[int, int] = (8, 36)
    """The same under the profiler, for the kernels that differ then tell what a candidate gains: their times vary less
    than those of whole runs, and two sessions of the same kernels are told to be equal, where whole runs differ by up
    to 9 %."""
    profiled_pair_seconds: float = 0.15
    """The `pair_seconds` under the profiler: a region of 20 ms runs in the fewest rounds."""
    undisturbed_region_rounds: int = 12
    """Rounds under the profiler in which nothing interrupts a region and a candidate that are enough: of 12 ratios the
    interval leaves out one at each end."""
    profiled_region_seconds: float = 3e-4
    """Seconds of a region's run from which on it is profiled: of shorter ones many rounds take little time."""
    profiled_node_seconds: float = 2e-5
    """The same for each of its nodes: of shorter kernels the profiler tells too little."""
    candidates_at_once: int = 8
    """Candidates that are timed in turn with each other: each waits for all of them."""
    loaded_bytes: int = 1_000_000_000
    """Bytes of weights that lie in memory at once; a session may hold its own twice."""

    # -- races of whole models -----------------------------------------------------------------------------------------

    race_rounds: tuple[int, int] = (11, 400)
    """Fewest and most rounds."""
    profiled_rounds: tuple[int, int] = (8, 15)
    """The same where kernels are timed: at the end alone one looks at these, and then fewer tell something. Of 15
    ratios the interval leaves out two at each end; where that is too wide, the second race has as many. A race ends
    before where the whole runs of each round show a difference beyond the `session_margin`."""
    session_seconds: float = 3.0
    """Seconds for which one session is timed in a race, at most."""
    brief_session_seconds: float = 0.5
    """The same where there was nothing to search, and only simplifications are timed."""
    profiled_run_seconds: float = 0.02
    """Seconds of a run from which on races are run under the profiler, so that kernels that differ tell: of a
    SwiftFormer of 24 ms beside other work the interval of a gain of 1.4 % was 0.2 to 0.5 % wide after 24 rounds, where
    whole runs gave 2 to 4 %. Of shorter runs, in which many rounds tell, the profiler, which takes 6 to 10 µs for each
    kernel, would be seen."""
    two_races_margin: float = 1.5
    """Time for the first of two profiled races, as a multiple of what it is estimated to take: with less, there is one,
    for a race that is cut short tells nothing."""
    ample_time_margin: float = 1.3
    """Time for races of several versions, as a multiple of what they are estimated to take: with less, the most
    promising races alone. Versions take longer to open than the original where they have more to pack, and of a race
    that is cut short nothing is known."""
    pace_runs: int = 3
    """Runs from which the duration of a run is first estimated."""
    min_processor_share: float = 0.05
    """Part of a processor that a run is taken to have where it had less while it was timed for a moment."""
    compared_bytes: int = 1_000_000_000
    """Bytes of weights up to which ONNX Runtime's optimized models are compared, which are files."""
    compared_openings: float = 4.0
    """Openings of a session that this comparison takes, at most: two models are opened, and both are written."""
    finalists: int = 2
    """Candidates that won the first race and are timed a second time, the fastest first, until one wins again; after
    them the best of the sweeps alone may."""
    session_margin: float = 0.05
    """Part of a model's time by which its sessions may differ for as long as they live: what may gain less, by the
    lower end of the interval of its second race, has to win a third. Of 200 decisions between a ShuffleNet and its
    copy, two races called two copies faster."""
    tries: int = 10
    """Candidates that are timed in one series of tries, at most: with fewer finds, or with fewer rewrites."""

    # -- time and memory that are needed -------------------------------------------------------------------------------

    timing_memory_factor: int = 12
    """Memory that timing needs, as a multiple of the weights: in each session those that were read and those that were
    packed, and those in the file of the one that is being opened."""
    first_run_share: float = 0.2
    """Part of the time in which one run of the original has to end: it is run twice before it is known whether to time
    it."""
    least_sessions: int = 4
    """Sessions that race in the time, at least: a model that is slower than that is not timed. They are those of the
    original and the simplified model, in two races."""
    profiled_sessions: int = 2
    """The same where races are profiled, for of these one is enough."""
    least_openings: int = 3
    """Sessions that are opened for these two races, beside that of the original that is open."""
    first_race_sessions: int = 4
    """Sessions of the first race of the final selection where there is a find."""
    confirming_sessions: int = 3
    """Sessions of the second race."""

    # -- shares of the time --------------------------------------------------------------------------------------------

    least_tuning_share: float = 0.5
    """Part of the user's time that is for search and timing, however long it takes to load and to check the model."""
    sweeping_share: float = 0.5
    """Part of the time, without what the second race takes, in which sweeps have to be made."""
    screening_share: float = 0.6
    """Part of the time that the races of one version leave, in which sweeps are profiled by themselves, the most
    promising first: to combine those that gain takes the rest."""
    search_share: float = 0.6
    """Fraction for the search of the time left after sweeps and the reserve for the final selection; the rest is for
    that."""
    sweep_race_share: float = 0.25
    """Part of the time that is left for each race of sweeps."""
    first_race_share: float = 0.4
    """Part of the time that is left for the first race of all candidates."""
    subset_race_share: float = 0.25
    """Part of the time that is left for each race of candidates with fewer finds, or with fewer rewrites."""
    second_race_share: float = 0.6
    """Part of the time that is left for a second race."""
    opset_race_share: float = 0.1
    """Part of all time for which the results in two opsets take turns, at least."""
    provider_race_share: float = 0.1
    """Part of all time for which the results for two providers take turns, at least."""
    provider_races_share: float = 0.4
    """Part of all time that races of the results for many providers take from the searches, at most."""
    retry_share: float = 0.25
    """Part of all time for a search after one whose result the check refused, where none is left: what is written is
    timed, too."""
    unnoticed_wait: float = 0.5
    """Seconds that others may take from a search without having held it up."""
    starved_share: float = 0.8
    """Part of a processor below which a search was held up by others: another time it would find more."""

"""Times of stages in ONNX Runtime, with all its optimizations: each is fed with what those before it make."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graphopt.base.errors import ModelError
from graphopt.io import onnx_io
from graphopt.partition.balance import Cuts
from graphopt.partition.cut import CuttableGraph
from graphopt.partition.stage_session import run_stage, stage_feeds
from graphopt.partition.stages import ModelStage, extract_stages
from graphopt.runtime.measure import TimingSchedule, time_interleaved
from graphopt.runtime.oracle import RunFailedError
from graphopt.runtime.session_setting import SessionSetting, make_runner

ROUNDS = (5, 40)
"""Fewest and most rounds of a timing."""


@dataclass(eq=False)
class StageTimer:
    """Opens the stages of a model, and times them in turns, with the whole model if its session is given."""

    loaded: onnx_io.LoadedModel
    whole: CuttableGraph
    setting: SessionSetting
    feeds: Mapping[str, Any]
    folder: Path
    """Folder in which stages are written for ONNX Runtime."""
    seconds: float
    """Seconds of one timing."""
    whole_session: Any = None
    whole_seconds: float | None = None
    """Seconds of the whole model, when it was last timed beside the stages."""
    nbytes: dict[str, int] = field(default_factory=dict)
    """Bytes of the values between stages, by their names, as they were met."""
    _sessions: dict[tuple[int, int], Any] = field(default_factory=dict)

    def __call__(self, cuts: Cuts) -> list[float]:
        """Return the seconds of each stage.

        Raises:
            ModelError: ONNX Runtime cannot load or run a stage.
            OutputError: a stage cannot be written.
        """
        stages = extract_stages(self.whole, cuts)
        wanted = {(stage.start, stage.end) for stage in stages}
        self._sessions = {key: session for key, session in self._sessions.items() if key in wanted}
        runs = self._prepare(stages)
        if self.whole_session is not None:
            runs.append(make_runner(self.whole_session, self.feeds, self.setting))
        schedule = TimingSchedule(seconds=self.seconds, rounds=ROUNDS)
        found = time_interleaved(runs, schedule, meter=self.setting.timer)
        medians = [samples.median for samples in found]
        self.whole_seconds = medians.pop() if self.whole_session is not None else None
        return medians

    def _prepare(self, stages: Sequence[ModelStage]) -> list[Callable[..., object]]:
        """Return a run of each stage on what those before it make of the feeds."""
        values, runs = dict(self.feeds), []
        for number, stage in enumerate(stages, start=1):
            session = self._session(stage)
            try:
                made = run_stage(session, values)
            except Exception as error:  # the classes that onnxruntime raises share no base
                raise ModelError(f"stage {number} {RunFailedError('cannot be run', error)}") from error
            runs.append(make_runner(session, stage_feeds(session, values), self.setting))
            values |= made
            self.nbytes |= {name: getattr(value, "nbytes", 0) for name, value in made.items()}
        return runs

    def _session(self, stage: ModelStage) -> Any:
        key = stage.start, stage.end
        if key not in self._sessions:
            path = self.folder / f"{stage.start}-{stage.end}.onnx"
            onnx_io.save_model(stage.model(self.loaded), path)
            self._sessions[key] = self.setting.open(path)
            for file in self.folder.glob(f"{path.name}*"):
                with suppress(OSError):  # Windows keeps what a session has mapped until the folder goes
                    file.unlink()
        return self._sessions[key]

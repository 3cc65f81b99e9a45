"""The pages of two models: how they compare, and how fast they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from graphopt.check.verdict import EqualityVerdict, ModelComparison
from graphopt.io.onnx_io import LoadedModel, naming_file_in_errors
from graphopt.ir.graph import IDENTITY
from graphopt.operators.inference import infer_graph
from graphopt.report.benchmark_sections import benchmark_cards, benchmark_sentence, profile_section, times_section
from graphopt.report.graph_data import GraphPair
from graphopt.report.graph_outline import GraphOutline
from graphopt.report.html import element
from graphopt.report.page_layout import cards, document, graph_page_data, graph_section
from graphopt.report.report import ModelSummary, Report, model_summary
from graphopt.report.report_sections import check_card, check_section, operator_counts_section, size_cards
from graphopt.runtime.bench import Benchmark
from graphopt.runtime.profile import Profile

PAIRED = "How the second model was made is not known here: nodes are paired by operator and name."


@dataclass(frozen=True)
class ModelPair:
    """Two models for a page."""

    names: tuple[str, str]
    summaries: tuple[ModelSummary, ModelSummary]
    before: GraphOutline
    after: GraphOutline

    @staticmethod
    def from_models(before: LoadedModel, after: LoadedModel) -> ModelPair:
        """Return two models with the types of their values inferred."""
        for model in (before, after):
            with naming_file_in_errors(model.path):
                infer_graph(model.graph)
        return ModelPair(
            (str(before.path or "the first model"), str(after.path or "the second model")),
            (model_summary(before), model_summary(after)),
            GraphOutline.from_graph(before.graph),
            GraphOutline.from_graph(after.graph),
        )

    def mismatch(self, report: Report) -> str:
        """Say why these are not the models of a report; nothing where they are."""
        for name, own, told in zip(self.names, self.summaries, (report.before, report.after), strict=True):
            names = {op for op in {*own.ops, *told.ops} if own.ops.get(op, 0) != told.ops.get(op, 0)} - {IDENTITY}
            if names:  # Identities may be added where a file is written, for outputs that have two names
                numbers = ", ".join(f"{own.ops.get(op, 0)} {op} for {told.ops.get(op, 0)}" for op in sorted(names)[:3])
                return f"{name} is not the model of this report: it has {numbers}"
        return ""


def comparison_page(found: ModelComparison, models: ModelPair) -> str:
    """Return the page of a comparison of two models."""
    before, after = models.summaries
    return document(
        f"graphopt: {' and '.join(PurePath(name).name for name in models.names)}",
        element("h1", f"{_same_clause(found)}: {models.names[0]} and {models.names[1]}"),
        cards([check_card(found), *size_cards(before, after)]),
        graph_section(PAIRED),
        check_section(found),
        operator_counts_section(before.ops, after.ops),
        data=graph_page_data(GraphPair.by_names(models.before, models.after)),
    )


def _same_clause(found: ModelComparison) -> str:
    match found.verdict:
        case EqualityVerdict.EQUAL:
            return "The models agree"
        case EqualityVerdict.DIFFERENT:
            return "The models differ"
    return f"The models could not be compared ({found.verdict})"


def benchmark_page(found: Benchmark, profiles: Sequence[Profile], models: ModelPair | None) -> str:
    """Return the page of a benchmark.

    Args:
        found: the times of all models.
        profiles: where their time goes, at each set of sizes the profile of each model.
        models: the two models, where there are two: their graphs are drawn.
    """
    first = profiles[: len(found.models)]
    graphs = [] if models is None else [graph_section(PAIRED)]
    return document(
        f"graphopt: {', '.join(PurePath(name).name for name in found.models)}",
        element("h1", benchmark_sentence(found)),
        cards(benchmark_cards(found)),
        *graphs,
        *(profile_section(first[0], other, number) for number, other in enumerate(first[1:])),
        times_section(found),
        data={} if models is None else graph_page_data(GraphPair.by_names(models.before, models.after)),
    )

"""Finds of ONNX Runtime's own tools in a model, before graphopt and after it, and the rewrites that hide them.

``python -m benchmarks neighbours`` runs them on what graphopt makes of the tests' fixtures. Where one finds less than
in the original, fails, or makes another function of it, a smallest set of rewrites is looked for without which it does
not; these are written to ``graphopt/neighbours.json``, which ``--before`` reads.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from rich.progress import track

import graphopt
from benchmarks import quantized
from benchmarks.environment import one_line
from graphopt.base import files
from graphopt.language import rule_library
from graphopt.language.terms import App
from graphopt.neighbours import NEIGHBOURS

Feeds: TypeAlias = Mapping[str, Any]
Make: TypeAlias = Callable[[onnx.ModelProto], onnx.ModelProto]

MODEL_TYPES: Mapping[str, tuple[str, int, int]] = {
    "classic-bert": ("bert", 4, 128),
    "bert": ("bert", 4, 128),
    "gpt2": ("gpt2", 4, 128),
    "llama": ("gpt2", 4, 128),
    "swin": ("swin", 0, 0),
    "vit": ("vit", 3, 192),
}
"""Type, heads and width that the optimizer of transformers is told, by how names of fixtures begin."""


# -- the tools ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Drop what the tools log and print, and the warnings of the sessions in which they optimize."""
    import onnxruntime

    logging.disable(logging.CRITICAL)
    onnxruntime.set_default_logger_severity(4)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        onnxruntime.set_default_logger_severity(2)
        logging.disable(logging.NOTSET)


def fuse(path: Path, kind: str, heads: int, width: int) -> onnx.ModelProto:
    """Return what `onnxruntime.transformers.optimizer` makes of a file by default."""
    from onnxruntime.transformers.optimizer import optimize_model

    with silence():
        model: onnx.ModelProto = optimize_model(str(path), model_type=kind, num_heads=heads, hidden_size=width).model
    return model


def quantize(path: Path, form: str, feeds: Feeds) -> onnx.ModelProto:
    """Return the quantized form of a file, which stays."""
    with tempfile.TemporaryDirectory() as folder, silence():
        copy = Path(folder) / "model.onnx"
        onnx.save(onnx.load(path), copy)
        return quantized.FORMS[form](copy, feeds)


# -- what they find ----------------------------------------------------------------------------------------------------

ATTENTION = ("Attention", "MultiHeadAttention", "GroupQueryAttention", "PackedAttention", "QAttention")
INTEGER_PRODUCTS = ("MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv", "QGemm", "QAttention")
PRODUCTS = ("MatMul", "Gemm", "Conv", "ConvTranspose")


@dataclass(frozen=True)
class Finding:
    """Outcome of a tool for a model."""

    found: Mapping[str, int]
    """Counts of what it finds; more is better."""
    left: Mapping[str, int]
    """Counts of what it leaves as it is; less is better."""
    distance: float
    """Root mean square of the difference to the original's outputs, relative to that of the outputs."""
    nodes: int = 0
    error: str = ""

    def losses(self, now: Finding) -> list[str]:
        """Return in what another finding, of the same model rewritten, is worse."""
        if now.error:
            return [] if self.error else [f"fails: {now.error}"]
        fewer = {name: (count, now.found.get(name, 0)) for name, count in self.found.items()}
        lost = [f"{name}: {before} → {after}" for name, (before, after) in fewer.items() if after < before]
        more = {name: (self.left.get(name, 0), count) for name, count in now.left.items()}
        lost += [f"{name}: {before} → {after}" for name, (before, after) in more.items() if after > before]
        is_alike = all(before == after for before, after in more.values())  # what is quantized more differs more
        if is_alike and now.distance > ALLOWED_DISTANCE * self.distance + TOLERANCE:
            lost.append(f"difference: {self.distance:.1g} → {now.distance:.1g}")
        return lost


ALLOWED_DISTANCE = 1.5
"""Factor by which a tool may end further from the original's outputs after graphopt than without it."""
TOLERANCE = 5e-6
"""Relative difference that rounding makes in any case; the two forms of Gelu differ by more."""


def count_fusions(model: onnx.ModelProto) -> tuple[dict[str, int], dict[str, int]]:
    """Return how many operators of each kind there are that the optimizer of transformers looks for."""
    operators = Counter(node.op_type for node in nodes(model.graph))
    kinds: Mapping[str, Callable[[str], bool]] = {
        "attention": lambda name: name in ATTENTION,
        "normalization": lambda name: "LayerNormalization" in name or name == "RMSNormalization",
        "skip": lambda name: name.startswith("Skip"),
        "activation": lambda name: "Gelu" in name,
        "rotary": lambda name: name == "RotaryEmbedding",
    }
    counts = {kind: sum(n for name, n in operators.items() if is_of(name)) for kind, is_of in kinds.items()}
    return {kind: count for kind, count in counts.items() if count}, {}


def count_quantized(model: onnx.ModelProto) -> tuple[dict[str, int], dict[str, int]]:
    """Return how many products and lookups of weights are left in floats, and how many products of other values."""
    weights = {
        tensor.name
        for tensor in model.graph.initializer
        if tensor.data_type == onnx.TensorProto.FLOAT and np.prod(tensor.dims) >= LEAST_ELEMENTS
    }
    dequantized = {name for node in nodes(model.graph) if node.op_type == "DequantizeLinear" for name in node.output}
    products = [node.input[:2] for node in nodes(model.graph) if node.op_type in PRODUCTS]
    lookups = [node.input[0] for node in nodes(model.graph) if node.op_type == "Gather"]
    of_weights = [inputs for inputs in products if weights.intersection(inputs)]
    return {}, {
        "float products of weights": len(of_weights),
        "float lookups": sum(name in weights for name in lookups),
        "other float products": sum(not dequantized.intersection(inputs) for inputs in products) - len(of_weights),
    }


LEAST_ELEMENTS = 256
"""Smaller constants are no weights that anybody quantizes."""


def nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph and of the bodies in it."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from nodes(attribute.g)


@dataclass(frozen=True)
class Use:
    """A use of a tool on a model."""

    name: str
    apply: Callable[[Path], onnx.ModelProto]
    count: Callable[[onnx.ModelProto], tuple[dict[str, int], dict[str, int]]]
    feeds: Sequence[Feeds]

    def find(self, model: onnx.ModelProto, expected: Sequence[Sequence[Any]]) -> Finding:
        """Return what the tool makes of a model, whose original gives the `expected` outputs for the feeds."""
        try:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "model.onnx"
                onnx.save(model, path)
                made = self.apply(path)
                actual = outputs_of(made, self.feeds)
        except Exception as error:  # whatever stops a tool is a finding
            return Finding({}, {}, 0.0, error=one_line(error))
        found, left = self.count(made)
        return Finding(found, left, distance(expected, actual), len([*nodes(made.graph)]))


def outputs_of(model: onnx.ModelProto, feeds: Sequence[Feeds]) -> list[Sequence[Any]]:
    """Return the outputs of a model under ONNX Runtime's basic optimizations, for each feed."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return [session.run(None, dict(feed)) for feed in feeds]


def distance(expected: Sequence[Sequence[Any]], actual: Sequence[Sequence[Any]]) -> float:
    """Return the greatest root mean square of a difference, relative to that of the expected values."""
    pairs = [pair for wanted, got in zip(expected, actual, strict=True) for pair in zip(wanted, got, strict=True)]
    return max(_relative(wanted.astype(np.float64), got.astype(np.float64)) for wanted, got in pairs)


def _relative(wanted: Any, got: Any) -> float:
    return float(np.sqrt(np.mean((wanted - got) ** 2)) / max(float(np.sqrt(np.mean(wanted**2))), 1e-30))


# -- which rewrites hide it --------------------------------------------------------------------------------------------

COSTS = ("none", "analytic")
"""Forms of a result: simplified, and with what a search by estimates adds."""


@dataclass(frozen=True)
class Search:
    """The search for rewrites that hide something of one model from one use of a tool."""

    model: onnx.ModelProto
    use: Use
    expected: Sequence[Sequence[Any]]
    """Outputs of the model for the feeds of the use."""
    plain: Finding
    """Outcome of the tool for the model itself."""
    made: dict[tuple[str, frozenset[str]], graphopt.Result]
    """Results for the model, by what `losses` is asked for; all uses of it may share them."""

    @staticmethod
    def begin(
        model: onnx.ModelProto, use: Use, made: dict[tuple[str, frozenset[str]], graphopt.Result] | None = None
    ) -> Search:
        expected = outputs_of(model, use.feeds)
        return Search(model, use, expected, use.find(model, expected), {} if made is None else made)

    def losses(self, cost: str, skip: Collection[str]) -> tuple[list[str], set[str]]:
        """Return what the tool loses after graphopt without some rewrites, and the names of those that were made."""
        key = cost, frozenset(skip)
        if key not in self.made:
            self.made[key] = graphopt.optimize(self.model, cost=cost, check=False, skip=sorted(skip), seconds=SECONDS)
        result = self.made[key]
        now = self.use.find(result.model, self.expected)
        return self.plain.losses(now), {rewrite.name for rewrite in result.report.rewrites}

    def hidden_by(self, cost: str, known: Collection[str]) -> tuple[list[str], list[str]]:
        """Return what the tool loses, and which rewrites to hold back beside those that are known; none where it loses
        that in any case."""
        lost, fired = self.losses(cost, known)
        suspects = set[str]()
        rest = lost
        while rest and fired - suspects:  # others fire where these do not
            suspects |= fired
            rest, fired = self.losses(cost, {*known, *suspects})
        if rest or not lost:
            return lost, []
        return lost, minimal(sorted(suspects), lambda held: not self.losses(cost, {*known, *held})[0])


SECONDS = 10.0
"""Limit of a search by estimates."""


def minimal(names: Sequence[str], is_enough: Callable[[Sequence[str]], bool]) -> list[str]:
    """Return a part of the names that is enough and of which no name can be left out; all of them are enough.

    Parts are left out by halves, quarters and so on (delta debugging, Zeller 2002).
    """
    kept, size = list(names), max(1, len(names) // 2)
    while True:
        before = list(kept)
        for start in range(0, len(before), size):
            part = set(before[start : start + size])
            rest = [name for name in kept if name not in part]
            if len(rest) < len(kept) and is_enough(rest):
                kept = rest
        if size == 1 and kept == before:
            return kept
        size = max(1, size // 2)


def written_alike(names: Collection[str]) -> list[str]:
    """Return the rules that write what some rules write, an operator, of other spellings of it."""
    rules = rule_library.load_rules(trades=True)
    written = [rule.right for rule in rules if rule.name in names]
    return [
        rule.name
        for rule in rules
        if rule.name not in names and rule.right in written and all(isinstance(term, App) for term in rule.right)
    ]


def model_type(name: str) -> tuple[str, int, int]:
    """Return what the optimizer of transformers is told of a fixture."""
    return next(kind for prefix, kind in MODEL_TYPES.items() if name.startswith(prefix))


def uses(name: str, feeds: Sequence[Feeds]) -> dict[str, list[Use]]:
    """Return the uses of each neighbour on a fixture."""
    fusing = []
    if any(map(name.startswith, MODEL_TYPES)):
        kind = model_type(name)
        fusing = [Use(f"optimize_model of {kind[0]}", lambda path: fuse(path, *kind), count_fusions, feeds)]
    quantizing = [
        Use(f"quantize_{form}", partial(quantize, form=form, feeds=feeds[0]), count_quantized, feeds)
        for form in quantized.FORMS
    ]
    return dict(zip(NEIGHBOURS, (fusing, quantizing), strict=True))


def run(names: Sequence[str], path: Path) -> Iterator[str]:
    """Look for what each tool loses in the fixtures of these names, and yield what was found.

    The data is written after each fixture; what the file says of other fixtures stays in it.
    """
    held = found_in_others(names, path)
    for name in track(names, description="fixtures"):
        model, feeds = fixture(name)
        made: dict[tuple[str, frozenset[str]], graphopt.Result] = {}
        for tool, use in ((tool, use) for tool, several in uses(name, feeds).items() for use in several):
            search = Search.begin(model, use, made)
            for cost in COSTS:
                lost, guilty = search.hidden_by(cost, held[tool])
                for rewrite in [*guilty, *written_alike(guilty)]:
                    held[tool].setdefault(rewrite, []).append(f"{name}, {use.name}: {'; '.join(lost)}")
                if lost:
                    why = f"by {', '.join(guilty)}" if guilty else "whatever is held back"
                    yield f"{name}, {use.name}, cost {cost}: {'; '.join(lost)}, {why}"
        data = {tool: {"held_back": dict(sorted(found.items()))} for tool, found in held.items()}
        files.write_text(path, json.dumps(data, indent=2, ensure_ascii=False) + "\n")
    yield f"written: {path}"


def found_in_others(names: Collection[str], path: Path) -> dict[str, dict[str, list[str]]]:
    """Return the reasons in a file to hold rewrites back that come from other fixtures than these, by tool."""
    data = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    others: dict[str, dict[str, list[str]]] = {}
    for tool in NEIGHBOURS:
        known = data.get(tool, {}).get("held_back", {})
        kept = {name: [why for why in reasons if why.split(",")[0] not in names] for name, reasons in known.items()}
        others[tool] = {name: reasons for name, reasons in kept.items() if reasons}
    return others


def fixtures() -> list[str]:
    """Return the names of the fixtures."""
    from tests import zoo

    return [zoo.CLASSIC_BERT.stem, *zoo.names()]


@cache
def fixture(name: str) -> tuple[onnx.ModelProto, Sequence[Feeds]]:
    """Return a fixture of the tests, and inputs for it."""
    from tests import zoo

    model = zoo.restore(zoo.CLASSIC_BERT) if name == zoo.CLASSIC_BERT.stem else zoo.load(name)
    return model, [zoo.inputs(model, seed) for seed in (0, 1)]

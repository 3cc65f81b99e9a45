"""Kernels of two engines in the same words: of what kind their work is, and how large.

An engine names its kernels as it likes, lays out and pads channels for its processor, and fuses nodes: work is told by
what remains, the sizes that both have to compute. What is fused into a kernel counts as a part of it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

Shape: TypeAlias = tuple[int, ...]

BLOCK = 16
"""Channels of a convolution count in multiples of this: ONNX Runtime pads them to 8 or 16 for its blocked layout."""


class Kind(StrEnum):
    """Kind of work; a depthwise convolution has one for each size of its window."""

    PRODUCT = "products with weights"
    POINTWISE = "1×1 convolutions"
    DENSE = "k×k convolutions"
    GROUPED = "grouped convolutions"
    DEPTHWISE = "depthwise"
    TRANSPOSED = "transposed convolutions"
    ATTENTION = "attention"
    """Products of activations, softmax, and kernels of both."""
    RECURRENT = "recurrent"
    NORMALIZATION = "normalization"
    ELEMENTWISE = "elementwise"
    POOL = "pools and reductions"
    LAYOUT = "transposes and reorders"
    MOVEMENT = "other moves"
    QUANTIZATION = "quantization"
    REST = "rest"


_NAMES = {
    Kind.ATTENTION: "attention|softmax",
    Kind.TRANSPOSED: "convtranspose|deconvolution",
    Kind.DENSE: "conv(?!ert)",
    Kind.PRODUCT: "matmul|gemm|fullyconnected|einsum",
    Kind.RECURRENT: "lstm|gru|rnn",
    Kind.NORMALIZATION: "norm|mvn|rms|lrn",
    Kind.POOL: "pool|reduce|argm",
    Kind.LAYOUT: "transpose|reorder",
    Kind.QUANTIZATION: "(?<!qlinear)quantize",
    Kind.REST: "rope|rotary|topk|nonmax|nonzero|loop|iterator|^if$|cumsum",
    Kind.MOVEMENT: "concat|split|slice|gather|scatter|reshape|squeeze|^pad$|expand|broadcast|tile|resize|interpolate"
    "|depthtospace|spacetodepth|shuffle|identity|shape",
}
"""Operators of a kind by what their names contain, in either engine; the first that fits. Others are elementwise."""


@dataclass(frozen=True, slots=True)
class Work:
    """Work of one kernel."""

    kind: str
    """A `Kind`, or that of a depthwise convolution with its window."""
    size: str
    """What is computed, and how much of it: kernels of two engines that have the same can be put side by side."""


def kind_of(operator: str) -> Kind:
    """Return the kind of an operator by its name alone; of a convolution `Kind.DENSE`."""
    name = operator.lower()
    return next((kind for kind, pattern in _NAMES.items() if re.search(pattern, name)), Kind.ELEMENTWISE)


def product_work(left: Shape, output: Shape, *, has_weights: bool) -> Work:
    """Return the work of a matrix product, by the shapes of its left operand and its output.

    Args:
        left: of rank 2 or more; it may be transposed.
        output: of the same rank.
        has_weights: whether the right operand is constant. If so, all axes but the last are rows of one product.
    """
    *batch, rows, columns = output
    depth = left[-2] if left[-1] == rows != left[-2] else left[-1]
    if has_weights:
        return Work(Kind.PRODUCT, _product_size(math.prod(output[:-1]), left[-1], columns))
    return Work(Kind.ATTENTION, f"{math.prod(batch)} products {rows}×{depth}×{columns}")


def _product_size(rows: int, depth: int, columns: int) -> str:
    return f"product {rows}×{_blocks(depth)}×{_blocks(columns)}"


def convolution_work(weights: Shape, group: int, images: int, positions: Shape) -> Work:
    """Return the work of a convolution.

    A dense pointwise one has the size of the product that it is.

    Args:
        weights: output channels, input channels of a group, and the window.
        group: number of groups.
        images: size of the batch.
        positions: sizes of the output's spatial axes.
    """
    made, read, *window = weights
    text = "×".join(map(str, window))
    if group == 1 and math.prod(window) == 1:
        return Work(Kind.POINTWISE, _product_size(images * math.prod(positions), read, made))
    where = f"{f'{images} of ' if images > 1 else ''}{'×'.join(map(str, positions))}"
    if group == 1:
        return Work(Kind.DENSE, f"{text} convolution {_blocks(read)}→{_blocks(made)}, {where}")
    if read == 1:
        return Work(f"{Kind.DEPTHWISE} {text}", f"{text} depthwise {_blocks(made)}, {where}")
    return Work(Kind.GROUPED, f"{text} convolution {_blocks(read * group)}→{_blocks(made)} in {group}, {where}")


def _blocks(channels: int) -> int:
    """Return a number of channels as it is where they are few, and whole blocks of more."""
    return channels if channels < BLOCK // 2 else -(-channels // BLOCK) * BLOCK


def other_work(kind: Kind, output: Shape) -> Work:
    """Return the work of a kernel of which only the output's size counts."""
    return Work(kind, f"{kind}, {math.prod(output):,} elements")


# -- what engines tell of a kernel -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel as an engine tells of it."""

    operator: str
    inputs: Sequence[Shape]
    outputs: Sequence[Shape]
    weights: Shape = ()
    """Shape of the constant that a product or a convolution has, where it has one."""
    group: int = 1
    is_channels_last: bool = False
    """True where the shapes of images have the channels last."""
    parts: Iterable[str] = ()
    """Names of the nodes that were fused into it."""

    @property
    def work(self) -> Work:
        """Its work."""
        kind, output = kind_of(self.operator), self.outputs[0] if self.outputs else ()
        if kind is Kind.ELEMENTWISE and any(kind_of(_word(part)) is Kind.PRODUCT for part in self.parts):
            kind = Kind.ATTENTION
        if kind is Kind.PRODUCT and self.inputs and min(len(self.inputs[0]), len(output)) > 1:
            return product_work(self.inputs[0], output, has_weights=bool(self.weights))
        if kind is Kind.DENSE and len(self.weights) > 2:
            positions = output[1:-1] if self.is_channels_last else output[2:]
            return convolution_work(self.weights, self.group, output[0], positions)
        return other_work(kind, output)


def _word(name: str) -> str:
    """Return the operator after which exporters have named a node: `MatMul` of `node_MatMul_49`."""
    return re.sub(r"^node_|_\d+$", "", name)


def sum_by_work(kernels: Iterable[tuple[Work, float]]) -> Mapping[Work, tuple[int, float]]:
    """Return how many kernels have each work, and their seconds."""
    found: dict[Work, tuple[int, float]] = {}
    for work, seconds in kernels:
        count, known = found.get(work, (0, 0.0))
        found[work] = count + 1, known + seconds
    return found

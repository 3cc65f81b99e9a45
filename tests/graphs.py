"""Small graphs whose types are all known, for tests of what graphs cost."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphopt.io import onnx_io
from graphopt.ir.graph import Graph
from graphopt.operators.inference import infer_graph
from tests.text import parse

IMAGE, OTHER = "float[1,32,28,28] x", "float[1,32,28,28] y"
SAME_SIZE = "<pads=[1,1,1,1]>"


def weight(*shape: int) -> NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def graph(inputs: str, body: str, outputs: str = OTHER, *, opset: int = 20, **weights: Any) -> Graph:
    """A graph whose types are all known, from nodes in ONNX text."""
    found = onnx_io.load_model(parse(inputs, body, weights, outputs=outputs, opset=opset)).graph
    infer_graph(found)
    return found


def image(body: str, outputs: str = OTHER, **weights: Any) -> Graph:
    """A graph of an image with 32 channels."""
    return graph(IMAGE, body, outputs, **weights)

"""Forty laws that a run has to find by itself: as equal terms of tensors with named axes."""

from __future__ import annotations

from graphopt.language.terms import App, Lit, Term, fn, op, tensor

x, y, z, w = (tensor(name, "N N") for name in "xyzw")
c, k = tensor("c", "N 1"), tensor("k", "")
image, other = (tensor(name, "N N L") for name in "xy")
kernel, kernel2 = (tensor(name, "N N K") for name in "wv")


def turned(matrix: Term) -> Term:
    return op.Transpose(matrix, perm=(1, 0))


def beside(*parts: Term, axis: int = -1) -> App:
    return op.Concat(*parts, axis=axis)


def part(matrix: Term, number: int, axis: int = -1) -> App:
    return op.Split.split(2, matrix, fn.sizes("N N"), axis=axis)[number]


def total(matrix: Term, axis: int = -1) -> App:
    return op.ReduceSum(matrix, (axis,), keepdims=1)


def conv(of: Term, weights: Term) -> App:
    return op.Conv(of, weights, pads=(1, 1))


def windows(name: str, of: Term) -> App:
    return App(name, (of,), (("kernel_shape", Lit((3,))), ("pads", Lit((1, 1)))))


MATRICES: dict[str, tuple[Term, Term]] = {
    "sums may be grouped": ((x + y) + z, x + (y + z)),
    "products of elements may be grouped": ((x * y) * z, x * (y * z)),
    "products of matrices may be grouped": ((x @ y) @ z, x @ (y @ z)),
    "a product of elements distributes": (x * (y + z), x * y + x * z),
    "a product distributes from the left": (x @ (y + z), x @ y + x @ z),
    "a product distributes from the right": ((x + y) @ z, x @ z + y @ z),
    "a number moves into the left operand": ((x * k) @ y, (x @ y) * k),
    "a number moves into the right operand": (x @ (y * k), (x @ y) * k),
    "a factor of rows moves out": ((x * c) @ y, (x @ y) * c),
    "a product turned is that of the turned, swapped": (turned(x @ y), turned(y) @ turned(x)),
    "turning twice is nothing": (turned(turned(x)), x),
    "a sum turned is that of the turned": (turned(x + y), turned(x) + turned(y)),
    "Relu may be turned": (turned(op.Relu(x)), op.Relu(turned(x))),
    "Relu of what lies beside": (op.Relu(beside(x, y)), beside(op.Relu(x), op.Relu(y))),
    "Relu twice is once": (op.Relu(op.Relu(x)), op.Relu(x)),
    "sums of what lies beside": (beside(x, y) + beside(z, w), beside(x + z, y + w)),
    "turned, what lies beside lies below": (turned(beside(x, y)), beside(turned(x), turned(y), axis=-2)),
    "beside and below may be exchanged": (
        beside(beside(x, y), beside(z, w), axis=-2),
        beside(beside(x, z, axis=-2), beside(y, w, axis=-2)),
    ),
    "lying beside may be grouped": (beside(beside(x, y), z), beside(x, beside(y, z))),
    "the first part of two beside": (part(beside(x, y), 0), x),
    "the second part of two below": (part(beside(x, y, axis=-2), 1, axis=-2), y),
    "products of one input lie beside": (beside(x @ y, x @ z), x @ beside(y, z)),
    "products with one matrix lie below": (beside(x @ z, y @ z, axis=-2), beside(x, y, axis=-2) @ z),
    "a sum of products is one of what lies beside": (x @ y + z @ w, beside(x, z) @ beside(y, w, axis=-2)),
    "a Softmax does not see a shift": (op.Softmax(x + c, axis=-1), op.Softmax(x, axis=-1)),
    "nor the same number everywhere": (op.Softmax(x + k, axis=-1), op.Softmax(x, axis=-1)),
    "a total of a sum": (total(x + y), total(x) + total(y)),
    "a total of multiples": (total(x * k), total(x) * k),
    "a total of what lies beside": (total(beside(x, y)), total(x) + total(y)),
    "a total of the turned": (total(turned(x)), turned(total(x, axis=-2))),
}
IMAGES: dict[str, tuple[Term, Term]] = {
    "Conv is linear in its input": (conv(image + other, kernel), conv(image, kernel) + conv(other, kernel)),
    "Conv is linear in its weights": (conv(image, kernel + kernel2), conv(image, kernel) + conv(image, kernel2)),
    "a number moves into the weights": (conv(image, kernel * k), conv(image, kernel) * k),
    "Convs of one input lie beside": (
        beside(conv(image, kernel), conv(image, kernel2), axis=1),
        conv(image, beside(kernel, kernel2, axis=0)),
    ),
    "Convs with one kernel are a batch": (
        beside(conv(image, kernel), conv(other, kernel), axis=0),
        conv(beside(image, other, axis=0), kernel),
    ),
    "a sum of Convs is one of what lies beside": (
        conv(image, kernel) + conv(other, kernel2),
        conv(beside(image, other, axis=1), beside(kernel, kernel2, axis=1)),
    ),
    "the greatest in windows of what lies beside": (
        windows("MaxPool", beside(image, other, axis=1)),
        beside(windows("MaxPool", image), windows("MaxPool", other), axis=1),
    ),
    "means of windows of a sum": (
        windows("AveragePool", image + other),
        windows("AveragePool", image) + windows("AveragePool", other),
    ),
    "means of windows of what lies beside": (
        windows("AveragePool", beside(image, other, axis=0)),
        beside(windows("AveragePool", image), windows("AveragePool", other), axis=0),
    ),
    "means of whole images that lie beside": (
        op.GlobalAveragePool(beside(image, other, axis=1)),
        beside(op.GlobalAveragePool(image), op.GlobalAveragePool(other), axis=1),
    ),
}

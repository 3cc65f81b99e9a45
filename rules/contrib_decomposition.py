"""Operators of ONNX Runtime's own that stand for several, taken apart again: it saves such models, and its tools do.

Rules of all other families match the parts. ONNX Runtime fuses them again when it loads the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import pi, sqrt

from graphopt.base.dtype import DType
from graphopt.rule import App, Rule, Term, TermLike, define, fn, integer, integers, microsoft, op, real, string, tensor
from graphopt.rules.names import snake_case

APART = "Rules are of the parts, and ONNX Runtime fuses again what it likes when it loads them."


def define_and_decompose(name: str, fused: App, parts: App, *when: Term, **defaults: TermLike) -> Rule:
    """Declare an operator, and return the rule that takes it apart."""
    define(fused, parts, when, **defaults)
    return Rule(name, fused, parts, when=when, why=APART)


# -- normalizations of sums ------------------------------------------------------------------------------------------
# Of mean and deviation, which are for training, the kernels make numbers in single precision.

x, skip, factor, shift = tensor("x", "B S N"), tensor("skip", "B S N"), tensor("gamma", "N"), tensor("beta", "N")
bias, epsilon = tensor("bias", "N"), real("epsilon")
TOTALS: Mapping[str, tuple[tuple[Term, ...], App]] = {"skip": ((), x + skip), "biased_skip": ((bias,), x + skip + bias)}


IN_SINGLE = (fn.ne(fn.dtype(x), DType.DOUBLE), fn.lt(0, fn.size("N")))
"""RMSNormalization computes so, whatever the type, and of nothing ONNX Runtime refuses it."""


def last_axis_mean(value: Term) -> App:
    return op.ReduceMean(value, (-1,), keepdims=1)


def inverse_deviation(squares: App) -> App:
    return op.Cast(1.0 / op.Sqrt(last_axis_mean(squares) + epsilon), to=int(DType.FLOAT))


def normalizations(name: str, given: tuple[Term, ...], total: App) -> Iterator[Rule]:
    """Yield the rules for a sum: with the sum itself, which goes on beside, and, where that is not read, without."""
    centred = total - last_axis_mean(total)
    layer = op.LayerNormalization(total, factor, shift, axis=-1, epsilon=epsilon)
    rms = op.RMSNormalization(total, factor, axis=-1, epsilon=epsilon)
    divided = total / op.Sqrt(last_axis_mean(op.Pow(total, 2)) + epsilon) * factor
    for kind, operator, inputs, forms, beside in (
        (
            "layer",
            microsoft.SkipLayerNormalization,
            (factor, shift),
            {"": (layer, ())},
            (op.Cast(last_axis_mean(total), to=int(DType.FLOAT)), inverse_deviation(centred * centred)),
        ),
        (
            "rms",
            microsoft.SkipSimplifiedLayerNormalization,
            (factor,),
            {"": (rms, IN_SINGLE), "_written_out": (divided, ())},
            (op.Expand(0.0, fn.concat(fn.sizes("B S"), 1)), inverse_deviation(total * total)),
        ),
    ):
        outputs = operator.split(4, x, skip, *inputs, *given, epsilon=epsilon)
        first = operator(x, skip, *inputs, *given, epsilon=epsilon)
        meaning = [*forms.values()][-1][0]
        define(first, meaning, epsilon >= 0, epsilon=1e-12)
        define(outputs, (meaning, *beside, total), epsilon >= 0, epsilon=1e-12)
        for how, (made, when) in forms.items():
            called = f"part_{name}_{kind}_normalization"
            yield Rule(f"{called}_and_sum{how}", (outputs[0], outputs[3]), (made, total), when, why=APART)
            yield Rule(f"{called}{how}", first, made, when, why=APART)


NORMALIZATIONS = tuple(rule for name, said in TOTALS.items() for rule in normalizations(name, *said))

# -- activations -----------------------------------------------------------------------------------------------------

y, z, b, columns, alpha = tensor("x"), tensor("y"), tensor("b", "N"), tensor("x", "*b N"), real("alpha")
shorter = fn.ne(fn.dtype(columns), DType.DOUBLE)
"""The columns are not double: where it has no kernel, ONNX Runtime writes the constants of FastGelu in single."""


def fast_gelu(value: Term) -> App:
    return op.Gelu(value, approximate="tanh")


def written_out_gelu(value: Term) -> App:
    return value * (op.Erf(value / sqrt(2)) + 1.0) * 0.5


def written_out_fast_gelu(value: Term) -> App:
    return value * 0.5 * (op.Tanh((value + op.Pow(value, 3) * 0.044715) * sqrt(2 / pi)) + 1.0)


ACTIVATIONS = (
    define_and_decompose("part_bias_gelu", microsoft.BiasGelu(columns, b), op.Gelu(columns + b)),
    define_and_decompose("replace_microsoft_gelu", microsoft.Gelu(y), op.Gelu(y)),
    define_and_decompose("part_fast_gelu", microsoft.FastGelu(columns), fast_gelu(columns), shorter),
    define_and_decompose("part_biased_fast_gelu", microsoft.FastGelu(columns, b), fast_gelu(columns + b), shorter),
    define_and_decompose(
        "part_quick_gelu", microsoft.QuickGelu(y, alpha=alpha), y * op.Sigmoid(alpha * y), alpha=1.702
    ),
    *(
        Rule(f"{name}_written_out", fused, parts, shorter, why=APART)
        for name, fused, parts in (
            ("part_bias_gelu", microsoft.BiasGelu(columns, b), written_out_gelu(columns + b)),
            ("replace_microsoft_gelu", microsoft.Gelu(columns), written_out_gelu(columns)),
            ("part_fast_gelu", microsoft.FastGelu(columns), written_out_fast_gelu(columns)),
            ("part_biased_fast_gelu", microsoft.FastGelu(columns, b), written_out_fast_gelu(columns + b)),
        )
    ),
)
"""Written out where the opset has no Gelu, as ONNX Runtime and the other rules look for it."""

# -- products --------------------------------------------------------------------------------------------------------

TURNED = {0: (tensor("x", "*b M K"), tensor("y", "*b K N")), 1: (tensor("x", "*b K M"), tensor("y", "*b N K"))}
turns = {"transA": integer("transA"), "transB": integer("transB")}
beta, added = real("beta"), tensor("c")


def transpose_matrices(value: Term) -> App:
    """Return a stack of matrices, each transposed."""
    rank = fn.rank(value)
    return op.Transpose(value, perm=fn.concat(fn.range(rank - 2), rank - 1, rank - 2))


def build_fused_matmul_rule(left: int, right: int) -> Rule:
    """Return the rule for a product with a factor of operands of which each is transposed or not."""
    one, other = TURNED[left][0], TURNED[right][1]
    said = {"transA": left, "transB": right, "transBatchA": 0, "transBatchB": 0}
    kinds = ((one, left, "left"), (other, right, "right"))
    factors = [transpose_matrices(each) if turn else each for each, turn, _ in kinds]
    which = "_".join(("part", *(f"transposed_{side}" for _, turn, side in kinds if turn), "fused_matmul"))
    return define_and_decompose(
        which,
        microsoft.FusedMatMul(one, other, alpha=alpha, **said),
        (factors[0] @ factors[1]) * alpha,
        alpha=1.0,
        **{name: value for name, value in said.items() if not value},
    )


def build_fused_gemm_rule(activation: str, apply: Callable[[Term], App], **more: TermLike) -> Rule:
    said = {"alpha": alpha, "beta": beta, **turns}
    return define_and_decompose(
        f"part_fused_gemm_{snake_case(activation)}",
        microsoft.FusedGemm(y, z, added, activation=activation, **said, **more),
        apply(op.Gemm(y, z, added, **said)),
        fn.is_float(fn.dtype(y)),
        alpha=1.0,
        beta=1.0,
        transA=0,
        transB=0,
    )


slope = real("slope")
PRODUCTS = (
    *(build_fused_matmul_rule(left, right) for left in TURNED for right in TURNED),
    build_fused_gemm_rule("Relu", op.Relu),
    build_fused_gemm_rule("Sigmoid", op.Sigmoid),
    build_fused_gemm_rule("Tanh", op.Tanh),
    build_fused_gemm_rule("LeakyRelu", lambda value: op.LeakyRelu(value, alpha=slope), activation_alpha=slope),
)

# -- convolutions ----------------------------------------------------------------------------------------------------
# Named are all attributes, for that is how ONNX Runtime writes them. Of parameters, which are a list, only usual ones
# are.

image, filters, residual = tensor("x", "A C *s"), tensor("w", "M I *k"), tensor("z", "A M *t")
offsets, pads, strides, dilations = tensor("b", "M"), integers("pads"), integers("strides"), integers("dilations")
window: Mapping[str, TermLike] = {
    "auto_pad": string("auto_pad"),
    "dilations": dilations,
    "group": integer("group"),
    "kernel_shape": integers("kernel_shape"),
    "pads": pads,
    "strides": strides,
}
BEHIND: Mapping[str, tuple[Callable[[Term], App], Mapping[str, TermLike], tuple[Term, ...]]] = {
    "Relu": (op.Relu, {}, ()),
    "Sigmoid": (op.Sigmoid, {}, ()),
    "Tanh": (op.Tanh, {}, ()),
    "Clip": (lambda value: op.Clip(value, 0.0, 6.0), {"activation_params": (0.0, 6.0)}, ()),
    "HardSigmoid": (
        lambda value: op.HardSigmoid(value, alpha=1 / 6, beta=0.5),
        {"activation_params": (0.1666666716337204, 0.5)},  # a sixth in single precision
        (fn.ne(fn.dtype(image), DType.DOUBLE),),
    ),
}
convolved = op.Conv(image, filters, offsets, **window)
axes = fn.rank(image) - 2
padded = fn.sizes("*s") + fn.slice(pads, 0, axes) + fn.slice(pads, axes, 2 * axes)
is_alike = fn.eq(fn.sizes("*t"), (padded - dilations * (fn.sizes("*k") - 1) - 1) // strides + 1)
"""The summand has the shape of what it is added to: the kernel stretches nothing."""
said = {**window, "auto_pad": "NOTSET"}
CONVOLUTIONS = (
    *(
        define_and_decompose(
            f"part_fused_conv_{snake_case(activation)}",
            microsoft.FusedConv(image, filters, offsets, activation=activation, **window, **parameters),
            apply(convolved),
            *when,
            auto_pad="NOTSET",
            group=1,
        )
        for activation, (apply, parameters, when) in BEHIND.items()
    ),
    define_and_decompose(
        "part_fused_residual_conv_relu",
        microsoft.FusedConv(image, filters, offsets, residual, activation="Relu", **said),
        op.Relu(op.Conv(image, filters, offsets, **said) + residual),
        is_alike,
        auto_pad="NOTSET",
        group=1,
    ),
)

RULES: tuple[Rule, ...] = ()
TRADES = (*NORMALIZATIONS, *ACTIVATIONS, *PRODUCTS, *CONVOLUTIONS)
SWEEPS = {"operators of ONNX Runtime taken apart": TRADES}

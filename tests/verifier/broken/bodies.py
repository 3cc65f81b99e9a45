"""Wrong rules on operators that are read out of their schemas."""

from __future__ import annotations

from graphopt.language.rule import Rule, fn, integer, op, tensor
from tests.versions import has_operator

x, y, n = tensor("x"), tensor("y"), integer("n")
image, size = tensor("x", "N C H W"), tensor("n", "")
scores, labels, weights = tensor("s", "N C"), tensor("l", "N"), tensor("w", "C")
single = fn.eq(fn.dtype(x), 1)
of_rows = {"axes": (1,)}
loss = op.NegativeLogLikelihoodLoss

REFUTED = (
    Rule("leaky_relu_asks_for_more", op.Where(x > 0.5, x, 0.25 * x), op.LeakyRelu(x, alpha=0.25), when=single),
    Rule("elu_asks_for_the_other", op.Where(x > 0.0, op.Exp(x) - 1.0, x), op.Elu(x), when=single),
    Rule("elu_without_one", op.Where(x < 0.0, op.Exp(x), x), op.Elu(x), when=single),
    Rule("mean_variance_forgotten", op.MeanVarianceNormalization(image), op.Neg(image)),
    Rule("mean_variance_of_channels", op.MeanVarianceNormalization(image),
         op.MeanVarianceNormalization(image, axes=(0, 1, 2, 3))),
    Rule("mean_variance_loses_the_sign", op.MeanVarianceNormalization(scores, **of_rows),
         op.MeanVarianceNormalization(op.Abs(scores), **of_rows)),
    Rule("hann_is_hamming", op.HannWindow(size), op.HammingWindow(size)),
    Rule("hamming_is_blackman", op.HammingWindow(size), op.BlackmanWindow(size)),
    Rule("hann_is_symmetric", op.HannWindow(size), op.HannWindow(size, periodic=0)),
    Rule("loss_without_its_sign", loss(scores, labels), loss(-scores, labels)),
    Rule("mean_is_sum_of_losses", loss(scores, labels), loss(scores, labels, reduction="sum")),
    Rule("loss_forgets_weights", loss(scores, labels, weights), loss(scores, labels)),
    Rule("entropy_is_loss", op.SoftmaxCrossEntropyLoss(scores, labels), loss(scores, labels)),
)  # fmt: skip

UNPROVED = (
    *((
        Rule("swiglu_of_the_other", op.SwiGLU(scores, tensor("y", "N C")), op.SwiGLU(tensor("y", "N C"), scores)),
        Rule("swiglu_broadcasts", x * op.Sigmoid(x) * y, op.SwiGLU(x, y)),
        Rule("swiglu_with_another_alpha", op.SwiGLU(x, y), op.SwiGLU(x, y, alpha=2.0)),
    ) if has_operator("SwiGLU") else ()),
    Rule("a_label_is_ignored", loss(scores, labels, ignore_index=0), loss(scores, labels)),
    Rule("the_last_label_is_ignored", loss(scores, labels, ignore_index=fn.size("C") - 1), loss(scores, labels)),
    Rule("labels_in_any_range", op.Neg(op.ReduceMean(op.GatherElements(scores, op.Unsqueeze(labels, (1,)), axis=1))),
         op.Identity(loss(scores, labels)), when=fn.eq(fn.dtype(scores), 1)),
    Rule("mean_variance_of_rounded", op.MeanVarianceNormalization(3.0 * image), op.MeanVarianceNormalization(image)),
)  # fmt: skip

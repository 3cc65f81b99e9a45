"""Convolutions over volumes and films as convolutions over images.

Over three axes ONNX Runtime copies each window and multiplies matrices, a group at a time; over two it convolves in
blocks of channels. A convolution over three axes is a sum of convolutions over two, one for each frame of its kernel.
"""

from __future__ import annotations

from collections.abc import Mapping

from graphopt.rule import App, Rule, Term, TermLike, binary, const, fn, integer, integers, op, pointwise, tensor
from graphopt.rules.convolution import geometry

# Axes: N batch, C input channels, M output channels, I = C / group, D frames, each an image of H by W.

volume, film = tensor("x", "1 C D H W"), tensor("x", "N C D H W")
strides, pads, dilations, group = integers("strides"), integers("pads"), integers("dilations"), integer("group")
step, spread = fn.item(strides, 0), fn.item(dilations, 0)
first, final = fn.item(pads, 0), fn.item(pads, 3)
of_frames: Mapping[str, TermLike] = {
    "strides": fn.slice(strides, 1, 3),
    "dilations": fn.slice(dilations, 1, 3),
    "pads": fn.concat(fn.slice(pads, 1, 3), fn.slice(pads, 4, 6)),
    "group": group,
}


def as_frames(value: Term) -> App:
    """Return the frames of a volume as a batch of images."""
    return op.Transpose(op.Squeeze(value, (0,)), perm=(1, 0, 2, 3))


def as_volume(images: Term) -> App:
    """Return the volume of which these are the frames."""
    return op.Unsqueeze(op.Transpose(images, perm=(1, 0, 2, 3)), (0,))


def convolve_frames(depth: int) -> Rule:
    """Return the rule for kernels of `depth` frames."""
    taps, bias = const("w", f"M I {depth} K L"), const("b", "M", default=0)
    seen = fn.size("D") + first + final - spread * (depth - 1)

    def tap(index: int) -> App:
        """Return what one frame of the kernel makes of the frames that it sees."""
        behind = depth - 1 - index
        shifted = op.Pad(
            as_frames(volume), fn.concat(first - spread * index, 0, 0, 0, final - spread * behind, 0, 0, 0)
        )
        # The kernel's frame is the sum of all but for zeros: so the prover sees which of its terms are meant.
        own = op.Pad(op.Slice(taps, (index,), (index + 1,), (2,)), (index, behind), None, (2,))
        return op.Conv(
            op.Slice(shifted, (0,), fn.concat(seen), (0,), fn.concat(step)),
            op.ReduceSum(own, (2,), keepdims=0),
            *(() if index else (bias,)),
            **of_frames,
        )

    total = tap(0)
    for index in range(1, depth):
        total = total + tap(index)
    return Rule(
        f"replace_conv3d_of_{depth}_frames_with_conv2d",
        op.Conv(volume, taps, bias, group=group, **geometry),
        as_volume(total),
        why="A convolution over three axes is a sum of such over two, one for each frame that it sees.",
    )


# -- what lies between convolutions --------------------------------------------------------------------------------
# All else is computed of the frames as well, and the volume made of them as late as possible.

f, g = pointwise("f"), binary("g")
images, others = tensor("x", "D C H W"), tensor("y", "D C H W")
each = tensor("y", "1 C 1 1 1")
axes = integers("axes")

BETWEEN = (
    Rule(
        "push_pointwise_above_frames_as_volume",
        f(as_volume(images)),
        as_volume(f(images)),
        why="Each element is treated alike, so frames are made a volume later.",
    ),
    Rule(
        "push_binary_above_frames_as_volume",
        g(as_volume(images), as_volume(others)),
        as_volume(g(images, others)),
        why="Each element is treated alike, so frames are made a volume later.",
    ),
    Rule(
        "push_binary_with_channels_above_frames_as_volume",
        g(as_volume(images), each),
        as_volume(g(images, op.Squeeze(each, (2,)))),
        why="Frames are treated alike, so they are made a volume later.",
    ),
    Rule(
        "push_concat_above_frames_as_volume",
        op.Concat(as_volume(tensor("x", "D C H W")), as_volume(tensor("y", "D E H W")), axis=1),
        as_volume(op.Concat(tensor("x", "D C H W"), tensor("y", "D E H W"), axis=1)),
        why="Channels are joined in each frame, and the frames are made a volume later.",
    ),
    Rule(
        "push_reduce_mean_above_frames_as_volume",
        (as_volume(images), op.ReduceMean(as_volume(images), axes, keepdims=1)),
        (as_volume(images), op.Unsqueeze(op.ReduceMean(images, (0, 2, 3), keepdims=1), (2,))),
        when=fn.eq(fn.sorted(fn.normalize_indices(axes, 5)), (2, 3, 4)),
        why="The mean over a volume is the mean over all of its frames.",
    ),
)

VOLUMES = (*map(convolve_frames, (1, 2, 3)), *BETWEEN)
RULES: tuple[Rule, ...] = ()
TRADES = VOLUMES
SWEEPS = {"volumes as images": VOLUMES}

"""Operators that change nothing, or only the element type: Identity, Dropout, Cast."""

from collections.abc import Callable, Mapping

from graphopt.base.dtype import DType
from graphopt.rule import App, Rule, Term, attributes, const, fn, integer, integers, op, pointwise, tensor
from graphopt.rules.names import snake_case

x, y, f = tensor("x"), tensor("y"), pointwise("f")
to, through = integer("to"), integer("through")
rest, inner = attributes("rest"), attributes("inner")

# -- nothing happens -----------------------------------------------------------------------------------------------

ratio, no_ratio, training = tensor("ratio"), const("ratio"), const("training", "")

IDENTITIES = (
    Rule("eliminate_identity", op.Identity(x), x, why="Identity copies its input."),
    Rule("eliminate_nop_dropout", op.Dropout(x, rest), x, why="Outside of training Dropout is the identity."),
    Rule(
        "eliminate_nop_dropout_with_ratio",
        op.Dropout(x, ratio, rest),
        x,
        why="Outside of training Dropout is the identity, whatever its ratio.",
    ),
    *(
        Rule(
            f"eliminate_nop_dropout_in_inference{name}",
            op.Dropout(x, given, training, rest),
            x,
            when=fn.is_zero(training),
            why="Dropout whose training mode is constantly off is the identity.",
        )
        for name, given in (("", ratio), ("_without_ratio", None))
    ),
    Rule(
        "eliminate_nop_dropout_of_nothing",
        op.Dropout(x, no_ratio, training, rest),
        x,
        when=fn.is_zero(no_ratio),
        why="Dropout that drops nothing is the identity, in training too.",
    ),
)

# -- element types -------------------------------------------------------------------------------------------------

# Casting to `through` loses nothing, so the second cast sees the same number. Texts are left alone ("1" and "1.0" are
# one number), and whole numbers that pass through a float to a type they may not fit, where results are undefined.
LOSSLESS = (
    fn.can_represent(through, fn.dtype(x)),
    fn.ne(to, int(DType.STRING)),
    fn.any_of(
        fn.not_(fn.is_float(through)),
        fn.not_(fn.is_integer(to)),
        fn.is_float(fn.dtype(x)),
        fn.can_represent(to, fn.dtype(x)),
    ),
)
shape, axes = integers("shape"), integers("axes")
LAYOUTS: Mapping[str, Callable[[Term], App]] = {
    "Flatten": lambda value: op.Flatten(value, rest),
    "Reshape": lambda value: op.Reshape(value, shape, rest),
    "Squeeze": lambda value: op.Squeeze(value, axes),
    "Transpose": lambda value: op.Transpose(value, rest),
    "Unsqueeze": lambda value: op.Unsqueeze(value, axes),
}

CASTS = (
    Rule(
        "eliminate_nop_cast",
        op.Cast(x, rest, to=to),
        x,
        when=fn.eq(fn.dtype(x), to),
        why="A cast to the type that the value has already is the identity.",
    ),
    Rule(
        "fuse_consecutive_casts",
        op.Cast(op.Cast(x, inner, to=through), rest, to=to),
        op.Cast(x, rest, to=to),
        when=LOSSLESS,
        why="A cast to a type that holds every value of the first one changes no number.",
    ),
    *(
        Rule(
            f"fuse_casts_around_{snake_case(name)}",
            op.Cast(layout(op.Cast(x, inner, to=through)), to=to),
            layout(op.Cast(x, to=to)),
            when=(*LOSSLESS, *((fn.lt(0, fn.length(axes)),) if name == "Squeeze" else ())),
            why=f"{name} only moves elements, so the casts before and after it meet.",
        )
        for name, layout in LAYOUTS.items()
    ),
    Rule(
        "replace_cast_like",
        op.CastLike(x, y, rest),
        op.Cast(x, rest, to=fn.dtype(y)),
        why="The type to cast to is known when the model is compiled.",
    ),
    *(
        Rule(
            f"eliminate_pointwise_before_{name.lower()}",
            getattr(op, name)(f(x), rest),
            getattr(op, name)(x, rest),
            why="What is done to each element changes no shape.",
        )
        for name in ("Shape", "Size")
    ),
)

RULES = (*IDENTITIES, *CASTS)

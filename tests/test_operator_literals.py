"""What is known of an operator is known by its entry: elsewhere no text is the name of one."""

import ast
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import onnx
import onnxruntime.capi.onnxruntime_pybind11_state as ort
import pytest

ROOT = Path(__file__).parent.parent

HOMES = ("graphopt/operators/", "rules/")
SPELLINGS = frozenset(
    {"graphopt/io/version_tables.py", "graphopt/io/version_paths.py", "graphopt/io/node_expansions.py"}
)
"""How operators are written in each opset."""

OF_VALUES = frozenset(
    {"Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Erf", "Exp", "Floor", "Inverse"}
    | {"Log", "Mod", "Pow", "Round", "Sign", "Sin", "Sinh", "Sqrt", "Tan", "Tanh"}
    | {"Add", "Cast", "BitwiseNot", "Max", "Min", "Neg", "Relu", "Sub"}
)
"""Functions of `expr.expressions`, named as operators are: what is known of these is no fact of operators."""
ALGEBRA = frozenset(
    {"graphopt/expr/lemmas.py", "graphopt/expr/partial_calls.py", "graphopt/expr/expressions.py"}
    | {"graphopt/discover/batch_arithmetic.py", "graphopt/discover/evaluation.py"}
    | {f"verifier/{name}.py" for name in ("bijections", "definedness", "extended_reals", "case_analysis")}
    | {f"verifier/{name}.py" for name in ("equality", "prove", "symbolic_logic", "value_signs")}
)
"""The files that compute with functions of values."""

STRUCTURAL: Mapping[str, tuple[str, str]] = {
    "graphopt/autodiff/decomposition.py": ("the images that it interpolates are written out", "GridSample"),
    "graphopt/autodiff/masked_rows.py": ("how attention with a mask is written", "Cast IsNaN Softmax Where"),
    "graphopt/autodiff/recurrent.py": (
        "the steps of recurrent operators, and the functions that they may apply",
        "GRU LSTM RNN Relu Sigmoid Tanh",
    ),
    "graphopt/autodiff/scan.py": ("runs a body the other way", "Scan"),
    "graphopt/cli/demo.py": (
        "reads the shells of models that the onnx package ships",
        "BatchNormalization ConstantOfShape",
    ),
    "graphopt/discover/generalization.py": ("letters of axes are given as in x @ w", "MatMul"),
    "graphopt/discover/worlds.py": (
        "writes operators that need more than tensors",
        "Concat Conv MatMul Softmax Split Transpose",
    ),
    "graphopt/io/function_import.py": ("a number in a function is a Constant, perhaps cast", "CastLike"),
    "graphopt/ir/graph.py": ("what the format itself needs", "Constant Identity"),
    "graphopt/ir/schemas.py": ("the schema of any reduction is that of the widest", "ReduceMax"),
    "graphopt/language/function_terms.py": ("a number in a function is a Constant, perhaps cast", "CastLike"),
    "graphopt/language/type_inference.py": (
        "element types that schemas leave open; the language stands below the table",
        "Cast DequantizeLinear QuantizeLinear",
    ),
    "graphopt/language/terms.py": (
        "Python's operators on terms",
        "Add Div Greater GreaterOrEqual Less LessOrEqual MatMul Mul Neg Pow Sub",
    ),
    "graphopt/language/rule_source.py": ("Python's operators on terms", "Add Div MatMul Mul Sub"),
    "graphopt/language/rule_checks.py": ("where a rule may write packs and lists of places", "Concat Gather"),
    "graphopt/partition/sharding.py": (
        "the right sides of rules that split operators: parts are cut, joined and added up",
        "Concat Split Sum",
    ),
    "graphopt/partition/simplification.py": ("takes apart what is split behind a product", "Split"),
    "graphopt/rewrite/build.py": (
        "makes nodes that read sizes, and puts off sums of large constants",
        "Add Cast Concat Range ReduceProd Reshape Shape Squeeze Sub",
    ),
    "graphopt/rewrite/folded_constants.py": (
        "refuses products that take long, and sums that cancel",
        "Add MatMul Sub",
    ),
    "graphopt/rewrite/constant_operands.py": ("where the axes of a number show", "Gather Where"),
    "graphopt/rewrite/folding.py": ("passes over these operators", "Cast CastLike Expand Reshape Slice"),
    "graphopt/rewrite/affine_indices.py": ("a pass over these operators", "And Concat GreaterOrEqual LessOrEqual"),
    "graphopt/rewrite/matching.py": ("a quotient matches a product with the reciprocal", "Div Mul"),
    "graphopt/rewrite/passes.py": ("a pass over branches", "If"),
    "graphopt/runtime/kernel_probe.py": ("ONNX Runtime inserts it where there is no kernel", "Cast"),
    "graphopt/runtime/machine.py": ("by these the machine is measured", "Add MatMul Neg"),
    "graphopt/runtime/model_sketch.py": ("bodies that are run again", "Loop Scan"),
    "graphopt/search/buffer_plan.py": ("kernels that write over what they read", "LogSoftmax Softmax"),
    "graphopt/search/sweep.py": ("what sinks below operators on elements may be read by others", "Transpose"),
    "verifier/definedness.py": ("a choice covers what has no value", "Where"),
    "verifier/equality.py": ("the lemma on the element at the place of the greatest", "ArgMax ArgMin Gather"),
    "verifier/extended_reals.py": ("a row of weights is NaN as a whole", "Softmax"),
    "verifier/instance_models.py": ("onnx does not survive one of an axis of negative size", "Slice"),
    "verifier/rule_node.py": ("its sums are those of any type", "Range"),
    "verifier/prove.py": ("holes for variances; lookups in rows", "BatchNormalization Gather"),
    "verifier/rounding.py": (
        "the softmax that is written out, numbers computed exactly, quotients, exponents, and what an operand decides",
        """Abs Add ArgMax Attention Cast Clip Div Exp IsNaN Log LogSoftmax MatMul Mul Neg Pow Range Reciprocal ReduceMax
        ReduceSum Resize Softmax Sub Transpose Where""",
    ),
    "verifier/rule_conditions.py": ("lists of axes that a rule writes", "Transpose Unsqueeze"),
}
"""By file: why it speaks of operators, all of which it handles by an algorithm of their own, and of which."""


@cache
def names() -> frozenset[str]:
    """The operators of ONNX and of ONNX Runtime, and beginnings of names that stand for many."""
    shipped = {schema.name for schema in onnx.defs.get_all_schemas_with_history() if not schema.domain}
    kernels = {schema.name for schema in ort.get_all_operator_schema() if schema.domain == "com.microsoft"}
    return frozenset(shipped | kernels | {"Global", "Reduce"})


def literals(source: str) -> frozenset[str]:
    """The texts of a source that are names of operators."""
    texts = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    return frozenset(text for text in texts if isinstance(text, str) and text in names())


def sources() -> list[str]:
    paths = [*(ROOT / "graphopt").rglob("*.py"), *(ROOT / "verifier").glob("*.py")]
    here = (
        path.relative_to(ROOT).as_posix() for path in paths if path.resolve() == ROOT.resolve() / path.relative_to(ROOT)
    )
    return sorted(path for path in here if not path.startswith(HOMES) and path not in SPELLINGS)


@pytest.mark.parametrize("path", sources())
def test_no_operator_is_named_outside_of_the_table(path: str) -> None:
    _, allowed = STRUCTURAL.get(path, ("", ""))
    found = literals((ROOT / path).read_text(encoding="utf-8")) - (OF_VALUES if path in ALGEBRA else frozenset())
    assert found == {*allowed.split()}, "what is known of an operator belongs into its entry in graphopt/operators"


def test_the_list_of_those_that_may_is_of_files_that_are_there() -> None:
    assert {*STRUCTURAL, *ALGEBRA} <= {*sources()}
    assert all((ROOT / path).exists() for path in SPELLINGS)


def test_a_name_is_found_wherever_it_stands() -> None:
    assert literals('COST = {"Conv": 2}\n\ndef f(op):\n    return op in ("Gelu", "BiasGelu") or op == "conv"') == {
        "Conv", "Gelu", "BiasGelu",
    }  # fmt: skip

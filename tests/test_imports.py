"""Dependencies point one way, and `import graphopt` is cheap."""

import ast
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# The compiler, lowest first: a module imports only from the lines above its own.
LAYERS = (
    "errors",
    "files limits types",
    "cache scalar tensor weightfiles",
    "graph",
    "ops",
    "edit protos shapes",
    "contents evaluate opsets payload",
    "infer infinities legal",
    "fold grids regions",
    "passes",
    "term",
    "rule schemas",
    "coverage scope",
    "example proof",
    "onnx_io match",
    "rewrite samples sites",
    "fixpoint inputs",
    "oracle",
    "measure sessions tolerance",
    "compare bench kernels",
    "excerpts",
    "profile",
    "cost",
    "loading",
    "machine",
    "analytic",
    "measured race",
    "search timing discover",
    "recall sweep",
    "choose",
    "tune",
    "report library demo gate",
    "check",
    "pipeline proving",
    "catalogue",
    "arguments options terminal",
    "cli __init__",
    "__main__",
)
# The two packages that the compiler composes, and all of it that they see.
RULES = "errors types term rule"
VERIFIER = "errors types scalar term ops rule schemas coverage scope proof example"
# The only ones that may import those two packages, inside the functions that need them.
COMPOSERS = "library gate catalogue"
# A third-party module that not everybody may know.
Z3 = "verifier"


def allowed_imports() -> dict[str, frozenset[str]]:
    """What each module of graphopt may import; `rules` and `verifier` stand for all that is in them."""
    allowed = {"rules": frozenset(RULES.split()), "verifier": frozenset(VERIFIER.split())}
    below: frozenset[str] = frozenset()
    for layer in LAYERS:
        for module in layer.split():
            allowed[module] = below | {"rules", "verifier"} if module in COMPOSERS.split() else below
        below |= set(layer.split())
    return allowed


ALLOWED = allowed_imports()


def module_name(path: Path) -> str:
    """`rules/conv.py` is `graphopt.rules.conv`; everything else is called as it lies."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("graphopt", *parts) if parts[0] in ("rules", "verifier") else parts)


def owner(module: str) -> str:
    """The name in the tables of a module of graphopt: `graphopt.rules.conv` -> `rules`, `graphopt` -> `__init__`."""
    return [*module.split("."), "__init__"][1]


def imported(source: str, module: str) -> Iterator[tuple[ast.stmt, str]]:
    """Each import of a source text, in full: `from package import name` is `package.name`."""
    package = module.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = [*base, node.module] if node.module else base
            yield from ((node, ".".join([*base, alias.name])) for alias in node.names)


def in_function(source: str) -> frozenset[int]:
    """The lines of the imports that run only when a function does."""
    functions = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    return frozenset(n.lineno for f in functions for n in ast.walk(f) if isinstance(n, ast.Import | ast.ImportFrom))


def refused(source: str, module: str) -> list[str]:
    """The imports of a source text that point the wrong way, one sentence each."""
    lazy, complaints = in_function(source), []
    for node, target in imported(source, module):
        complaint = complain(module, target, lazy=node.lineno in lazy)
        if complaint:
            complaints.append(f"{module}, line {node.lineno}: {complaint}")
    return complaints


def complain(module: str, target: str, *, lazy: bool) -> str | None:
    top = target.partition(".")[0]
    if top in ("rules", "verifier"):
        return f"imports {target}, which is called graphopt.{target} once installed"
    if not module.startswith("graphopt"):
        return None  # tests and benchmarks use all there is
    here = owner(module)
    if top == "z3":
        return None if here in Z3.split() else "imports z3, which only the verifier knows"
    if top in ("tests", "benchmarks"):
        return f"imports {target}, which is not installed"
    if top != "graphopt":
        return None
    if here not in ALLOWED:
        return "is in no line of LAYERS"
    there = owner(target)
    there = there if there in ALLOWED else "__init__"  # `from graphopt import Rule`
    if there == here and here in ("rules", "verifier"):
        return None
    if there not in ALLOWED[here]:
        return f"imports {target}; it may import only {', '.join(sorted(ALLOWED[here])) or 'nothing'}"
    if there in ("rules", "verifier") and not lazy:
        return f"imports {target} when it is loaded, not in the function that needs it"
    return None


def sources() -> list[Path]:
    folders = ("graphopt", "rules", "verifier", "tests", "benchmarks")
    return sorted(
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if path.resolve() == ROOT.resolve() / path.relative_to(ROOT)
    )


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    assert refused(path.read_text(encoding="utf-8"), module_name(path)) == []


@pytest.mark.parametrize(
    ("module", "source", "complaint"),
    [
        ("graphopt.graph", "from graphopt.rules import conv", "imports graphopt.rules.conv; it may import only"),
        ("graphopt.graph", "from .rules import conv", "imports graphopt.rules.conv; it may import only"),
        ("graphopt.graph", "def f():\n    import graphopt.verifier", "imports graphopt.verifier; it may import only"),
        ("graphopt.term", "from . import rule", "imports graphopt.rule; it may import only"),
        ("graphopt.term", "from graphopt import Rule", "imports graphopt.Rule; it may import only"),
        ("graphopt.cost", "import z3", "imports z3, which only the verifier knows"),
        ("graphopt.surprise", "from . import term", "is in no line of LAYERS"),
        ("graphopt.library", "from .verifier.prove import prove", "when it is loaded"),
        ("graphopt.rules.conv", "from ..graph import Graph", "imports graphopt.graph.Graph; it may import only"),
        ("graphopt.rules.conv", "from graphopt.verifier import prove", "imports graphopt.verifier.prove; it may"),
        ("graphopt.verifier.prove", "from graphopt import rules", "imports graphopt.rules; it may import only"),
        ("graphopt.verifier.prove", "from .. import search", "imports graphopt.search; it may import only"),
        ("graphopt.verifier.prove", "import rules.conv", "graphopt.rules.conv once installed"),
        ("tests.test_conv", "from verifier import prove", "graphopt.verifier.prove once installed"),
    ],
)
def test_a_wrong_arrow_is_refused(module: str, source: str, complaint: str) -> None:
    assert complaint in "\n".join(refused(source, module))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        (
            "graphopt.rules.conv",
            "from ..term import tensor\nfrom .batch_norm import scale\nfrom graphopt.rule import Rule",
        ),
        ("graphopt.verifier.prove", "import z3\nfrom . import semantics\nfrom ..proof import Proof"),
        ("graphopt.library", "def load():\n    from .verifier.prove import prove"),
        ("graphopt.search", "import networkx\nfrom .graph import Graph"),
        ("tests.test_conv", "import z3\nfrom graphopt.rules import conv"),
    ],
)
def test_a_right_arrow_is_not(module: str, source: str) -> None:
    assert refused(source, module) == []


def seconds(code: str) -> float:
    """The least time in which a fresh interpreter runs the code, of five: what is slower is the machine's doing."""

    def once() -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
        return time.perf_counter() - start

    return min(once() for _ in range(5))


@pytest.mark.slow
def test_importing_graphopt_is_fast() -> None:
    assert seconds("import graphopt") - seconds("pass") < 0.3


def test_importing_graphopt_loads_no_solver_and_no_runtime() -> None:
    code = "import json, sys, graphopt; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True, text=True)
    loaded = json.loads(done.stdout)
    heavy = ("z3", "onnxruntime", "torch", "graphopt.rules", "graphopt.verifier")
    assert [module for module in loaded if module.startswith(heavy)] == []
    assert "graphopt" in loaded

"""Dependencies point one way, and `import graphopt` is cheap."""

import ast
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

from tests import rooms

ROOT = Path(__file__).parent.parent

# The rooms of the compiler and what stands between them, lowest first: each imports only from those before it.
ORDER = (
    *(
        "base",
        "expr",
        "ir",
        "language",
        "operators",
        "io",
        "rule",
        "rewrite",
        "autodiff",
        "runtime",
        "check",
        "search",
        "partition",
        "report",
    ),
    *(
        "neighbours",
        "options",
        "opset_choice",
        "result",
        "provider_choice",
        "pipeline",
        "explanation",
        "result_profile",
        "training",
        "onnxsim",
        "folders",
        "onnx_ir",
        "olive",
        "discover",
        "cli",
        "__init__",
        "__main__",
    ),
)
# The two packages that the compiler composes, and all of it that they see.
COMPOSED = {
    "rules": frozenset({"base", "expr", "language", "rule"}),
    "verifier": frozenset({"base", "expr", "ir", "operators", "language"}),
}
# The only ones that may import those two packages, inside the functions that need them.
COMPOSERS = (
    *("graphopt.language.rule_library", "graphopt.rewrite.gate", "graphopt.cli.catalogue"),
    *("graphopt.partition.simplification", "graphopt.partition.sharding"),
    *("graphopt.discover.evaluation", "graphopt.discover.generalization", "graphopt.discover.library_lookup"),
)


def module_name(path: Path) -> str:
    """`rules/conv.py` is `graphopt.rules.conv`; everything else is called as it lies."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("graphopt", *parts) if parts[0] in COMPOSED else parts)


def room(module: str) -> str:
    """Where a module of graphopt belongs: `graphopt.rules.conv` -> `rules`, `graphopt` -> `__init__`."""
    return [*module.split("."), "__init__"][1]


@cache
def parsed(source: str) -> ast.Module:
    return ast.parse(source)


def imported(source: str, module: str) -> Iterator[tuple[ast.stmt, str]]:
    """Each import of a source text, in full: `from package import name` is `package.name`."""
    package = module.split(".")[:-1]
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = [*base, node.module] if node.module else base
            yield from ((node, ".".join([*base, alias.name])) for alias in node.names)


def in_function(source: str) -> frozenset[int]:
    """The lines of the imports that run only when a function does."""
    return frozenset(_lazy(parsed(source), inside=False))


def _lazy(node: ast.AST, *, inside: bool) -> Iterator[int]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield from [node.lineno] * inside
    elif not isinstance(node, ast.expr):  # in which no import is
        inside |= isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for child in ast.iter_child_nodes(node):
            yield from _lazy(child, inside=inside)


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
    if top in COMPOSED:
        return f"imports {target}, which is called graphopt.{target} once installed"
    if not module.startswith("graphopt"):
        return None  # tests and benchmarks use all there is
    here = room(module)
    if top == "z3":
        return None if here == "verifier" else "imports z3, which only the verifier knows"
    if top in ("tests", "benchmarks"):
        return f"imports {target}, which is not installed"
    if top != "graphopt":
        return None
    if here not in (*ORDER, *COMPOSED):
        return "is in no room of ORDER"
    return _within(module, here, target, lazy=lazy)


def _within(module: str, here: str, target: str, *, lazy: bool) -> str | None:
    """What is wrong with an import of graphopt by graphopt."""
    there = room(target)
    there = there if there in (*ORDER, *COMPOSED) else "__init__"  # `from graphopt import Rule`
    if there in COMPOSED and module in COMPOSERS:
        return None if lazy else f"imports {target} when it is loaded, not in the function that needs it"
    seen = COMPOSED[here] if here in COMPOSED else frozenset(ORDER[: ORDER.index(here)])
    if there in seen or there == here:
        return None
    return f"imports {target}; it may import only {', '.join(sorted(seen)) or 'nothing'}"


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


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    names = {module_name(path) for path in sources()}
    graph = nx.DiGraph()
    for path in sources():
        source, module = path.read_text(encoding="utf-8"), module_name(path)
        lazy = in_function(source)
        for node, target in imported(source, module):
            if node.lineno not in lazy:
                graph.add_edge(module, target if target in names else target.rpartition(".")[0])
    assert [sorted(circle) for circle in nx.strongly_connected_components(graph) if len(circle) > 1] == []


def test_the_picture_of_the_rooms_is_that_of_the_imports() -> None:
    assert rooms.PAGE.read_text(encoding="utf-8") == rooms.page(), "`python -m tests.rooms --write` makes it anew"


def test_each_room_says_what_it_knows_and_where_to_begin() -> None:
    for name in ORDER:
        door = ROOT / "graphopt" / name / "__init__.py"
        if door.exists():
            text = ast.get_docstring(ast.parse(door.read_text(encoding="utf-8"))) or ""
            assert "Begin with" in text, name


@pytest.mark.parametrize(
    ("module", "source", "complaint"),
    [
        ("graphopt.ir.graph", "from graphopt.rules import conv", "imports graphopt.rules.conv; it may import only"),
        ("graphopt.ir.graph", "from ..rules import conv", "imports graphopt.rules.conv; it may import only"),
        ("graphopt.ir.graph", "def f():\n    import graphopt.verifier", "imports graphopt.verifier; it may import"),
        ("graphopt.ir.schemas", "from ..language import rule", "imports graphopt.language.rule; it may import only"),
        ("graphopt.language.terms", "from graphopt import Rule", "imports graphopt.Rule; it may import only"),
        ("graphopt.search.cost", "import z3", "imports z3, which only the verifier knows"),
        ("graphopt.surprise.term", "from . import term", "is in no room of ORDER"),
        ("graphopt.language.rule_library", "from graphopt.verifier.prove import prove", "when it is loaded"),
        ("graphopt.rules.conv", "from ..ir.graph import Graph", "imports graphopt.ir.graph.Graph; it may import only"),
        ("graphopt.rules.conv", "from graphopt.verifier import prove", "imports graphopt.verifier.prove; it may"),
        ("graphopt.verifier.prove", "from graphopt import rules", "imports graphopt.rules; it may import only"),
        (
            "graphopt.verifier.prove",
            "from ..search import model_tuner",
            "imports graphopt.search.model_tuner; it may import only",
        ),
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
            "from ..rule import tensor\nfrom .batch_norm import scale\nfrom graphopt.rule import Rule",
        ),
        ("graphopt.verifier.prove", "import z3\nfrom . import semantics\nfrom ..language.proof import Proof"),
        ("graphopt.language.rule_library", "def load():\n    from ..verifier.prove import prove"),
        (
            "graphopt.search.explore",
            "import networkx\nfrom ..ir.graph import Graph\nfrom .analytic_cost import AnalyticCost",
        ),
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
    heavy = ("z3", "onnxruntime", "onnx_ir", "torch", "olive", "graphopt.rules", "graphopt.verifier")
    assert [module for module in loaded if module.startswith(heavy)] == []
    assert "graphopt" in loaded


# -- how much a module has to know -------------------------------------------------------------------------------------

MOST_IMPORTS = 15
WIDE = {
    "verifier/prove.py": 32,
    "graphopt/pipeline.py": 31,
    "graphopt/search/model_tuner.py": 28,
    "rules/__init__.py": 35,
    "graphopt/partition/planning.py": 19,
    "graphopt/partition/pipeline_folder.py": 17,
    "graphopt/__init__.py": 17,
    "graphopt/partition/partitioning.py": 16,
    "verifier/symbolic_instance.py": 21,
    "verifier/instance_sampling.py": 20,
    "graphopt/operators/semantics.py": 19,
    "graphopt/rewrite/gate.py": 19,
    "graphopt/search/race_series.py": 17,
    "graphopt/discover/gain_estimation.py": 16,
    "graphopt/discover/library_lookup.py": 17,
    "graphopt/operators/symbolic_shapes.py": 17,
    "graphopt/rewrite/affine_indices.py": 17,
    "graphopt/rewrite/build.py": 17,
}
"""Modules that import more: numbers become only smaller, and a module that imports few enough leaves the list."""


def imported_modules(path: Path) -> set[str]:
    """Return the modules of graphopt that a file imports, or imports names of."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.startswith("graphopt")}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "graphopt":
            for alias in node.names:
                inner = rooms.ROOT / f"{node.module}.{alias.name}".replace(".", "/")
                is_module = inner.is_dir() or inner.with_suffix(".py").exists()
                found.add(f"{node.module}.{alias.name}" if is_module else str(node.module))
    return found


def test_no_module_imports_more_than_it_did() -> None:
    counts = {
        path.relative_to(rooms.ROOT).as_posix(): len(imported_modules(path))
        for paths in rooms.rooms().values()
        for path in paths
    }
    assert {path: count for path, count in counts.items() if count > MOST_IMPORTS} == WIDE

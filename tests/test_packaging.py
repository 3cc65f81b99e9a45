"""What is installed, and that the checks are the ones the documentation names."""

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import pytest

from graphopt.rewrite import gate
from tests import lowest_versions, versions

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LINKS = ("rules", "verifier")


def missing_backend() -> str | None:
    """Why nothing can be built here without a network."""
    if find_spec("build") is None:
        return "the `build` package is missing; the [test] extra has it"
    try:
        found = int(version("setuptools").split(".")[0])
    except PackageNotFoundError:
        return "setuptools is missing; the [test] extra has it"
    return (
        None if found >= 77 else f"setuptools {found} is older than the build needs; the [test] extra has a newer one"
    )


needs_backend = pytest.mark.skipif(missing_backend() is not None, reason=str(missing_backend()))


def checkout(target: Path, *, links: bool) -> Path:
    """A copy of what the package is made from; without links, as git writes it where the file system has none."""
    skipped = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for folder in ("graphopt", *LINKS):
        shutil.copytree(ROOT / folder, target / folder, symlinks=True, ignore=skipped)
    for file in ("pyproject.toml", "LICENSE", "README.md"):
        shutil.copy(ROOT / file, target / file)
    for name in () if links else LINKS:
        (target / "graphopt" / name).unlink()
        (target / "graphopt" / name).write_text(f"../{name}", encoding="utf-8")
    return target


def build(kind: str, tree: Path, target: Path) -> Path:
    command = [sys.executable, "-m", "build", "--no-isolation", f"--{kind}", "--outdir", str(target), str(tree)]
    done = subprocess.run(command, check=False, cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = target.iterdir()
    return built


def expected_files() -> set[str]:
    """The package as it lies in the source tree, under the names it is installed by."""
    kinds = (".py", ".typed", ".md", ".json", ".jsonl", ".js", ".css", ".txt")
    own = {file.relative_to(ROOT) for file in (ROOT / "graphopt").rglob("*")}
    linked = {"graphopt" / file.relative_to(ROOT) for name in LINKS for file in (ROOT / name).iterdir()}
    return {file.as_posix() for file in own | linked if file.suffix in kinds}


def wheel_files(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


@needs_backend
@pytest.mark.slow
@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
def test_a_wheel_installs_only_graphopt(tmp_path: Path, links: bool) -> None:
    wheel = build("wheel", checkout(tmp_path / "tree", links=links), tmp_path / "dist")
    files = wheel_files(wheel)
    assert {name.split("/")[0] for name in files} == {"graphopt"}
    assert files == expected_files()
    assert {"graphopt/py.typed", "graphopt/rules/__init__.py", "graphopt/verifier/__init__.py"} <= files


@needs_backend
@pytest.mark.slow
def test_the_sdist_builds_the_same_wheel(tmp_path: Path) -> None:
    sdist = build("sdist", checkout(tmp_path / "tree", links=True), tmp_path / "dist")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (tree,) = (tmp_path / "unpacked").iterdir()
    assert wheel_files(build("wheel", tree, tmp_path / "again")) == expected_files()


@needs_backend
@pytest.mark.slow
def test_an_installed_wheel_imports_without_the_source_tree(tmp_path: Path) -> None:
    wheel = build("wheel", checkout(tmp_path / "tree", links=True), tmp_path / "dist")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r})\n"
        "import graphopt.rules, graphopt.verifier\n"
        "from graphopt.rewrite import gate\n"
        "found = graphopt.rules.__file__, graphopt.verifier.__file__, gate.ledger_path(), gate.source_digest()\n"
        "print(*found, sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    *files, digest = done.stdout.splitlines()
    assert [Path(line).parent.parent for line in files] == [tmp_path / "site" / "graphopt"] * 3
    assert digest == gate.source_digest(), "the ledger that is installed with the rules is believed"


def test_the_links_point_at_the_two_folders() -> None:
    for name in LINKS:
        link = ROOT / "graphopt" / name
        assert link.resolve() == (ROOT / name).resolve() or link.read_text(encoding="utf-8") == f"../{name}"


def test_every_folder_of_the_package_is_listed() -> None:
    found = {f.parent for name in ("graphopt", *LINKS) for f in (ROOT / name).rglob("*.py")}
    folders = PROJECT["tool"]["setuptools"]["package-dir"]
    packages = PROJECT["tool"]["setuptools"]["packages"]
    listed = {ROOT / folders.get(package, package.replace(".", "/")) for package in packages}
    assert {folder.resolve() for folder in found} == {folder.resolve() for folder in listed}


def test_ci_runs_what_the_readme_says() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    (command,) = (line for line in readme if line.endswith("&& .venv/bin/pytest"))
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert f"\ntests='{command}'\n" in script
    assert '\nstage "tests" bash -c "$tests"\n' in script


def test_the_lowest_versions_are_the_bounds_of_the_project() -> None:
    pins = lowest_versions.constraints(PROJECT["project"])
    assert [pin for pin in pins if pin.startswith("onnx")] == [
        bound.replace(">=", "==")
        for bound in (
            next(bound for bound in PROJECT["project"]["dependencies"] if bound.startswith("onnx>")),
            *PROJECT["project"]["optional-dependencies"]["cpu"],
        )
    ]
    assert not any(pin.startswith("graphopt") for pin in pins)
    listed = {pin.split("==")[0] for pin in pins}
    assert {"numpy", "networkx", "distributed", "pytest", "setuptools"} <= listed
    with pytest.raises(ValueError, match="is not a name and a lower bound"):
        lowest_versions.pin("numpy~=2.1")
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert "lowest='python -m tests.lowest_versions >" in script
    assert '\nstage "lowest versions" bash -c "$lowest"' in script


def test_a_test_that_needs_a_newer_package_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(versions.INSTALLED, "onnx", "1.22.0")
    assert versions.is_older("onnx", "1.23") and versions.is_older("onnx", "1.22.1")
    assert not versions.is_older("onnx", "1.22") and not versions.is_older("onnx", "1.9")
    mark = versions.needs("onnx", "1.23", "it lacks something").mark
    assert (mark.args, mark.kwargs) == ((True,), {"reason": "onnx before 1.23: it lacks something"})


def test_no_test_needs_a_newer_package_than_the_lowest_in_vain() -> None:
    """A mark that the bounds made superfluous goes."""
    bounds = dict(pin.split("==") for pin in lowest_versions.constraints(PROJECT["project"]))
    named = re.compile(r'(?:needs|is_older)\("(onnx|onnxruntime)", "([\d.]+)"')
    paths = [path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    asked = {found for path in paths for found in named.findall(path.read_text("utf-8"))}
    assert asked
    numbers = {pair: tuple(map(int, pair[1].split("."))) for pair in asked}
    assert [pair for pair in asked if numbers[pair] <= tuple(map(int, bounds[pair[0]].split(".")))] == []


def test_contributing_names_the_steps_that_tests_ask_for() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.compile(r"graphopt verify --all --write --cached|python -m (?:tests|benchmarks)[.\w]*(?: report)?")
    asked = {step for path in (ROOT / "tests").rglob("test_*.py") for step in named.findall(path.read_text("utf-8"))}
    assert {"python -m tests.verifier.mutants", "python -m benchmarks report"} <= asked
    assert [step for step in sorted(asked) if step not in page] == []

"""The site in docs/: every page is reached, every link leads somewhere, and the flags that pages name exist."""

import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest
import typer

from graphopt.cli.main import app
from graphopt.language.rule_library import load_rules
from graphopt.rewrite.passes import PASSES

ROOT = Path(__file__).parent.parent
PAGES = {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))}
OTHERS = (
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "graphopt/DESIGN.md",
    "rules/README.md",
    "verifier/README.md",
)
LINKING = PAGES | {ROOT / name: (ROOT / name).read_text(encoding="utf-8") for name in OTHERS}
RUN_LANGUAGES = {"console", "python", "sh"}
SHOWN_LANGUAGES = {"text", "json", "toml", "yaml", "{eval-rst}", "{toctree}"}
COMING_FROM = ROOT / "docs" / "coming-from.md"


def page_name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ +(.*)$", without_code(text), flags=re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain}


def links(text: str) -> list[tuple[str, str]]:
    """Return the links of a page that lead to this tree: path, empty for the page itself, and anchor."""
    found = re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", without_code(text))
    return [(target, anchor) for target, anchor in found if not target.startswith("http")]


@pytest.mark.parametrize("path", LINKING, ids=page_name)
def test_links_lead_to_a_file_and_a_heading(path: Path) -> None:
    for target, anchor in links(LINKING[path]):
        found = (path.parent / target).resolve() if target else path
        assert found.exists(), target
        if anchor:
            assert anchor in anchors(found.read_text(encoding="utf-8")), f"{target}#{anchor}"


def test_every_page_is_in_the_contents_and_linked_from_the_first_page() -> None:
    first = PAGES[ROOT / "docs" / "index.md"]
    trees = re.findall(r"^```\{toctree\}\n(.*?)^```", first, flags=re.MULTILINE | re.DOTALL)
    entries = [line for tree in trees for line in tree.splitlines() if line and not line.startswith(":")]
    contents = {re.sub(r".*<(.*)>", r"\1", entry) for entry in entries}
    assert contents == {target.removesuffix(".md") for target, _ in links(first)}
    assert {path.stem for path in PAGES} - {"index"} <= contents


@pytest.mark.parametrize("path", LINKING, ids=page_name)
def test_a_page_has_one_title(path: Path) -> None:
    assert len(re.findall(r"^# ", without_code(LINKING[path]), flags=re.MULTILINE)) == 1


def test_the_readme_links_to_the_first_page() -> None:
    assert ("docs/index.md", "") in links(LINKING[ROOT / "README.md"])


@pytest.mark.parametrize("path", PAGES, ids=page_name)
def test_what_can_be_run_is_marked_so(path: Path) -> None:
    """Examples run by their language; what is only shown is `text`, or a file that is no code."""
    languages = set(re.findall(r"^ *```+([^\n`]*)\n.*?^ *```+$", PAGES[path], flags=re.MULTILINE | re.DOTALL))
    assert languages <= RUN_LANGUAGES | SHOWN_LANGUAGES


@pytest.mark.parametrize("path", PAGES, ids=page_name)
def test_a_file_of_an_example_is_used_by_a_command(path: Path) -> None:
    """A file is only written where it is shown: what it says is tried by the command that reads it."""
    files = re.findall(r"^(?:.* )?`(\w+\.(?:py|toml))`:\n\n```", PAGES[path], flags=re.MULTILINE)
    commands = "".join(re.findall(r"^```(?:sh|console)\n(.*?)^```", PAGES[path], flags=re.MULTILINE | re.DOTALL))
    assert not [file for file in files if f" {file}" not in commands]


def known_flags() -> dict[str, set[str]]:
    """Return the flags of each command."""
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    return {
        name: {flag for option in command.params for flag in (*option.opts, *option.secondary_opts)}
        for name, command in commands.items()
    }


def table_rows(text: str) -> list[list[str]]:
    rows = [line.strip("|").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [row for row in rows if not row[0].startswith(" ---")]


def test_flags_of_ours_exist() -> None:
    """All that the tables for other tools call ours is a command, a flag of it, or a rule or pass."""
    flags, rules = known_flags(), {rule.name for rule in load_rules()} | {each.name for each in PASSES}
    rows = table_rows(PAGES[COMING_FROM])
    cells = [cell for theirs, ours, *more in rows for cell in (theirs if ours == "the same" else ours, *more)]
    named = [code for cell in cells for code in re.findall(r"`(graphopt [^`]+|--[^`]+)`", cell)]
    assert len(named) > 40
    for code in named:
        words = code.split()
        command = words[1] if words[0] == "graphopt" else "optimize"
        assert command in flags, code
        assert {word for word in words if word.startswith("--")} <= flags[command], code
        chosen = [after for word, after in pairwise(words) if word in ("--skip", "--only")]
        assert set(chosen) <= rules, code


PEERS = {
    "onnxsim": ["onnxsim", "--help"],
    "OnnxSlim": ["onnxslim", "--help"],
    "onnxoptimizer": ["onnxoptimizer", "--help"],
    "ONNX Runtime": [sys.executable, "-m", "onnxruntime.transformers.optimizer", "--help"],
}


@pytest.mark.parametrize("tool", PEERS)
@pytest.mark.skipif(find_spec("onnxsim") is None, reason="the tools are installed for benchmarks only")
def test_flags_of_other_tools_exist(tool: str) -> None:
    program, *arguments = PEERS[tool]
    found = shutil.which(program) or str(Path(sys.executable).parent / program)
    shown = subprocess.run([found, *arguments], capture_output=True, text=True, check=True).stdout
    (part,) = re.findall(rf"^\| {tool} \|.*?(?=^## |\Z)", PAGES[COMING_FROM], flags=re.MULTILINE | re.DOTALL)
    named = [flag for row in table_rows(part) for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", row[0])]
    assert named
    assert not [flag for flag in named if flag not in shown]

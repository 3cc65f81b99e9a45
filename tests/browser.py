"""Pages in a real browser: a headless Chromium opens a file, runs a script in it, and says what it found.

Nothing but the browser is needed: it prints the page as it is once its scripts have run, and its console to stderr.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


@cache
def _browser() -> str | None:
    return next(filter(None, map(shutil.which, NAMES)), None)


needs_browser = pytest.mark.skipif(_browser() is None, reason="no Chromium is installed")


def run_in_page(page: str, script: str, folder: Path) -> Any:
    """Open a page from a file, run a script after its own, and return what the script returns, as JSON has it.

    Fails where the console has an error or a warning.
    """
    told = f"""<script>
        const told = document.createElement("pre");
        told.id = "told";
        told.textContent = JSON.stringify((() => {{ {script} }})());
        document.body.append(told);
    </script>"""
    dom, console = _open(page + told, folder, "--dump-dom")
    assert console == [], "\n".join(console)
    found = re.search(r'<pre id="told">(.*?)</pre>', dom, re.DOTALL)
    assert found, f"the script did not end: {dom[-300:]}"
    return json.loads(html.unescape(found[1]))


def _open(page: str, folder: Path, *flags: str) -> tuple[str, list[str]]:
    """Return what the browser prints about a page, and the lines of its console."""
    browser, path = _browser(), folder / "page.html"
    assert browser is not None
    path.write_text(page, encoding="utf-8")
    quiet = ("--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--window-size=1400,1000")
    command = [browser, *quiet, f"--user-data-dir={folder / 'profile'}", *flags, path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return done.stdout, [line for line in done.stderr.splitlines() if ":CONSOLE" in line]

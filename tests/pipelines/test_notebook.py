"""The notebook of the documentation runs, and shows the head of a report."""

from __future__ import annotations

from pathlib import Path

from tests.pipelines.packages import DOCS, IGNORE_WARNINGS, needs

pytestmark = [needs("nbclient", "ipykernel"), IGNORE_WARNINGS]


def test_the_notebook_runs_and_shows_the_report(tmp_path: Path) -> None:
    import nbclient
    import nbformat

    notebook = nbformat.read(DOCS / "optimize.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, resources={"metadata": {"path": str(tmp_path)}}, timeout=300).execute()
    shown = [
        output["data"]
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if output["output_type"] == "execute_result"
    ]
    pages = [data["text/html"] for data in shown if "text/html" in data]
    assert pages and "fuse_bn_into_conv" in pages[0]
    assert (tmp_path / "fast.onnx").exists()

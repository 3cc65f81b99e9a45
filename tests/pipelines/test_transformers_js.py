"""A folder in the layout of transformers.js: optimized by one command, and run by transformers.js in Node."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.pipelines.tiny_models import SENTENCES, save_model

pytest.importorskip("optimum.exporters.onnx", reason="optimum-onnx is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(shutil.which("npm") is None, reason="Node and npm are not installed"),
]

SCRIPT = """
import { pipeline, env } from "@huggingface/transformers";
env.allowRemoteModels = false;
env.localModelPath = process.cwd() + "/";
const [texts, ...names] = JSON.parse(process.argv[2]);
const found = {};
for (const name of names) {
  const extract = await pipeline("feature-extraction", name, { dtype: "fp32", use_external_data_format: true });
  found[name] = Array.from((await extract(texts, { pooling: "mean", normalize: true })).data);
}
console.log(JSON.stringify(found));
"""


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A folder in which transformers.js is installed, and the script that runs models with it."""
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "run.js").write_text(SCRIPT)
    install = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "@huggingface/transformers@4"]
    done = subprocess.run(install, cwd=tmp_path, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"npm cannot install transformers.js: {done.stderr.strip().splitlines()[-1:]}")
    return tmp_path


def test_embeddings_are_the_same(node: Path) -> None:
    from optimum.exporters.onnx import main_export

    source = save_model(node / "source", "bert")
    main_export(str(source), output=node / "bert", task="feature-extraction", do_validation=False)
    (node / "bert" / "onnx").mkdir()
    exported = onnx.load(node / "bert" / "model.onnx")
    target, data = node / "bert" / "onnx" / "model.onnx", "model.onnx_data"
    onnx.save(exported, target, save_as_external_data=True, location=data)
    (node / "bert" / "model.onnx").unlink()
    command = [sys.executable, "-m", "graphopt", "optimize", "bert", "fast", "--threads", "1", "--seconds", "2"]
    root = Path(__file__).parent.parent.parent
    environment = os.environ | {"PYTHONPATH": str(root)}
    done = subprocess.run(command, cwd=node, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (node / "fast" / "onnx" / data).is_file()
    run = ["node", "run.js", json.dumps([SENTENCES, "bert", "fast"])]
    done = subprocess.run(run, cwd=node, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    np.testing.assert_allclose(found["fast"], found["bert"], atol=2e-5)

"""sentence-transformers serves the file that stands beside the exported one, with the same embeddings."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.pipelines.tiny_models import SENTENCES, save_model

library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
pytest.importorskip("optimum.onnxruntime", reason="optimum-onnx is not installed, which the onnx backend needs")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def test_embeddings_are_the_same(tmp_path: Path) -> None:
    from sentence_transformers.models import Pooling, Transformer

    body = Transformer(str(save_model(tmp_path / "bert", "bert")))
    library.SentenceTransformer(modules=[body, Pooling(body.get_word_embedding_dimension())]).save(str(tmp_path / "st"))
    folder = tmp_path / "onnx-folder"
    library.SentenceTransformer(str(tmp_path / "st"), backend="onnx").save_pretrained(str(folder))
    assert (folder / "onnx" / "model.onnx").is_file()
    command = [sys.executable, "-m", "graphopt", "optimize", str(folder), "--threads", "1", "--seconds", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "onnx/model.onnx" in done.stdout, done.stdout + done.stderr
    expected, got = (
        library.SentenceTransformer(str(folder), backend="onnx", model_kwargs={"file_name": name}).encode(SENTENCES)
        for name in ("model.onnx", "model_graphopt.onnx")
    )
    np.testing.assert_allclose(got, expected, atol=2e-5)

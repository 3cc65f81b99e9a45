"""Models as packages publish them, with their trained weights, at the sizes that those packages use.

``python -m benchmarks.published [--models NAME ...]`` optimizes the named models, or all, and updates
``benchmarks/results/published.jsonl`` and ``published.md``; what is not named keeps its last results.

- The models are taken out of wheels, which pip downloads once into the benchmark's cache; nothing is installed.
- Each is optimized in a process of its own for one thread, by ``graphopt.optimize(path, inputs=..., threads=1)``, with
  inputs of the first of its sizes, and finds no times of earlier runs.
- The outcome is compared with the original by graphopt's check, on several inputs of each of the sizes.
- Both are timed in turns at each size, as ``graphopt bench`` does it; a copy of the original tells the noise.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from rich.progress import track

from benchmarks.environment import digest, job, made, one_line
from benchmarks.models import CACHE
from benchmarks.report import circumstances, table
from benchmarks.results import FOLDER, Row, read_rows, write_rows
from benchmarks.tools import facts
from graphopt.base.errors import ModelError

SEEDS = (0, 1, 2)
"""Seeds of the inputs on which the outcome is compared; it is timed on those of the first."""

SECONDS = 60.0
"""Limit of the search."""

TIMING = 10.0
"""Limit of the timing, in seconds for each of the two models and each size."""

LIMIT = 900.0
"""Seconds, beside those for the search and the timing, after which a model is given up."""

# -- the models --------------------------------------------------------------------------------------------------------

Array: TypeAlias = "np.ndarray[Any, Any]"

Draw: TypeAlias = Callable[[np.random.Generator], Array]
"""Draws an input."""


def pixels(*shape: int, least: float = -1.0) -> Draw:
    """Images as they are after normalization, up to 1."""
    return lambda rng: rng.uniform(least, 1.0, shape).astype(np.float32)


def speech(*shape: int) -> Draw:
    """Sound, of which most samples are quiet."""
    return lambda rng: rng.normal(0.0, 0.1, shape).clip(-1.0, 1.0).astype(np.float32)


def state(*shape: int) -> Draw:
    """What a recurrent network has in mind, in the middle of its input."""
    return lambda rng: np.tanh(rng.normal(0.0, 1.0, shape)).astype(np.float32)


def rate(hertz: int) -> Draw:
    """A sampling rate."""
    return lambda _: np.array(hertz, np.int64)


def octets(*shape: int, padding: int) -> Draw:
    """What is in a file, and the number that stands for what is not in a short one."""
    return lambda rng: rng.integers(0, padding + 1, shape).astype(np.int32)


@dataclass(frozen=True, slots=True)
class Published:
    """A model of a package."""

    wheel: str
    """Package and version, as pip takes them."""
    file: str
    """Path in the wheel."""
    sizes: Mapping[str, Mapping[str, Draw]]
    """Inputs by name, for each of the sizes that the package uses; the model is optimized for the first."""
    note: str = ""


def _ocr(file: str, note: str, sizes: Mapping[str, Draw]) -> Published:
    inputs = {size: {"x": draw} for size, draw in sizes.items()}
    return Published("rapidocr-onnxruntime==1.4.4", f"rapidocr_onnxruntime/models/{file}", inputs, note)


def _vad(file: str, note: str, sizes: Mapping[str, Mapping[str, Draw]] | None = None) -> Published:
    """Return a model of Silero; unless others are given, its inputs are 512 samples at 16 kHz, and the 64 before."""
    frame = {"512 at 16 kHz": {"input": speech(1, 576), "state": state(2, 1, 128), "sr": rate(16_000)}}
    return Published("silero-vad==6.2.3", f"silero_vad/data/{file}", sizes or frame, note)


MODELS: Mapping[str, Published] = {
    "ppocr-detection": _ocr(
        "ch_PP-OCRv4_det_infer.onnx",
        "where text is in an image",  # at 3 : 4, too: the shorter side enlarged, in multiples of 32
        {f"736 × {width}": pixels(1, 3, 736, width) for width in (736, 992)},
    ),
    "ppocr-direction": _ocr(
        "ch_ppocr_mobile_v2.0_cls_infer.onnx",
        "whether a line of text stands on its head; six at once",
        {f"{n} × 48 × 192": pixels(n, 3, 48, 192) for n in (6, 1)},
    ),
    "ppocr-recognition": _ocr(
        "ch_PP-OCRv4_rec_infer.onnx",
        "what a line of text says; six at once",
        {f"{n} × 48 × 320": pixels(n, 3, 48, 320) for n in (6, 1)},
    ),
    "silero-vad": _vad("silero_vad.onnx", "whether somebody speaks; for two rates"),
    "silero-vad-16k": _vad("silero_vad_16k_op15.onnx", "the same for one rate, opset 15"),
    "silero-vad-ifless": _vad("silero_vad_op18_ifless.onnx", "the same with no If"),
    "silero-vad-sequence": _vad(
        "silero_vad_16k_sequence.onnx",
        "sixteen seconds at once",
        {f"{n} × 512": {"input": speech(n, 576), "h": state(1, 1, 128), "c": state(1, 1, 128)} for n in (512, 32)},
    ),
    "magika": Published(
        "magika==1.0.3",
        "magika/models/standard_v3_3/model.onnx",
        {"1 × 2048": {"bytes": octets(1, 2048, padding=256)}},
        "of what type a file is, by its first and last 1024 bytes",
    ),
    "nudenet": Published(
        "nudenet==3.4.2",
        "nudenet/320n.onnx",
        {"320 × 320": {"images": pixels(1, 3, 320, 320, least=0.0)}},
        "a YOLOv8 of 320 pixels",
    ),
}


def feeds(inputs: Mapping[str, Draw], seed: int) -> dict[str, Array]:
    """Draw inputs."""
    rng = np.random.default_rng(seed)
    return {name: draw(rng) for name, draw in inputs.items()}


def downloaded(model: Published, cache: Path = CACHE) -> Path:
    """Return the file of a model, taken from the wheel of its package, which pip downloads unless the cache has it.

    Raises:
        ModelError: pip cannot download it, or it has no such file.
    """
    folder = cache / "published" / model.wheel.replace("==", "-")
    path = folder / Path(model.file).name
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        (cache / ".gitignore").write_text("*\n", encoding="utf-8")
        if not [*folder.glob("*.whl")]:
            _download(model.wheel, folder)
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as held:
            if model.file not in held.namelist():
                raise ModelError(f"{wheel.name} has no file {model.file}")
            unfinished = path.with_suffix(".unfinished")
            unfinished.write_bytes(held.read(model.file))
            unfinished.replace(path)
    return path


def _download(wheel: str, folder: Path) -> None:
    """Have pip download a wheel alone, without what it depends on."""
    options = ["--no-deps", "--only-binary", ":all:", "--quiet", "--dest", str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", *options, wheel], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ModelError(f"pip cannot download {wheel}: {(done.stderr.strip().splitlines() or ['?'])[-1]}")


# -- one of them -------------------------------------------------------------------------------------------------------


def measure(name: str, search: float = SECONDS, timing: float = TIMING) -> list[Row]:
    """Return a row for each size of a model: what became of it; or one that says why there is nothing."""
    row: Row = {"model": name, "made": made()}
    try:
        source = downloaded(MODELS[name])
    except Exception as error:  # whatever keeps a model from being had is its result
        return [row | {"error": one_line(error)}]
    row["made"]["file"] = digest(source)
    row |= facts(source)
    limit = LIMIT + search + 2 * timing * len(MODELS[name].sizes)
    found = job("benchmarks.published", "--job", name, str(search), str(timing), limit=limit)
    return [row | found] if "error" in found else [row | each for each in found["rows"]]


def optimized(
    source: Path, sizes: Mapping[str, Mapping[str, Draw]], search: float = SECONDS, timing: float = TIMING
) -> list[Row]:
    """Return what graphopt makes of a model for the first of its sizes, and how that compares at each of them."""
    import graphopt
    from graphopt.check.compare import compare_models
    from graphopt.runtime.bench import run_benchmark
    from graphopt.runtime.session_setting import SessionSetting

    first = feeds(next(iter(sizes.values())), SEEDS[0])
    result = graphopt.optimize(source, inputs=first, threads=1, seconds=search, fresh=True)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "optimized.onnx"
        result.save(target)
        outcome: Row = {
            "after": facts(target),
            "seconds": round(sum(result.report.seconds.values()), 1),
            "notes": list(result.report.notes),
        }
        for size, inputs in sizes.items():
            drawn = [feeds(inputs, seed) for seed in SEEDS]
            compared = [compare_models(source, target, inputs=each) for each in drawn]
            worst = next((each for each in compared if not each.ok), compared[0])
            timed = run_benchmark([source, target], SessionSetting(threads=1), inputs=drawn[0], seconds=timing)
            original, other = timed.cases[0].timings
            assert other.speedup is not None
            found = {
                "check": f"{worst.verdict}{': ' * bool(worst.reason)}{worst.reason}",
                "ok": worst.ok,
                "ms": [each.samples.median * 1e3 for each in (original, other)],
                "timing": asdict(other.speedup) | {"verdict": str(other.speedup.verdict)},
            }
            rows.append({"size": size, **outcome, **found})
    return rows


# -- all of them -------------------------------------------------------------------------------------------------------


def markdown(rows: Sequence[Row]) -> str:
    """Return the results as a page."""
    head = ["model", "size", "nodes", "MB", "ms", "speed", "between", "", "check"]
    wrong = {f"{row['model']}, {row['size']}": row["check"] for row in rows if not row.get("ok", True)}
    wrong |= {row["model"]: row["error"] for row in rows if "error" in row}
    named = {row["model"]: MODELS[row["model"]] for row in rows}
    return "\n".join(
        [
            "# Published models",
            "",
            "Made by `python -m benchmarks.published`; its docstring says what is measured and how. The models are",
            "those that packages ship, with their weights, at the sizes that the packages use. Nodes, megabytes and",
            "milliseconds (the median of a run, one thread) are those of the original and of graphopt's outcome; the",
            "speed is that of the outcome over the original, with the interval in which the true median lies.",
            "",
            *circumstances(rows),
            "",
            *table(head, map(_line, rows)),
            "",
            "## The models",
            "",
            *(f"- {name}: {model.note}; `{model.file}` of {model.wheel}" for name, model in named.items()),
            "",
            "## Failures and wrong outputs",
            "",
            *([f"- {what}: {why}" for what, why in wrong.items()] or ["None."]),
            "",
        ]
    )


def _line(row: Row) -> list[str]:
    if "error" in row:
        return [row["model"], "", str(row.get("nodes", "")), "", "", "✗", "", "", ""]
    ratio, after = row["timing"], row["after"]
    return [
        row["model"],
        row["size"],
        f"{row['nodes']} → {after['nodes']}",
        f"{row['bytes'] / 1e6:.1f} → {after['bytes'] / 1e6:.1f}",
        " → ".join(f"{ms:.3g}" for ms in row["ms"]),
        f"{ratio['median']:.2f}",
        f"{ratio['low']:.2f}–{ratio['high']:.2f}",
        ratio["verdict"],
        "equal" if row["ok"] else "✗",
    ]


def main(arguments: Sequence[str], path: Path = FOLDER / "published.jsonl") -> None:
    """Measure and write both files; or, within such a run, one model, whose rows are printed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), metavar="NAME", help="rows")
    parser.add_argument("--search-seconds", type=float, default=SECONDS, help="for the search, for each model")
    parser.add_argument("--seconds", type=float, default=TIMING, help="of timing, for each model and size, at most")
    parser.add_argument("--job", nargs=3, metavar=("NAME", "SEARCH", "SECONDS"), help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.job:
        name, search, timing = given.job
        print(
            json.dumps({"rows": optimized(downloaded(MODELS[name]), MODELS[name].sizes, float(search), float(timing))})
        )
        return
    for name in track(given.models, description="models"):
        rows = [row for row in read_rows(path) if row["model"] != name]
        rows += measure(name, given.search_seconds, given.seconds)
        rows.sort(key=lambda row: list(MODELS).index(row["model"]))
        write_rows(path, rows)
        path.with_suffix(".md").write_text(markdown(rows), encoding="utf-8")
    print(f"written: {path}, {path.with_suffix('.md')}")


if __name__ == "__main__":
    main(sys.argv[1:])

"""The options of the command line, declared: what each is called, what it takes, and its line of help."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

# -- of several commands -----------------------------------------------------------------------------------------------

Model = Annotated[str, typer.Argument(metavar="MODEL", help="The model, an .onnx file.", show_default=False)]
Quiet = Annotated[bool, typer.Option("--quiet", metavar="", help="Print no table.")]
Verbose = Annotated[bool, typer.Option("--verbose", metavar="", help="Say on stderr what is done and decided.")]
Debug = Annotated[bool, typer.Option("--debug", metavar="", help="Say more, and show where an error comes from.")]
Timeout = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="For one rule; counted in steps.", min=0.1, show_default="10"),
]
AsJson = Annotated[bool, typer.Option("--json", metavar="", help="Print JSON instead of a table.")]
Seed = Annotated[int, typer.Option(metavar="N", help="Seed of the random inputs.", min=0)]
Rules = Annotated[
    list[Path] | None,
    typer.Option("--rules", metavar="FILE", help="Further rules, in a .py or .jsonl file."),
]
Dims = Annotated[list[str] | None, typer.Option("--dim", metavar="batch=1", help="Give a dim of this name a size.")]
Inputs = Annotated[
    list[str] | None, typer.Option("--input", metavar="name:FILE.npy", help="Run on this input, not a made-up one.")
]
Sizes = Annotated[
    list[str] | None,
    typer.Option("--dim", metavar="seq=16,128", help="Sizes of an open dim; each is run. By default a usual one."),
]
Provider = Annotated[
    str, typer.Option(metavar="NAME", help="cpu, cuda, dml, openvino, rocm, tensorrt, or as ONNX Runtime calls it.")
]
ProviderOptions = Annotated[list[str] | None, typer.Option(metavar="key=value", help="An option of the provider.")]
Threads = Annotated[
    int, typer.Option(metavar="N", help="Threads of ONNX Runtime; 0: one a core. They sleep while they wait.", min=0)
]

CustomOps = Annotated[
    list[Path] | None,
    typer.Option("--custom-ops", metavar="FILE", help="A library of custom operators, for ONNX Runtime to register."),
]
RunLimit = Annotated[
    float, typer.Option(metavar="SECONDS", help="The longest that one run of a model may take.", min=0.001)
]
MemoryLimit = Annotated[
    float | None,
    typer.Option(
        metavar="GB",
        help="That the whole process may take while a model runs; without it only what no memory holds is refused.",
        min=0.001,
        show_default=False,
    ),
]

# -- of compare --------------------------------------------------------------------------------------------------------

SameBits = Annotated[bool, typer.Option("--exact", metavar="", help="Allow no rounding: every bit is to be the same.")]
SameNonfinite = Annotated[
    bool,
    typer.Option("--keep-nonfinite", metavar="", help="Compare what is made of infinities and NaN, too."),
]

# -- of optimize -------------------------------------------------------------------------------------------------------


class CostMode(StrEnum):
    """What the search asks."""

    MEASURED = "measured"
    ANALYTIC = "analytic"
    NONE = "none"


Output = Annotated[
    str, typer.Argument(metavar="OUTPUT", help="Where the result goes; - is stdout.", show_default=False)
]
Skip = Annotated[list[str] | None, typer.Option(metavar="RULE...", help="Leave out these rules or passes.")]
Only = Annotated[list[str] | None, typer.Option(metavar="RULE...", help="Use nothing but these.")]
Unverified = Annotated[
    bool, typer.Option("--unverified", metavar="", help="Apply rules that are not proved, too; the report says so.")
]
Exact = Annotated[
    bool, typer.Option("--exact", metavar="", help="Change no bit of the outputs; fewer rules can be used.")
]
KeepNonfinite = Annotated[
    bool,
    typer.Option("--keep-nonfinite", metavar="", help="Keep infinities and NaN in place; fewer rules can be used."),
]
InputShapes = Annotated[
    list[str] | None,
    typer.Option(
        metavar="name:1,3,224,224",
        help="Fix the shape of an input; the name may be left out if there is one. Also --overwrite-input-shape.",
    ),
]
OverwriteInputShapes = Annotated[list[str] | None, typer.Option(hidden=True)]
FixedDims = Annotated[
    list[str] | None,
    typer.Option(
        metavar="batch=1|seq=16,128",
        help="Fix a dim; with several sizes it stays open, and the search measures at each.",
    ),
]
CostKind = Annotated[
    CostMode,
    typer.Option(metavar="KIND", help="measured; analytic: an estimate, nothing is run; none: no search, no timing."),
]
Seconds = Annotated[
    float, typer.Option(metavar="SECONDS", help="About how long search and timing may take together.", min=0.0)
]
Fresh = Annotated[
    bool, typer.Option("--fresh/--cached", metavar="", help="Time again, or look up what was timed before.")
]
RequiredSpeedup = Annotated[
    float | None,
    typer.Option(
        metavar="RATIO", help="Exit code 4, and no model, unless the result is this many times as fast.", min=0.0
    ),
]
TargetOpset = Annotated[
    str | None,
    typer.Option(
        metavar="N|latest|auto", help="Opset of the result: by default the model's; auto: a newer one if faster."
    ),
]


class Target(StrEnum):
    """Whose operators may be written."""

    ONNX = "onnx"
    ONNXRUNTIME = "onnxruntime"


TargetKind = Annotated[
    Target, typer.Option("--target", metavar="KIND", help="onnx: standard operators; onnxruntime: its own, too.")
]
KeepFunctions = Annotated[bool, typer.Option("--keep-functions", metavar="", help="Do not inline local functions.")]
ExternalData = Annotated[
    bool | None,
    typer.Option(
        metavar="",
        help="Weights go to OUTPUT.data, or OUTPUT.<digest>.data to replace others; by default only above 1.9 GB.",
        show_default=False,
    ),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        metavar="",
        help="Fail where the outputs differ, rather than leave a rewrite out. A model that cannot be run is a warning.",
    ),
]
Check = Annotated[bool, typer.Option("--check/--no-check", metavar="", help="Compare the result with the original.")]
ReportPath = Annotated[Path | None, typer.Option(metavar="FILE.json", help="Write all that was done as JSON.")]

# -- of discover and verify --------------------------------------------------------------------------------------------

Size = Annotated[int, typer.Option("--size", metavar="N", help="Operators of a term, at most.", min=1, max=6)]
Ops = Annotated[
    list[str] | None,
    typer.Option("--ops", metavar="OP...", help="Operators to use, or classes of them such as arithmetic, movement."),
]
FoundRules = Annotated[
    Path, typer.Option("--output", metavar="FILE.jsonl", help="Where the rules go; - is stdout.", show_default=False)
]
ProofTimeout = Annotated[
    float | None,
    typer.Option("--timeout", metavar="SECONDS", help="For one proof; counted in steps.", min=0.1, show_default="2"),
]
TensorSeed = Annotated[int, typer.Option("--seed", metavar="N", help="Of the random tensors.", min=0)]
WithLibrary = Annotated[
    bool,
    typer.Option("--library/--no-library", metavar="", help="Leave out what the installed rules do already, or not."),
]
JournalPath = Annotated[
    Path | None,
    typer.Option(
        "--journal", metavar="FILE", help="What was settled so far; by default OUTPUT.journal, removed in the end."
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        metavar="N",
        help="Processes; by default one a core to verify, and one to discover.",
        min=1,
        max=1024,
        show_default=False,
    ),
]
DaskAddress = Annotated[
    str | None,
    typer.Option("--dask", metavar="tcp://HOST:PORT", help="The scheduler of a Dask cluster; needs graphopt[dask]."),
]
Models = Annotated[
    list[str] | None, typer.Option("--model", metavar="FILE.onnx", help="Say what the rules gain in this model.")
]

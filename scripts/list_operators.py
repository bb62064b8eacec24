"""Writes docs/operators.md: python scripts/list_operators.py

A row for every operator that a package can have: the operator sets in which ONNX has changed it, what becomes of it,
the dtypes of its first input (those that ONNX lists and a package has), and limits. Then those that are refused, and
why.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx
import paths

from modelc.frontend.building.functions import has_body
from modelc.frontend.classical.trees import TREES
from modelc.frontend.control.structure import REASONS, importable, reason
from modelc.frontend.microsoft.fused import FUSED
from modelc.frontend.operators.random import SPELLINGS
from modelc.ir.expr import DTYPES, FLOAT8
from modelc.ops import OPERATORS, REFUSED

FILE = paths.ROOT / "docs" / "operators.md"
DOMAINS = {"": "ONNX", "ai.onnx.ml": "ai.onnx.ml", "com.microsoft": "com.microsoft"}
NAMES = {"float": "float32", "double": "float64"}  # as ONNX says them
STEERED = "steered"
SIZES = "[dynamic-shapes.md](dynamic-shapes.md#sizes-that-depend-on-data)"
SIZED = "steered or bounded"
MADE_WITH = f"onnx {onnx.__version__}"
COMPUTED = ("MelWeightMatrix",)  # of constants alone
GROUPS = {  # of dtypes, as the document writes them
    "narrow": ("float4_e2m1fn", "int4", "uint4", "int2", "uint2", "float8"),
    "integers": ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    "floats": ("float32", "float64", "float16", "bfloat16"),
}
UNLISTED = "dtypes of the operators that it becomes"

LIMITS: Mapping[tuple[str, str], str] = {
    **dict.fromkeys(
        (("", x) for x in (
            "Squeeze", "Unsqueeze", "Split", "OneHot", "CumSum", "Upsample",
            "Trilu", "CenterCropPad", "AffineGrid", "DFT", "STFT", "Col2Im",
            "BlackmanWindow", "HannWindow", "HammingWindow", "MelWeightMatrix",
        )),
        STEERED,
    ),
    **dict.fromkeys(
        (("", x) for x in (
            "Reshape", "Expand", "Tile", "Slice", "Pad", "TopK", "Range", "ConstantOfShape",
        )),
        SIZED,
    ),
    ("", "Resize"): f"{STEERED}; without roi and scales in operator sets 11 and 12 too, where ONNX Runtime refuses it",
    ("", "If"): "a condition that is known when compiling, or branches that give the same dtypes and ranks",
    ("", "Loop"): "what it carries keeps the most of its shape where it is not unrolled; a limit is known to what it "
    "hands out",
    ("", "Scan"): "from operator set 9 on",
    **dict.fromkeys(
        (("", x) for x in ("SequenceAt", "SequenceErase", "SequenceInsert", "SplitToSequence")),
        "sequences inside the model, of lengths and positions that are known when compiling",
    ),
    **dict.fromkeys(
        (("", x) for x in ("Compress", "NonMaxSuppression", "NonZero", "Unique")),
        f"the size of the result may depend on data: {SIZES}",
    ),
    **dict.fromkeys(
        (("", x) for x in ("GRU", "RNN")),
        "float32 and float64, with Sigmoid, Tanh and Relu as activations",
    ),
    ("", "LSTM"): "float32 and float64, with Sigmoid, Tanh and Relu as activations, without `input_forget`; `clip` is "
    "for what goes into gates, and leaves the cell state as it is, as in ONNX Runtime",
    ("", "Conv"): "1 to 3 spatial dimensions",
    ("", "ConvTranspose"): "1 to 3 spatial dimensions",
    ("", "DeformConv"): "2 spatial dimensions",
    ("", "GridSample"): "1 to 3 spatial dimensions",
    ("", "BatchNormalization"): "in training mode from operator set 14 on",
    ("", "Dropout"): "in training mode from operator set 15 on, where that is known when compiling",
    ("", "MaxUnpool"): "`output_shape` has to be known when compiling; it adds zeros behind",
    ("", "RoiAlign"): "a region that is not finite gives zeros",
    ("", "Det"): "float32 and float64, eliminated in float64",
    **dict.fromkeys(
        (("", x) for x in ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli",
                           "Multinomial")),
        "not inside branches, loops and functions; numbers by the handle's seed, or the node's own",
    ),
    ("ai.onnx.ml", "LabelEncoder"): "from numbers to numbers",
    ("ai.onnx.ml", "OneHotEncoder"): "numbers; what is in no category gives zeros",
    ("ai.onnx.ml", "LinearClassifier"): "labels that are numbers",
    ("ai.onnx.ml", "SVMClassifier"): "labels that are numbers",
    ("ai.onnx.ml", "TreeEnsembleClassifier"): "labels that are numbers",
}  # fmt: skip


def versions(domain: str) -> dict[str, list[int]]:
    """Operator -> the operator sets of its domain in which ONNX has changed it."""
    found: dict[str, list[int]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == domain:
            found.setdefault(schema.name, []).append(schema.since_version)
    return {name: sorted(set(found[name])) for name in sorted(found)}


def dtypes(op: str, domain: str, version: int) -> str:
    """Those of the first input that a package has, by GROUPS; float8 in one word."""
    schema = onnx.defs.get_schema(op, version, domain)
    if not schema.inputs:
        return ""
    listed = sorted(schema.inputs[0].types)
    names = [t.removeprefix("tensor(").removesuffix(")") for t in listed if t.startswith("tensor(")]
    known = {NAMES.get(n, n.replace("float4e2m1", "float4_e2m1fn")) for n in names}
    there = [d for d in DTYPES if d in known] + ["float8"] * (any("float8" in n for n in names) and bool(FLOAT8))
    for group, members in GROUPS.items():
        if set(members) <= set(there):
            there = [group, *(d for d in there if d not in members)]
    return ", ".join(there)


def rows(domain: str) -> Iterator[tuple[str, str, str, str, str]]:
    """Operator, operator sets, how, dtypes, limits, of those that are compiled."""
    for op, sets in versions(domain).items():
        last = sets[-1]
        schema = onnx.defs.get_schema(op, last, domain)
        if schema.deprecated:
            last = sets[-2]
        how = made_of(op, domain, last)
        if how:
            given = ", ".join(map(str, sets))
            yield op, given, how, dtypes(op, domain, last), LIMITS.get((domain, op), "")


def made_of(op: str, domain: str, version: int) -> str:
    """What becomes of an operator; empty where it is refused."""
    if domain == "" and op in COMPUTED:
        return "a constant"
    if domain == "" and op in SPELLINGS:
        return "other operators"
    if importable(op, domain, version):
        return "kernels" if op in OPERATORS else "other operators"
    if domain == "" and op not in REASONS and op not in REFUSED and has_body(op, domain, version):
        return "ONNX's own definition"
    return ""


def refused(domain: str) -> Iterator[tuple[str, str]]:
    compiled = {row[0] for row in rows(domain)}
    for op, sets in versions(domain).items():
        if op not in compiled:
            yield op, reason(op, domain, sets[-1])


def table(head: tuple[str, ...], body: list[tuple[str, ...]]) -> list[str]:
    return ["| " + " | ".join(row) + " |" for row in (head, ("---",) * len(head), *body)]


def text() -> str:
    """The whole document."""
    lines = [
        "# Operators",
        "",
        "Generated by `python scripts/list_operators.py`; a test compares it with the code. Nodes of a model that",
        "cannot be compiled are listed by `modelc inspect MODEL.onnx`, with the reasons. Nodes are",
        "computed when compiling if their inputs are constants or shapes. A ZipMap at an output is removed: the",
        f"package returns its table of scores. Operators are those of {MADE_WITH}.",
        "[conformance.md](conformance.md) lists ONNX's own tests that do not pass, with the reasons.",
        "",
        "*Operator sets*: those in which ONNX changed the operator; models of all of them are read. *dtypes*: those of",
        "the first input that ONNX lists and a package supports (no strings, no complex numbers).",
        "",
        *(f"- **{group}**: {', '.join(members)}" for group, members in GROUPS.items()),
        "- **steered**: parameters that are inputs (shapes, axes, sizes) have to be known when compiling: a constant,",
        "  a value computed from shapes, or an input with `--constant`",
        f"- **bounded**: or a size with a bound ({SIZES})",
    ]
    for domain in ("", "ai.onnx.ml"):
        found = list(rows(domain))
        lines += ["", f"## {DOMAINS[domain]}: {len(found)} operators", ""]
        lines += table(("operator", "operator sets", "becomes", "dtypes", "limits"), found)
    own = sorted(op for domain, op in FUSED if domain == "com.microsoft")
    lines += ["", f"## com.microsoft: {len(own)} operators", "", f"{', '.join(own)}: {UNLISTED}."]
    assert all(domain in DOMAINS for domain, _ in {**FUSED, **TREES})
    for domain in ("", "ai.onnx.ml"):
        lines += ["", f"## {DOMAINS[domain]}: refused", ""]
        lines += table(("operator", "why"), list(refused(domain)))
    return "\n".join(lines) + "\n"


def main() -> None:
    FILE.write_text(text())
    print(FILE.relative_to(paths.ROOT))


if __name__ == "__main__":
    main()

"""What a build was, for programs and people: build.json, JUnit XML, a page in Markdown."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, SubElement, indent, tostring

import jsonschema

from modelc.errors import ConfigError

SCHEMA, VERSION = "build", 1
MAX_FILE = 1 << 28
BEGINNINGS = {".json": '"schema": "build"', ".junit.xml": '<testsuites name="modelc build"', ".md": "## modelc build:"}
COLUMNS = ("cell", "outcome", "parameters", "library", "arena", "seconds", "times as fast as", "gates")
NUMBERS = COLUMNS[2:6]
RATIO = "min-ratio "  # what gates of it begin with, before the engine
KINDS = {"failures": "failure", "errors": "error", "skipped": "skipped"}  # of what becomes of a test, in JUnit XML


def schema() -> Mapping[str, Any]:
    """The published JSON schema of build.json."""
    tree: Mapping[str, Any] = json.loads(Path(__file__).with_name("build.schema.json").read_text())
    return tree


def read_build(path: Path) -> dict[str, Any]:
    """A build.json of an earlier build. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE)
        build = json.loads(content)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read as a build.json: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{path} is not JSON; expected the build.json of an earlier build") from None
    newer = isinstance(build, dict) and isinstance(build.get("version"), int) and build["version"] > VERSION
    if newer:
        raise ConfigError(
            f"{path} is of version {build['version']}, and this modelc knows up to {VERSION}: update modelc"
        )
    wrong = next(iter(jsonschema.Draft202012Validator(schema()).iter_errors(build)), None)
    if wrong is not None:
        place = ".".join(map(str, wrong.absolute_path)) or "the file"
        raise ConfigError(f"{path}: {place} does not fit build.schema.json: {wrong.message[:200]}")
    read: dict[str, Any] = build
    return read


def packages_of(build: Mapping[str, Any], path: Path) -> dict[str, Path]:
    """The packages of an earlier build by their cells' names; they lie where build.json says, from where it lies."""
    return {cell["cell"]: path.parent / cell["package"] for cell in build["cells"] if cell["package"]}


def junit(build: Mapping[str, Any]) -> str:
    """A test for each cell, and for each of its gates, with their counts by suite and in all."""
    root = Element("testsuites", name="modelc build")
    for cell in build["cells"]:
        suite = SubElement(root, "testsuite", name=cell["cell"])
        made = SubElement(suite, "testcase", name="built", classname=cell["cell"], time=f"{cell['seconds'] or 0:.3f}")
        if cell["outcome"] == "failed":
            SubElement(made, "failure", message=printable(cell["said"]))
        for gate in cell["gates"]:
            case = SubElement(suite, "testcase", name=gate["gate"], classname=cell["cell"])
            if gate["outcome"] != "passed":
                kind = "failure" if gate["outcome"] == "failed" else "skipped"
                SubElement(case, kind, message=printable(gate["said"]))
    for tests in (root, *root):
        counts = {"tests": "testcase", **KINDS}
        tests.attrib |= {kind: str(sum(1 for _ in tests.iter(tag))) for kind, tag in counts.items()}
    indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + tostring(root, "unicode") + "\n"


def markdown(build: Mapping[str, Any]) -> str:
    """A table of the cells, and below it what failed."""
    lines = [f"## modelc build: {sentence(build)}", ""]
    lines += [f"| {' | '.join(COLUMNS)} |"]
    lines += [f"| {' | '.join('---:' if name in NUMBERS else '---' for name in COLUMNS)} |"]
    for row in rows(build):
        lines.append("| " + " | ".join(_cell(text) for text in row) + " |")
    if failures := failures_of(build):
        lines += ["", *(f"- **{_cell(failure)}**" for failure in failures)]
    return "\n".join(lines) + "\n"


def rows(build: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A row for each cell, of COLUMNS: sizes are in bytes, "times as fast as" has the measured ratio to each engine
    that a gate names."""
    table = []
    for cell in build["cells"]:
        sizes = [f"{cell['sizes'][part]:,}" if cell["sizes"] else "" for part in ("params", "library", "arena")]
        seconds = "" if cell["seconds"] is None else f"{cell['seconds']:.1f}"
        counts = {o: sum(gate["outcome"] == o for gate in cell["gates"]) for o in ("passed", "failed", "skipped")}
        gates = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)
        ratios = ", ".join(
            f"{gate['gate'].removeprefix(RATIO)} {gate['value']:.3f}"
            for gate in cell["gates"]
            if gate["gate"].startswith(RATIO) and gate["value"] is not None
        )
        table.append((cell["cell"], cell["outcome"], *sizes, seconds, ratios, gates))
    return table


def sentence(build: Mapping[str, Any]) -> str:
    counts: dict[str, int] = {}
    for cell in build["cells"]:
        counts[cell["outcome"]] = counts.get(cell["outcome"], 0) + 1
    said = ", ".join(f"{count} {outcome}" for outcome, count in counts.items()) or "no cells"
    cells = f"{len(build['cells'])} cell{'s' * (len(build['cells']) != 1)}"
    return f"{cells}: {said}; {'passed' if build['passed'] else 'FAILED'}"


def failures_of(build: Mapping[str, Any]) -> list[str]:
    """What failed: the cell, the gate, the amount."""
    failures = []
    for cell in build["cells"]:
        if cell["outcome"] == "failed":
            failures.append(f"{cell['cell']}: not built: {cell['said']}")
        failures += [f"{cell['cell']}: {g['gate']}: {g['said']}" for g in cell["gates"] if g["outcome"] == "failed"]
    return failures


def _cell(text: str) -> str:
    return " ".join(printable(text).replace("|", "\\|").replace("<", "&lt;").split())


def printable(text: str) -> str:
    """Without what XML does not take."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)

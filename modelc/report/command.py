"""The command: what a page says of a package, of two, of a build, of a database."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from modelc.build.summary import COLUMNS, NUMBERS, failures_of, read_build, rows, sentence
from modelc.compile.options import argument, option
from modelc.database import Database
from modelc.database.compare import comparable, untuned_key
from modelc.database.record import Conditions, Record
from modelc.errors import ConfigError, InputError
from modelc.report import charts
from modelc.report.facts import package_facts
from modelc.report.page import Column, Section, html, write_page
from modelc.runtime.shown import size
from modelc.verb import Progress, asked_by
from modelc.verify.diff import diff

SQLITE = b"SQLite format 3\0"
MOST_ROWS = 400


@dataclass(frozen=True)
class ReportRequest:
    """What modelc.report is asked for."""

    subject: str | Path = argument("A package, the build.json of a build, or a tuning database.")
    output: str | Path = option("report.html", doc="The page.")
    against: str | Path | None = option(None, doc="A package that a package is shown beside.")
    threads: int = option(1, doc="On how many threads the package is timed.")
    model: str | Path | None = option(
        None, doc="The ONNX model that a package was compiled from, whose time by ONNX Runtime is shown too."
    )
    progress: Progress | None = option(
        None, doc="Is told what is timed, `progress(stage, text)`; an exception from it ends the call."
    )


def report_request(request: ReportRequest) -> Path:
    """Writes the page, and gives its place. Raises ModelcError."""
    subject, output = Path(request.subject), Path(request.output)
    say = partial(request.progress or (lambda stage, text: None), "report")
    if subject.is_dir():
        title, sections = _of_package(subject, request, say)
    elif request.model is not None:
        raise InputError(f"--model is for packages, and {subject} is none: a package is a folder")
    elif request.against is not None:
        raise InputError(f"--against is for packages, and {subject} is none: a package is a folder")
    elif _is_database(subject):
        title, sections = f"Tuning: {subject.name}", list(_of_database(subject))
    else:
        title, sections = f"Build: {subject.parent.resolve().name}", list(_of_build(read_build(subject)))
    write_page(output, html(title, str(subject), sections))
    return output


def _is_database(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(SQLITE)) == SQLITE
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}; expected a package, a build.json or a database"
        ) from None


# --- a package ------------------------------------------------------------------------------------------------------


def _of_package(path: Path, request: ReportRequest, say: Callable[[str], None]) -> tuple[str, list[Section]]:
    say(f"timing {path}")
    facts = package_facts(path, request.threads, None if request.model is None else Path(request.model))
    title = str(facts["name"])
    sections = [Section("Summary", facts=(*facts["summary"].items(), ("command", _command(request))))]
    if request.against is not None:
        title = f"{title}: {path.stem} beside {Path(request.against).stem}"
        sections += _side_by_side(Path(request.against), path, say)
    sections += _kernels(facts)
    if facts["drawing"] is not None:
        text = (
            "A box is a kernel, redder the longer it takes, with its ONNX nodes; an edge is a value, with its layout "
            "where that is not row-major. Tooltips have the whole names, and the search of the browser finds them."
        )
        sections.append(Section("The graph", text, drawing=facts["drawing"]))
    if facts["arena"]:
        text = "Each rectangle is a value: it takes its bytes from the step that writes it to the last that reads it."
        sections.append(Section("The arena over the steps", text, chart=charts.arena(facts["arena"])))
    judged = [k for k in facts["kernels"] if k["samples"]]
    if judged:
        text = (
            "How far each kernel is from its meaning in float64, as a share of what rounding may do: above 1 is wrong."
        )
        sections.append(Section("Verification by kernel", text, chart=charts.verification(judged)))
    if facts["tuning"] is not None:
        sections.append(_tuning(facts["tuning"]))
    return title, sections


def _command(request: ReportRequest) -> str:
    """The command that makes this page again."""
    words = ["modelc", "report", str(request.subject), "-o", str(request.output)]
    for flag, path in (("--against", request.against), ("--model", request.model)):
        words += [flag, str(path)] if path is not None else []
    return shlex.join([*words, *(["--threads", str(request.threads)] if request.threads != 1 else [])])


def _kernels(facts: Mapping[str, Any]) -> Iterator[Section]:
    kernels = facts["kernels"]
    timed = facts["total_us"] is not None
    times = [Column(name, True) for name in ("us", "p10", "p90", "share")]
    columns = [Column("kernel"), *times * timed]
    columns += [Column("MFLOP", True), Column("bytes", True), Column("dtype"), Column("instruction")]
    columns += [Column("GFLOP/s", True), Column("of peak", True)] * timed + [Column("nodes", wide=True)]
    table = []
    for k in sorted(kernels, key=lambda k: -k["us"]) if timed else kernels:
        row = [
            k["kernel"],
            *([*(f"{k[name]:.1f}" for name in ("us", "p10_us", "p90_us")), f"{k['share']:.1%}"] if timed else []),
        ]
        row += [f"{k['flops'] * 1e-6:.3g}", size(k["bytes"]), k["dtype"], k["instruction"]]
        row += [f"{k['gflops']:.1f}", f"{k['peak_share']:.0%}"] if timed else []
        table.append((*row, ", ".join(k["nodes"])))
    if not timed:
        yield Section("Kernels", f"Not timed: {facts['untimed_because']}.", columns=tuple(columns), rows=tuple(table))
        return
    text = f"{facts['total_us'] / 1e3:.3f} ms in all; the {min(charts.MOST_BARS, len(kernels))} that take most."
    chart = charts.kernel_times(kernels)
    yield Section("Kernels by time", text, chart=chart, columns=tuple(columns), rows=tuple(table[:MOST_ROWS]))
    text = (
        "Each dot is a kernel, as large as its time; the lines are this machine's memory and peak, for one core. What "
        "makes fewer multiplications than are counted (Winograd, Strassen) can lie above."
    )
    yield Section("Roofline", text, chart=charts.roofline(kernels, facts["roof"]))


def _tuning(tuning: Mapping[str, Any]) -> Section:
    what = "kernels together, as measured"
    moments = [{"at": m["seconds"], "ms": 1e3 * m["predicted_seconds"], "what": what} for m in tuning["log"]]
    rules = {"untuned package": tuning["untuned_ms"], "tuned package": tuning["tuned_ms"]}
    rules["ONNX Runtime"] = tuning["ort_ms"]
    last = tuning["log"][-1]
    text = (
        f"{last['trials']} measurements. The line is the sum of the fastest kernels measured so far; dashed are whole "
        "runs, timed by turns at the end."
    )
    return Section("Tuning", text, chart=charts.tuning(moments, rules, "seconds of measuring"))


def _side_by_side(before: Path, after: Path, say: Callable[[str], None]) -> Iterator[Section]:
    seen = diff(before, after, True, lambda stage, text: say(text))
    names = [before.stem, after.stem] if before.stem != after.stem else ["before", "after"]
    facts = [(name, f"{_said(pair[0])} → {_said(pair[1])}") for name, pair in seen["facts"].items()]
    text = f"{seen['unchanged']} kernels are unchanged." + f" Not timed: {seen['untimed_because']}." * (
        not seen["timed"]
    )
    chart = None
    timed = sorted((row for row in seen["kernels"] if "us" in row), key=lambda row: -max(row["us"]))
    if timed:
        longest = timed[: charts.MOST_PAIRS]
        pairs = [(row["kernel"], name, us) for row in longest for name, us in zip(names, row["us"], strict=True)]
        chart = charts.beside([{"kernel": kernel, "package": name, "us": us} for kernel, name, us in pairs])
    columns = (Column("kernel"), Column("before, us", True), Column("after, us", True), Column("changed", wide=True))
    table = []
    for row in seen["kernels"]:
        if row["changes"]:
            times = [f"{us:.1f}" for us in row.get("us", ())] or ["", ""]
            said = "; ".join(f"{c['what']}: {_said(c['before'])} → {_said(c['after'])}" for c in row["changes"][:8])
            table.append((row["kernel"], *times, said + " ..." * (len(row["changes"]) > 8)))
    for side, kernels in zip(("before", "after"), seen["only"], strict=True):
        for k in kernels:
            us = f"{k['us']:.1f}" if "us" in k else ""
            times = [us, ""] if side == "before" else ["", us]
            table.append((k["kernel"], *times, f"only {side}: {', '.join(k['nodes'])}"))
    yield Section("Side by side", text, tuple(facts), chart, columns, tuple(table[:MOST_ROWS]), True)


def _said(value: Any) -> str:
    return "–" if value in (None, "", []) else f"{value:,}" if type(value) is int else str(value)


# --- a build, a database --------------------------------------------------------------------------------------------


def _of_build(build: Mapping[str, Any]) -> Iterator[Section]:
    facts = [("cells", sentence(build)), ("seconds", f"{build['seconds']:.1f}"), ("file", str(build["source"]))]
    yield Section("Summary", facts=(*facts, *(("failed", failure) for failure in failures_of(build))))
    parts = [
        {"cell": cell["cell"], "part": part, "bytes": count, "size": size(count)}
        for cell in build["cells"]
        if cell["sizes"]
        for part, count in cell["sizes"].items()
    ]
    columns = tuple(Column(name, name in NUMBERS) for name in COLUMNS)
    chart = charts.sizes(parts) if parts else None
    yield Section("Cells", chart=chart, columns=columns, rows=tuple(rows(build)), open=True)
    gates = [(c["cell"], g["gate"], g["outcome"], g["said"]) for c in build["cells"] for g in c["gates"]]
    if gates:
        columns = (Column("cell"), Column("gate"), Column(""), Column("", wide=True))
        yield Section("Gates", columns=columns, rows=tuple(gates), open=True)


def _of_database(path: Path) -> Iterator[Section]:
    """Of the conditions with most records: how fast the fastest Candidates together became, and each Task."""
    groups: dict[Conditions, dict[str, list[Record]]] = {}
    with Database(path, write=False) as database:
        for key in database.tasks():
            for record in database.records(key):
                groups.setdefault(record.conditions, {}).setdefault(key, []).append(record)
    if not groups:
        yield Section("Summary", "There are no records in this database.")
        return
    ordered = sorted(groups.items(), key=lambda group: -sum(map(len, group[1].values())))
    yield Section("Summary", facts=tuple(_counts(ordered)))
    for conditions, tasks in ordered[:4]:
        curve, table = _course(tasks)
        columns = (Column("task"), Column("records", True), Column("untuned, us", True), Column("best, us", True))
        text = (
            f"For {conditions.target}, {conditions.threads} thread(s), modelc {conditions.version}: measured times of "
            "the fastest Candidates so far, one of each Task, together."
        )
        rules = {"untuned": curve[0]["untuned"]} if curve else {}
        chart = charts.tuning(curve, rules, "measurements") if len(curve) > 1 else None
        ratio = Column("times as fast", True)
        yield Section("Tuning", text, chart=chart, columns=(*columns, ratio), rows=tuple(table[:MOST_ROWS]))


def _counts(groups: Sequence[tuple[Conditions, Mapping[str, list[Record]]]]) -> Iterator[tuple[str, str]]:
    for conditions, tasks in groups:
        count = sum(map(len, tasks.values()))
        yield f"{conditions.target}, {conditions.threads} thread(s)", f"{count} records of {len(tasks)} Tasks"


def _course(tasks: Mapping[str, list[Record]]) -> tuple[list[dict[str, Any]], list[tuple[str, ...]]]:
    """The sum of the best times after each measurement, in the order in which they were made; a row for each Task."""
    best: dict[str, float] = {}
    moments: list[tuple[float, str, float]] = []
    table = []
    untuned_seconds = 0.0
    for key, records in tasks.items():
        untuned = untuned_key(records)
        scaled = comparable(records, untuned)
        if not scaled:
            continue
        first = scaled[untuned][1].seconds
        best[key] = first
        untuned_seconds += first
        moments += [(record.measured_at, key, measured.seconds) for record, measured in scaled.values()]
        least = min(measured.seconds for _, measured in scaled.values())
        times = (f"{1e6 * first:.2f}", f"{1e6 * least:.2f}", f"{first / least:.3f}" if least else "")
        table.append((key, str(len(records)), *times))
    curve = []
    for number, (_, key, seconds) in enumerate(sorted(moments), 1):
        best[key] = min(best[key], seconds)
        row = {"at": number, "ms": 1e3 * sum(best.values()), "what": "fastest so far", "untuned": 1e3 * untuned_seconds}
        curve.append(row)
    return curve, sorted(table, key=lambda row: -float(row[2]))


@asked_by(ReportRequest)
def report(request: ReportRequest) -> Path:
    """Makes one page of a package, a build or a tuning database, with plots. It needs nothing beside it, nor a network.

    A package is timed, where this machine can run it: loading it executes the library in it.

    Returns:
        The page's path.

    Raises:
        PackageError: A package is damaged.
        ConfigError: The subject is nothing of these, or the page cannot be written.
        InputError: `against` or `model` is given for what is no package.

    Example:
        >>> modelc.report("net.modelc", "net.html").name
        'net.html'
    """
    return report_request(request)

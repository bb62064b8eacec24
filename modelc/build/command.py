"""The command: what a BuildRequest asks for becomes packages, gates, and a summary."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from modelc import __version__
from modelc.build.cells import Cell, cells_of, parse_shard
from modelc.build.crew import Answer, Crew, processors
from modelc.build.gates import GateResult, judged, sizes_of, timed
from modelc.build.kept import Entry, Kept, manifest_digest, proven, put, write_text
from modelc.build.key import Sources
from modelc.build.look import looked_at, unverifiable
from modelc.build.matrix import read_matrix
from modelc.build.output import check_places, output_of
from modelc.build.request import BuildRequest
from modelc.build.summary import BEGINNINGS, SCHEMA, VERSION, junit, markdown, packages_of, read_build
from modelc.database import Database, database_for
from modelc.database.recorded import Consulted
from modelc.errors import ConfigError, PackageError
from modelc.measure.where import Where
from modelc.package import Package, read_package
from modelc.package.write import folder_for_packages
from modelc.scratch import make_private, user_cache
from modelc.verb import asked_by

LONGEST = 1000  # characters of why a cell failed


@dataclass(frozen=True)
class BuildResult:
    """`build` is what build.json says; `files` are the summaries that were written."""

    build: Mapping[str, Any]
    files: tuple[Path, ...]

    @property
    def passed(self) -> bool:
        return bool(self.build["passed"])

    def to_json(self) -> dict[str, Any]:
        return {**self.build, "files": [str(path) for path in self.files]}


@dataclass
class Row:
    """How a cell stands."""

    cell: Cell
    key: str
    outcome: str = "to build"
    said: str = ""
    package: Package | None = None
    entry: Entry | None = None
    gates: list[GateResult] = field(default_factory=list)

    def to_json(self, folder: Path) -> dict[str, Any]:
        outcome = self.entry.outcome if self.entry else {}
        return {
            "cell": self.cell.name,
            "model": self.cell.model.name,
            "target": self.cell.target.label,
            "precision": self.cell.precision,
            "key": self.key,
            "outcome": self.outcome,
            "said": self.said[:LONGEST],
            "package": self.package.path.relative_to(folder).as_posix() if self.package is not None else "",
            "manifest_sha256": self.entry.manifest if self.entry and self.package is not None else "",
            "notes": list(outcome.get("notes", ())),
            "sizes": sizes_of(self.package) if self.package is not None else None,
            "seconds": outcome.get("seconds"),
            "gates": [gate.to_json() for gate in self.gates],
        }


def build_request(request: BuildRequest) -> BuildResult:
    """Builds what a BuildRequest says. Whatever ends it, cells that are made are kept, and the same call goes on.
    Raises ConfigError that says everything that is missing, before anything is compiled."""
    begun = time.monotonic()
    say = partial(request.progress or (lambda stage, text: None), "build")
    matrix = read_matrix(Path(request.source))
    if request.shard:
        parse_shard(request.shard)
    if request.cluster and not Where.parse(request.cluster).cluster:
        raise ConfigError(f"--cluster is {request.cluster[:200]!r}; expected dask://HOST:PORT, a scheduler's address")
    cells = cells_of(matrix, request.only, request.shard)
    folder = output_of(matrix, request.output)
    summaries = _summary_places(folder, request.shard)
    check_places(folder, (folder / cell.package_name for cell in cells), summaries.values())
    cache = Kept(_private_cache(None if request.cache is None else Path(request.cache)))
    baseline = None if request.baseline is None else Path(request.baseline)
    before = {} if baseline is None else packages_of(read_build(baseline), baseline)
    sources = Sources(cache)
    keys = looked_at(cells, matrix.source, sources, say, request.allow_code)
    rows = [Row(cell, keys[cell.name]) for cell in cells]
    database, note = database_for(request.database, write=False)
    with database or nullcontext():
        for row in rows:
            row.entry = cache.entry(row.key, database)
    build = _Building(request, rows, folder, sources, database, say)
    if request.dry_run:
        build.take_kept()
    else:
        with folder_for_packages(folder, parents=True):
            build.take_kept()
            build.make()
            build.judge(before)
    summary = {
        "schema": SCHEMA,
        "version": VERSION,
        "modelc": __version__,
        "source": str(request.source),
        "only": list(request.only),
        "shard": request.shard,
        "baseline": "" if baseline is None else str(baseline),
        "passed": all(r.outcome != "failed" and all(g.outcome != "failed" for g in r.gates) for r in rows),
        "seconds": round(time.monotonic() - begun, 3),
        "notes": [note] if note else [],
        "cells": [row.to_json(folder) for row in rows],
    }
    return BuildResult(summary, () if request.dry_run else _written(summary, summaries))


@dataclass
class _Building:
    request: BuildRequest
    rows: list[Row]
    folder: Path
    sources: Sources
    database: Database | None
    say: Callable[[str], None]
    done: int = 0

    def take_kept(self) -> None:
        """Cells that were made before take their places, where they are proven."""
        with ThreadPoolExecutor(processors()) as pool:  # checksums are computed outside of Python's lock
            packages = list(pool.map(self._proven, self.rows))
        for row, package in zip(self.rows, packages, strict=True):
            if package is None:
                row.entry = None
                continue
            row.outcome = "kept"
            self.done += 1
            if self.request.dry_run:
                continue
            place = self._place(row)
            if package.path != place:
                put(package.path, place)
            row.package = replace(package, path=place)

    def _place(self, row: Row) -> Path:
        return self.folder / row.cell.package_name

    def _kept_place(self, row: Row) -> Path:
        return self.sources.kept.place(row.key, row.cell.model.path.stem)

    def _proven(self, row: Row) -> Package | None:
        """The package that a cell was made as, where it goes or where it is kept."""
        if row.entry is None:
            return None
        manifest = row.entry.manifest
        return proven(self._place(row), manifest) or proven(self._kept_place(row), manifest)

    def make(self) -> None:
        """The others are compiled, several at a time; then those that are tuned, alone, because they are measured."""
        missing = [row for row in self.rows if row.outcome == "to build"]
        jobs = min(self.request.jobs or processors(), max(len(missing), 1))
        for tuned in (False, True):
            by_key: dict[str, list[Row]] = {}
            for row in missing:
                if row.cell.tuned == tuned:
                    by_key.setdefault(row.key, []).append(row)
            if not by_key:
                continue
            orders = {rows[0].cell.name: self._order(rows[0], jobs) for rows in by_key.values()}
            makers = self._makers(1 if tuned else jobs, tuned)
            with makers as crew:
                for answer in crew.results(orders):
                    first = next(row for row in missing if row.cell.name == answer.name)
                    self._take(by_key[first.key], answer)

    def _makers(self, jobs: int, tuned: bool) -> AbstractContextManager[Any]:
        if self.request.cluster and not tuned:
            from modelc.build.cluster import BuildCluster

            return BuildCluster(self.request.cluster, self._stage)
        return Crew(jobs, self._stage)

    def _stage(self, name: str, text: str) -> None:
        if self.request.watch is not None:
            self.request.watch.stands(self.done, len(self.rows), f"{name} {text}")

    def _take(self, rows: list[Row], answer: Answer) -> None:
        self.done += len(rows)
        if answer.made is None:
            for row in rows:
                row.outcome, row.said = "failed", answer.failed
                self.say(f"{row.cell.name}: {row.said}")
            return
        kept_package = self._kept_place(rows[0])
        asked = answer.made["consulted"]
        consulted = None if asked is None else Consulted.from_json(asked)
        entry = Entry(manifest_digest(kept_package), answer.made["outcome"], consulted, answer.made["answers"])
        self.sources.kept.write(rows[0].key, entry)
        for row in rows:
            try:
                put(kept_package, self._place(row))
                row.package = read_package(self._place(row))
            except PackageError as error:
                row.outcome, row.said = "failed", str(error)
                continue
            row.outcome, row.entry = "built", entry
            self.say(f"{row.cell.name} built in {entry.outcome['seconds']:.1f} s")
        self._stage(rows[0].cell.name, "is made")

    def _order(self, row: Row, jobs: int) -> dict[str, Any]:
        model, target = row.cell.model, row.cell.target
        description = self.sources.target(target.name)
        kept_package = self._kept_place(row)
        self.sources.kept.make_room(kept_package)
        database = self.request.database
        options = {**row.cell.options, "database": database if isinstance(database, bool) else str(database)}
        if not row.cell.tuned:
            options["threads"] = max(1, processors() // jobs)
            options["verify"] = model.gates.verified or not unverifiable(description)
            options["keep_unverified"] = not model.gates.verified
        return {
            "model": str(model.path.resolve()),
            "output": str(kept_package.resolve()),
            "target": target.name,
            "target_text": description.to_yaml() if target.name == "native" else "",
            "tuned": row.cell.tuned,
            "options": options,
        }

    def judge(self, before: Mapping[str, Path]) -> None:
        """Gates: those of sizes first; what is timed, when nothing is compiled any more."""
        packages = [(row, row.package) for row in self.rows if row.package is not None]
        for row, package in packages:
            row.gates += judged(row.cell.model.gates, package)
        for row, package in packages:
            if row.cell.model.gates.timed:
                self.say(f"timing {row.cell.name}")
                baseline = before.get(row.cell.name)
                row.gates += timed(row.cell.model, package, baseline, _fed(row.cell), self.say)


def _fed(cell: Cell) -> Mapping[str, NDArray[Any]] | None:
    """The data that a cell's model is given, if it is."""
    from modelc.compile.given import read_given

    return read_given(Path(cell.options["inputs"]), [cell.model.path]) if "inputs" in cell.options else None


def _private_cache(given: Path | None) -> Path:
    """The folder of cells: the one that is given, or in the user's own cache. Raises ConfigError where others could put
    packages into it."""
    private = user_cache() if given is None else given
    try:
        make_private(private)
    except OSError as error:
        whose = "the user's cache" if given is None else str(given)
        raise ConfigError(
            f"cells cannot be kept in {whose}: {error.strerror or error}; give another folder by --cache DIR"
        ) from None
    return private / "build" if given is None else given


def _summary_places(folder: Path, shard: str) -> dict[str, Path]:
    """Where the summaries go, by their suffix."""
    stem = f"build.{shard.replace('/', '-of-')}" if shard else "build"
    return {suffix: folder / f"{stem}{suffix}" for suffix in BEGINNINGS}


def _written(build: Mapping[str, Any], places: Mapping[str, Path]) -> tuple[Path, ...]:
    texts = {".json": json.dumps(build, indent=1) + "\n", ".junit.xml": junit(build), ".md": markdown(build)}
    for suffix, text in texts.items():
        write_text(places[suffix], text)
    return tuple(places.values())


@asked_by(BuildRequest)
def build(request: BuildRequest) -> BuildResult:
    """Builds the models of a modelc.yaml for its targets and precisions, and holds the packages to its gates.

    What was built before is kept, and proven by its key and checksums. Whatever ends the call, cells that are made are
    kept, and the same call goes on. build.json, build.junit.xml and build.md lie beside the packages.

    Returns:
        A BuildResult: `passed`, and what build.json says.

    Raises:
        ConfigError: Everything that is missing or wrong in the file, before anything is compiled.
        PackageError: A folder cannot be written.

    Example:
        >>> result = modelc.build("modelc.yaml", only=["net:*:*"], dry_run=True)
        >>> [cell["outcome"] for cell in result.build["cells"]]
        ['to build']
    """
    return build_request(request)

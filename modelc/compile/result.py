"""What a compilation gives, beside the package."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelc.database.recorded import Consulted
from modelc.errors import PackageError
from modelc.frontend.quantize.packing import Packing
from modelc.frontend.quantize.recipe import Recipe
from modelc.package import read_package
from modelc.runtime.shown import page, size, table
from modelc.space.constants import Within
from modelc.space.shared_packing import SharedPacking
from modelc.verify.report import Report

if TYPE_CHECKING:  # quantize/ makes CompileResults
    from modelc.compile.trade_off import Row


@dataclass(frozen=True)
class CompileResult:
    """`path` is None where the package was not written (`stop_after`); `seconds` are per stage; `kernels` counts
    distinct ones, `steps` their calls in the first variant; sizes are in bytes, `made_bytes` of what opening makes of
    the parameters, `file_bytes` of the model's files. `rejected` counts the schedules that were built for kernels and
    found invalid before anything was lowered; the next best was taken. Of the
    kernels, `chosen` are scheduled as the given choices say, `measured` as a record of `database` says, `carried` as
    records of the target's family say, the others by construction; `other_records` of their Tasks were made under other
    conditions, and left alone. `shared_packing` says how many constants are stored once for kernels that would have
    wanted them otherwise; `consulted` what the database was asked, and `answers` a digest of what it said."""

    path: Path | None
    target: str
    seconds: Mapping[str, float]
    threads: int
    kernels: int = 0
    steps: int = 0
    arena_bytes: int = 0
    params_bytes: int = 0
    made_bytes: int = 0
    file_bytes: int = 0
    library_bytes: int = 0
    rejected: int = 0
    chosen: int = 0
    measured: int = 0
    carried: int = 0
    database: Path | None = None
    other_records: int = 0
    shared_packing: SharedPacking = field(default_factory=SharedPacking)
    constants: Within = field(default_factory=Within)
    notes: tuple[str, ...] = ()
    report: Report | None = None
    consulted: Consulted | None = None
    answers: str = ""
    recipe: Recipe | Packing | None = None  # by which the model was quantized
    trade_off: tuple[Row, ...] = ()  # which a request asked for instead of a package

    def __repr__(self) -> str:
        seconds = f"{sum(self.seconds.values()):.1f} s"
        if self.path is None:
            return f"CompileResult(no package; {', '.join(self.seconds)} in {seconds})"
        parts = (("parameters", self.params_bytes), ("library", self.library_bytes), ("arena", self.arena_bytes))
        sizes = ", ".join(f"{part} {size(count)}" for part, count in parts)
        kernels = f"{self.kernels} kernels in {self.steps} steps"
        verified = self.report.sentence() if self.report else "not verified"
        return f"CompileResult({str(self.path)!r} for {self.target}: {kernels}; {sizes}; {seconds}; {verified})"

    def _repr_html_(self) -> str:
        """The stages, with a bar for the time of each, and the package's kernels, if it is still there."""
        rows = [(stage, f"{seconds:.2f}") for stage, seconds in self.seconds.items()]
        tables = [table(("stage", "seconds"), rows, list(self.seconds.values()))]
        if self.path is not None:
            with suppress(PackageError):
                tables.append(read_package(self.path)._repr_html_())
        return page(repr(self), *tables)

    @property
    def constructed(self) -> int:
        """How many kernels are scheduled by the price alone."""
        return self.kernels - self.chosen - self.measured - self.carried

    def to_json(self) -> dict[str, Any]:
        return {
            "path": None if self.path is None else str(self.path),
            "target": self.target,
            "seconds": {stage: round(s, 3) for stage, s in self.seconds.items()},
            "total_seconds": round(sum(self.seconds.values()), 3),
            "threads": self.threads,
            "kernels": self.kernels,
            "steps": self.steps,
            "arena_bytes": self.arena_bytes,
            "params_bytes": self.params_bytes,
            "made_bytes": self.made_bytes,
            "file_bytes": self.file_bytes,
            "library_bytes": self.library_bytes,
            "rejected_candidates": self.rejected,
            "chosen_tasks": self.chosen,
            "measured_tasks": self.measured,
            "carried_tasks": self.carried,
            "constructed_tasks": self.constructed,
            "database": None if self.database is None else str(self.database),
            "other_records": self.other_records,
            "agreement": self.shared_packing.to_json(),
            "constants": self.constants.to_json(),
            "notes": list(self.notes),
            "quantized": None if self.recipe is None else self.recipe.report(),
            "trade_off": [row.to_json() for row in self.trade_off],
            "verification": None if self.report is None else self.report.to_json()["summary"],
        }

"""NAME.tuning.json beside the package NAME.modelc: the rounds of its tuning, and what was timed at the end."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelc.errors import OutputError
from modelc.scratch import beside

if TYPE_CHECKING:
    from modelc.tune.command import TuneResult

SCHEMA, VERSION = "tuning", 1
MAX_FILE = 1 << 26


def place_of(package: Path) -> Path:
    return package.with_name(f"{package.stem}.tuning.json")


def write_tuning(tuning: TuneResult) -> Path | None:
    """Writes it; None, and nothing, for fewer than two rounds. Raises OutputError where it cannot be written."""
    log = tuning.search.log
    if len(log) < 2:
        return None
    path = place_of(tuning.path)
    times = {"untuned_ms": tuning.times.untuned_ms, "tuned_ms": tuning.times.tuned_ms, "ort_ms": tuning.times.ort_ms}
    tree = {
        "schema": SCHEMA,
        "version": VERSION,
        "model": tuning.model,
        **times,
        "log": [moment.to_json() for moment in log],
    }
    try:
        with beside(path, folder=False) as made:
            made.write_text(json.dumps(tree, indent=1) + "\n", encoding="utf-8")
            os.replace(made, path)
    except OSError as error:
        raise OutputError(f"the package is written, but {path} cannot be: {error.strerror}") from None
    return path


def read_tuning(package: Path) -> dict[str, Any] | None:
    """What lies beside a package, if that is what write_tuning() writes."""
    try:
        with place_of(package).open("rb") as file:
            tree = json.loads(file.read(MAX_FILE))
    except (OSError, ValueError, RecursionError):
        return None
    is_ours = isinstance(tree, dict) and (tree.get("schema"), tree.get("version")) == (SCHEMA, VERSION)
    is_tuning = is_ours and _rounds(tree.get("log"))
    return tree if is_tuning and all(_number(tree.get(key)) for key in ("untuned_ms", "tuned_ms", "ort_ms")) else None


def _rounds(log: Any) -> bool:
    keys = ("seconds", "trials", "predicted_seconds")
    return isinstance(log, Sequence) and all(
        isinstance(moment, Mapping) and all(_number(moment.get(key)) for key in keys) for moment in log
    )


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)

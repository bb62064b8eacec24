"""What scripts that measure Tasks share: their options, and the file that keeps a row for each Task measured."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modelc import __version__
from modelc.measure import Effort
from modelc.target import Target

CLOSE = 1.1  # over the best: who is measured again
LONGER = Effort(least=20, most=100, noise=0.003, seconds=0.5)
MODELS = Path(__file__).parent.parent / "models"
Row = dict[str, Any]  # of one Task, by its name: `task`


def parser(description: str, count: str, default: int, tasks: Iterable[str]) -> argparse.ArgumentParser:
    """A parser with the options of all such scripts; `--COUNT` says how many random ones of each Task are measured."""
    found = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument(f"--{count}", type=int, default=default, help=f"random {count} of each task")
    found.add_argument("--seed", type=int, default=0)
    found.add_argument("--constants", choices=("cold", "warm"), default="cold")
    found.add_argument("--target", default="native")
    found.add_argument("--tasks", nargs="+", default=list(tasks), metavar="MODEL:TASK")
    found.add_argument("--models", type=Path, default=MODELS, help="the folder of the networks")
    found.add_argument("--json", type=Path, help="keeps what was measured; what it has already is not measured again")
    return found


@dataclass(frozen=True)
class Kept:
    """Rows in the file `path` (None: in memory alone), all measured with the settings `about`."""

    path: Path | None
    about: Row
    rows: list[Row]

    @classmethod
    def of(cls, options: argparse.Namespace, count: str, target: Target) -> Kept:
        """The rows of an earlier run with the same settings. Raises SystemExit if its settings were others."""
        about = {"modelc": __version__, "target": target.key}
        about |= {key: getattr(options, key) for key in (count, "seed", "constants")}
        return cls.at(options.json, about)

    @classmethod
    def at(cls, path: Path | None, about: Row) -> Kept:
        """The rows of the file `path`, if there are some. Raises SystemExit if its settings were others."""
        if path is None or not path.exists():
            return cls(path, about, [])
        data = json.loads(path.read_text())
        if data["about"] != about:
            raise SystemExit(f"{path} was measured with {data['about']}, and this is {about}: say another file")
        return cls(path, about, data["rows"])

    def find(self, task: str) -> Row | None:
        return next((row for row in self.rows if row["task"] == task), None)

    def add(self, row: Row) -> None:
        """Takes a row, in the place of the Task's last one, and writes the file."""
        self.rows[:] = [*(one for one in self.rows if one["task"] != row["task"]), row]
        if self.path is not None:
            new = self.path.with_suffix(".new")
            new.write_text(json.dumps({"about": self.about, "rows": self.rows}, indent=1) + "\n")
            new.replace(self.path)

    def of_tasks(self, tasks: Iterable[str]) -> list[Row]:
        """The rows of `tasks`, in their order."""
        return [row for task in tasks if (row := self.find(task)) is not None]

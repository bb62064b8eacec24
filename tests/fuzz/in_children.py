"""Many cases, a few of them in each child: what importing and compiling leaves behind is used again, and a case that
ends its child costs no other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from forked import Case, Limits, Outcome, run_cases

CHUNK = 10  # cases of one child
MADE = "made.jsonl"  # what became of them, a line each
LIMITS = Limits(seconds=900.0, bytes=8 << 30)

Work = Callable[[int, Path], dict[str, Any]]  # of a number and a folder of its child's own, to what becomes JSON


def each(numbers: Iterable[int], work: Work, folder: Path, jobs: int) -> Iterator[tuple[int, dict[str, Any] | Outcome]]:
    """What `work` makes of each number, as it comes in; of one that ended its child, how it did."""
    waiting = list(numbers)
    while waiting:
        chunks = [waiting[k : k + CHUNK] for k in range(0, len(waiting), CHUNK)]
        waiting = []
        cases = (Case(str(k), partial(_chunk, chunk, work, folder / str(k)), chunk) for k, chunk in enumerate(chunks))
        for case, outcome in run_cases(cases, LIMITS, jobs):
            file = folder / case.name / MADE
            finished = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
            yield from zip(case.about, finished, strict=False)
            unfinished = case.about[len(finished) :]
            if unfinished:
                yield unfinished[0], outcome
                waiting += unfinished[1:]


def _chunk(numbers: Sequence[int], work: Work, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / MADE).unlink(missing_ok=True)
    for number in numbers:
        line = json.dumps(work(number, folder))
        with (folder / MADE).open("a") as file:
            file.write(line + "\n")

"""A dimension that is left open: the numbers that it may be, and those that matter most."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_RANGE = re.compile(
    r"(0|[1-9][0-9]{0,9})\.\.(0|[1-9][0-9]{0,9})(:[1-9][0-9]{0,9})?(@[1-9][0-9]{0,9}(,[1-9][0-9]{0,9})*)?"
)


@dataclass(frozen=True)
class Open(Sequence[int]):
    """What a dimension may be that a package leaves open, and the sizes that `matter` most, the usual one first."""

    numbers: range
    matter: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, at: Any) -> Any:
        return self.numbers[at]

    def __contains__(self, number: object) -> bool:
        return number in self.numbers

    def __str__(self) -> str:
        """1..512, 32..1280:32, 1..512@16,128: as the command line has it."""
        r = self.numbers
        step = f":{r.step}" if r.step > 1 else ""
        matter = f"@{','.join(map(str, self.matter))}" if self.matter else ""
        return f"{r.start}..{r[-1] if r else r.stop - 1}{step}{matter}"


def is_range(given: Any) -> bool:
    """Whether it is the text of an open dimension: 1..512, 32..1280:32, 1..512@16,128."""
    return isinstance(given, str) and bool(_RANGE.fullmatch(given))

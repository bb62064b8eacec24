"""What fuzzers share: their options, and the Report that counts what became of their cases.

Failures with equal signatures (exception and place in the code) are one finding, of which the first case is shown.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forked import GOOD, KINDS, Case, Outcome


def options(description: str, cases: int) -> argparse.ArgumentParser:
    """What every fuzzer is asked."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--cases", type=int, default=cases, metavar="N", help=f"how many (default: {cases})")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of what is drawn (default: 0)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="children at a time (default: 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write counts and failures there")
    return parser


@dataclass
class Report:
    """Outcomes by kind, and every signature once, with its first case."""

    seed: int
    kinds: Counter[str] = field(default_factory=Counter)
    signatures: Counter[tuple[str, str]] = field(default_factory=Counter)
    first: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    most_bytes: int = 0
    most_seconds: float = 0.0

    def add(self, case: Case, outcome: Outcome) -> bool:
        """True when the outcome is a failure with a signature that is new: worth minimising."""
        key = (outcome.kind, outcome.signature)
        new = key not in self.signatures
        self.kinds[outcome.kind] += 1
        self.signatures[key] += 1
        self.most_bytes = max(self.most_bytes, outcome.bytes)
        self.most_seconds = max(self.most_seconds, outcome.seconds)
        if new:
            self.first[key] = {"case": case.name, "said": outcome.said, "about": case.about}
        return new and not outcome.good

    def replace(self, outcome: Outcome, case: Case) -> None:
        """Shows a smaller case for the outcome's signature."""
        self.first[outcome.kind, outcome.signature] |= {"case": case.name, "about": case.about}

    @property
    def passed(self) -> bool:
        return bool(self.kinds) and all(kind in GOOD for kind in self.kinds)

    def to_json(self) -> dict[str, Any]:
        rows = [
            {"kind": kind, "signature": signature, "count": count, **self.first[kind, signature]}
            for (kind, signature), count in self.signatures.most_common()
        ]
        return {
            "seed": self.seed,
            "cases": self.kinds.total(),
            "kinds": {kind: self.kinds[kind] for kind in KINDS},
            "most_seconds": round(self.most_seconds, 2),
            "most_bytes": self.most_bytes,
            "failures": [row for row in rows if row["kind"] not in GOOD],
            "good": [{key: row[key] for key in ("kind", "signature", "count")} for row in rows if row["kind"] in GOOD],
        }

    def finish(self, file: Path | None = None) -> int:
        """Prints the counts and each failure once, writes the JSON to `file`; the exit code."""
        data = self.to_json()
        print(f"seed {self.seed}, {data['cases']} cases: " + ", ".join(f"{n} {k}" for k, n in data["kinds"].items()))
        print(f"at most {self.most_seconds:.1f} s and {self.most_bytes / 1e6:.0f} MB")
        for row in data["failures"]:
            print(f"\n{row['count']} x {row['kind']}: {row['signature']}\n  first in {row['case']}")
            print(textwrap.indent(row["said"][-600:], "  "))
        if file is not None:
            file.write_text(json.dumps(data, indent=1) + "\n")
        return 0 if self.passed else 1

"""What a compilation has asked a database, so that it can be said later whether the answers are still the same."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from modelc.database.compare import fastest
from modelc.database.record import Conditions
from modelc.database.store import Database


@dataclass
class Consulted:
    """Of Tasks, by their hash, the fastest record under which conditions; of networks, what they took in the end."""

    tasks: dict[str, Conditions] = field(default_factory=dict)
    networks: set[str] = field(default_factory=set)

    def answers(self, database: Database) -> str:
        """A digest of what the database says to all of it. Raises DatabaseError."""
        records = {key: fastest(list(database.records(key, asked))) for key, asked in self.tasks.items()}
        settled = {key: next(database.wholes(key), None) for key in self.networks}
        said = [
            {key: record.key for key, record in records.items() if record is not None},
            {key: [dict(whole.taken), whole.gained] for key, whole in settled.items() if whole is not None},
        ]
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        tasks = {key: asdict(asked) for key, asked in self.tasks.items()}
        return {"tasks": tasks, "networks": sorted(self.networks)}

    @staticmethod
    def from_json(tree: Mapping[str, Any]) -> Consulted:
        """Raises KeyError, TypeError where it is none."""
        return Consulted({key: Conditions(**asked) for key, asked in tree["tasks"].items()}, set(tree["networks"]))

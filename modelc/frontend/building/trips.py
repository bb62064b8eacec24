"""How often loops and recurrent nodes run, where a model is imported at several sizes for one package: those whose
number of iterations sizes say stay loops, whatever that number is at one of them; the others are laid open as they are
for fixed shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Trips:
    """What one import learns. `loops` are the nodes that stay loops; None: all of which that can be, for a look at
    `counts`, the iterations of each. `refused` says of nodes that should stay loops why they were laid open."""

    loops: frozenset[str] | None = None
    counts: dict[str, int] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def stays(self, node: str, count: int) -> bool:
        """Whether a node that runs `count` times here stays a loop."""
        self.counts[node] = count
        return self.loops is None or node in self.loops


def differing(looks: Sequence[Trips]) -> frozenset[str]:
    """The nodes that do not run equally often in all imports."""
    names = {name for look in looks for name in look.counts}
    return frozenset(name for name in names if len({look.counts.get(name) for look in looks}) > 1)

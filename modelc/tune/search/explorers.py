"""The explorers, by the name that users call them by."""

from __future__ import annotations

from collections.abc import Mapping

from modelc.errors import ConfigError
from modelc.tune.search.evolve import Evolve, Explorer, Random
from modelc.tune.search.ppo import Proximal

EXPLORERS: Mapping[str, type[Explorer]] = {"evolve": Evolve, "ppo": Proximal, "random": Random}


def explorer_class(name: str) -> type[Explorer]:
    """The explorer of that name. Raises ConfigError."""
    if name not in EXPLORERS:
        raise ConfigError(f"there is no explorer {name[:80]!r}; the explorers are {', '.join(EXPLORERS)}")
    return EXPLORERS[name]

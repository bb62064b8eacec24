"""How much worse outputs are by a user's metric."""

from __future__ import annotations

import importlib.util
import inspect
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from modelc.compile.request import Metric
from modelc.errors import ConfigError
from modelc.quantize.drop import Drop, rows_of
from modelc.quantize.samples import Arrays
from modelc.signals import no_exit

EXPECTED = "expected FILE.py:FUNCTION, a function of the outputs and of the sample, both arrays by name"


class ByMetric:
    """What judges outputs by the mean of a user's metric over the samples: more is better, and the drop is what is
    lost, as a share of what the float model has. A metric of three arguments is also given the float model's outputs
    for the sample."""

    def __init__(self, place: str, metric: Metric, wanted: Sequence[Arrays], samples: Sequence[Arrays]) -> None:
        self.place, self.metric, self.wanted, self.samples = place, metric, wanted, samples
        self.compares = takes_three(metric)
        self.values = self._values(wanted)
        self.whole = sum(self.values) / len(self.values)

    @property
    def what(self) -> str:
        return f"metric {self.place}, {self.whole:.6g} in float32"

    @property
    def step(self) -> float:
        return 1 / rows_of(self.wanted, next(iter(self.wanted[0])), 1)

    @property
    def says(self) -> tuple[str, ...]:
        """That the metric may see nothing: it is 0, or the same on all samples, also with another sample's outputs."""
        said = f"the metric {self.place[:200]} is {self.values[0]:.6g} on every sample that is held back, in float32"
        if not any(self.values):
            return (f"{said} too: it may see nothing of the outputs, and no drop then",)
        of_others = self._values((*self.wanted[1:], self.wanted[0])) if len({*self.values}) == 1 else []
        if len(of_others) < 2 or {*of_others} != {*self.values}:
            return ()
        return (f"{said}, and with the outputs of another sample too: it may see nothing of the outputs",)

    def drop(self, outputs: Sequence[Arrays]) -> Drop:
        values = self._values(outputs)
        value = sum(values) / len(values)
        lost = self.whole - value
        return Drop(lost / abs(self.whole) if self.whole else lost, f"metric {value:.6g}, {self.whole:.6g} in float32")

    def _values(self, outputs: Sequence[Arrays]) -> list[float]:
        return [self._value(*each) for each in zip(outputs, self.samples, self.wanted, strict=True)]

    def _value(self, outputs: Arrays, sample: Arrays, wanted: Arrays) -> float:
        given = (outputs, sample, wanted) if self.compares else (outputs, sample)
        try:
            with no_exit():
                value = float(self.metric(*map(dict, given)))
        except Exception as error:  # whatever a user's function raises
            raise ConfigError(
                f"the metric {self.place[:200]} failed: {type(error).__name__}: {str(error)[:300]}; it was given the "
                f"outputs {', '.join(map(repr, outputs))} and the sample {', '.join(map(repr, sample))}"
            ) from error
        if not math.isfinite(value):
            raise ConfigError(f"the metric {self.place[:200]} gave {value}; expected a finite number, more for better")
        return value


def takes_three(metric: Metric) -> bool:
    """Whether a metric needs three arguments."""
    try:
        parameters = inspect.signature(metric).parameters.values()
    except (TypeError, ValueError):
        return False
    needed = [p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(needed) == 3


def metric_at(place: str) -> Metric:
    """The function that FILE.py:FUNCTION names, which executes the file. Raises ConfigError."""
    where, _, name = place.rpartition(":")
    if not where.endswith(".py") or not name:
        raise ConfigError(f"the metric is {place[:200]!r}; {EXPECTED}")
    if not Path(where).is_file():
        raise ConfigError(f"the metric {place[:200]} cannot be loaded: there is no file {where}; {EXPECTED}")
    try:
        spec = importlib.util.spec_from_file_location(Path(where).stem, where)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        with no_exit():
            spec.loader.exec_module(module)
    except Exception as error:  # whatever a user's file raises
        raise ConfigError(
            f"the metric {place[:200]} cannot be loaded: {type(error).__name__}: {str(error)[:300]}; {EXPECTED}"
        ) from error
    metric: Metric | None = getattr(module, name, None)
    if not callable(metric):
        raise ConfigError(f"the metric {place[:200]}: {where} has no function {name!r}")
    return metric


def check_metric(metric: Any) -> None:
    """Raises ConfigError for what is neither the place of a function nor a function."""
    if not (metric is None or isinstance(metric, str) or callable(metric)):
        raise ConfigError(f"the metric is {repr(metric)[:80]}; {EXPECTED}; or that function itself")

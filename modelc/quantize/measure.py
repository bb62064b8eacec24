"""How much worse the outputs of a quantized model are than those of the float model, on the samples that are held back:
by themselves, or by a user's metric."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from modelc.compile.request import Metric
from modelc.errors import ConfigError
from modelc.quantize.samples import HELD_BACK, Arrays
from modelc.signals import no_exit

EXPECTED = "expected FILE.py:FUNCTION, a function of the outputs and of the sample, both arrays by name"


class Drop(NamedTuple):
    """`share` is what is compared with --max-drop; `said` is the sentence."""

    share: float
    said: str


def relative_error(outputs: Sequence[Arrays], wanted: Sequence[Arrays], names: Sequence[str]) -> float:
    """The greatest relative error, root of the mean square, of the outputs `names`."""
    worst = 0.0
    for name in names:
        off, size = 0.0, 0.0
        for made, right in zip(outputs, wanted, strict=True):
            exact = right[name].astype(np.float64)
            off += float(np.square(made[name] - exact).sum())
            size += float(np.square(exact).sum())
        worst = max(worst, math.sqrt(off / size) if size else float(off > 0))
    return worst if math.isfinite(worst) else math.inf


def real_outputs(wanted: Sequence[Arrays]) -> tuple[str, ...]:
    """The outputs that are real numbers, and finite."""
    return tuple(
        name
        for name, array in wanted[0].items()
        if array.dtype.kind == "f" and array.size and all(np.isfinite(outputs[name]).all() for outputs in wanted)
    )


class Agreement:
    """What judges outputs without labels, sample by sample, against those of the float model: of an output that looks
    like class scores, how seldom another class has the highest; of others the relative error. `what` names it, `step`
    is the share that one of what it counts is of all (0 where it measures), `says` what else is noteworthy."""

    says: tuple[str, ...] = ()

    def __init__(self, wanted: Sequence[Arrays], scores: Sequence[str]) -> None:
        self.wanted, self.names = wanted, real_outputs(wanted)
        self.scores = tuple(name for name in scores if name in self.names and wanted[0][name].shape[-1] > 1)
        self.others = tuple(name for name in self.names if name not in self.scores)
        if not self.names:
            raise ConfigError("no output of the model is of real numbers: give --metric FILE.py:FUNCTION to judge by")

    @property
    def what(self) -> str:
        parts = [f"classes of {', '.join(map(repr, self.scores))}"] * bool(self.scores)
        parts += [f"relative error of {', '.join(map(repr, self.others))}"] * bool(self.others)
        return " and ".join(parts)

    @property
    def step(self) -> float:
        return max((1 / rows_of(self.wanted, name, -1) for name in self.scores), default=0.0)

    def drop(self, outputs: Sequence[Arrays]) -> Drop:
        said, share = list[str](), 0.0
        for name in self.scores:
            same = [
                np.argmax(made[name], -1) == np.argmax(right[name], -1)
                for made, right in zip(outputs, self.wanted, strict=True)
            ]
            rows, agreeing = sum(x.size for x in same), sum(int(np.sum(x)) for x in same)
            error = relative_error(outputs, self.wanted, [name])
            said.append(f"{agreeing} of {rows} classes of {name!r} are the same, relative error {error:.2%}")
            share = max(share, 1 - agreeing / rows)
        if self.others:
            error = relative_error(outputs, self.wanted, self.others)
            said.append(f"relative error {error:.2%} of {', '.join(map(repr, self.others))}")
            share = max(share, error)
        return Drop(share, "; ".join(said))


class ByMetric:
    """The same by the mean of a user's metric over the samples: more is better, and the drop is what is lost, as a
    share of what the float model has."""

    def __init__(self, place: str, metric: Metric, wanted: Sequence[Arrays], samples: Sequence[Arrays]) -> None:
        self.place, self.metric, self.wanted, self.samples = place, metric, wanted, samples
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
        if any(self.values):
            return ()
        return (
            f"the metric {self.place[:200]} is 0 on every sample that is held back, in float32 too: it may see nothing "
            "of the outputs, and no drop then",
        )

    def drop(self, outputs: Sequence[Arrays]) -> Drop:
        values = self._values(outputs)
        value = sum(values) / len(values)
        lost = self.whole - value
        return Drop(lost / abs(self.whole) if self.whole else lost, f"metric {value:.6g}, {self.whole:.6g} in float32")

    def _values(self, outputs: Sequence[Arrays]) -> list[float]:
        return [self._value(made, sample) for made, sample in zip(outputs, self.samples, strict=True)]

    def _value(self, outputs: Arrays, sample: Arrays) -> float:
        try:
            with no_exit():
                value = float(self.metric(dict(outputs), dict(sample)))
        except Exception as error:  # whatever a user's function raises
            raise ConfigError(
                f"the metric {self.place[:200]} failed: {type(error).__name__}: {str(error)[:300]}; it was given the "
                f"outputs {', '.join(map(repr, outputs))} and the sample {', '.join(map(repr, sample))}"
            ) from error
        if not math.isfinite(value):
            raise ConfigError(f"the metric {self.place[:200]} gave {value}; expected a finite number, more for better")
        return value


Measure = Agreement | ByMetric


def rows_of(outputs: Sequence[Arrays], name: str, dims: int) -> int:
    """How many rows an output has in all samples, along its first `dims` dimensions."""
    return sum(math.prod(made[name].shape[:dims]) for made in outputs) or 1


def unseen(measure: Measure, max_drop: float) -> tuple[str, ...]:
    """What to say where a drop that is not allowed would not be seen."""
    if not 0 < max_drop < measure.step:
        return measure.says
    return (
        *measure.says,
        f"a drop of {max_drop:.2%} cannot be seen: one of the {1 / measure.step:.0f} rows that are held back is "
        f"{measure.step:.2%}; calibrate on {HELD_BACK / max_drop:,.0f} of them, or allow more by --max-drop",
    )


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


def measure_of(
    metric: str | Metric | None, wanted: Sequence[Arrays], samples: Sequence[Arrays], scores: Sequence[str]
) -> Measure:
    """The user's metric, or the one at a place; or what can be said without."""
    if metric is None:
        return Agreement(wanted, scores)
    if isinstance(metric, str):
        return ByMetric(metric, metric_at(metric), wanted, samples)
    return ByMetric(getattr(metric, "__name__", type(metric).__name__), metric, wanted, samples)

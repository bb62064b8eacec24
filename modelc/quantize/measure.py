"""How much worse the outputs of a quantized model are than those of the float model, on the samples that are held back:
each output by what it looks like, or all of them by a user's metric."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from modelc.compile.request import Metric
from modelc.errors import ConfigError
from modelc.quantize.boxes import Boxes, boxes_among
from modelc.quantize.by_metric import ByMetric, metric_at
from modelc.quantize.drop import Drop, real_outputs, relative_error, rows_of
from modelc.quantize.samples import HELD_BACK, Arrays

LEAST_WIDTH = 32  # numbers of a row that is an embedding
TIE = 1e-3  # of cosine similarity: neighbours that are as near as that are the same


class Judge(Protocol):
    """What judges some outputs: `what` it looks at, and `step`, the share that one of what it counts is of all (0 where
    it measures)."""

    @property
    def what(self) -> str: ...

    @property
    def step(self) -> float: ...

    def drop(self, outputs: Sequence[Arrays]) -> Drop: ...


class Classes:
    """How seldom another class has the highest score."""

    def __init__(self, wanted: Sequence[Arrays], name: str) -> None:
        self.wanted, self.name = wanted, name
        self.what, self.step = f"classes of {name!r}", 1 / rows_of(wanted, name, -1)

    def drop(self, outputs: Sequence[Arrays]) -> Drop:
        name = self.name
        same = [
            np.argmax(made[name], -1) == np.argmax(right[name], -1)
            for made, right in zip(outputs, self.wanted, strict=True)
        ]
        rows, agreeing = sum(x.size for x in same), sum(int(np.sum(x)) for x in same)
        error = relative_error(outputs, self.wanted, [name])
        said = f"{agreeing} of {rows} classes of {name!r} are the same, relative error {error:.2%}"
        return Drop(1 - agreeing / rows, said)


class Embeddings:
    """How far rows turn, as 1 - cosine, on average; where there is one row for each element of a batch, also how seldom
    the nearest other row is another. Rows of tokens that a mask among the inputs leaves out are."""

    def __init__(self, wanted: Sequence[Arrays], name: str, samples: Sequence[Arrays]) -> None:
        self.name, self.masks = name, [_mask_of(s, right[name]) for s, right in zip(samples, wanted, strict=True)]
        self.rows = self._rows(wanted)
        self.ranked = wanted[0][name].ndim == 2 and len(self.rows) > 2
        self.what = f"cosine{' and nearest rows' * self.ranked} of {name!r}"
        self.step = 1 / len(self.rows) if self.ranked else 0.0
        if self.ranked:
            self.near = _similarities(self.rows)

    def drop(self, outputs: Sequence[Arrays]) -> Drop:
        made = self._rows(outputs)
        share = float(np.clip(1 - np.einsum("rk,rk->r", made, self.rows).mean(), 0, 1))
        said = f"mean cosine {1 - share:.4f} of {len(made)} rows of {self.name!r}"
        if self.ranked:
            nearest = self.near[np.arange(len(made)), _similarities(made).argmax(1)]
            agreeing = int((nearest >= self.near.max(1) - TIE).sum())
            said += f", {agreeing} of whose nearest rows are the same"
            share = max(share, 1 - agreeing / len(made))
        return Drop(share, said)

    def _rows(self, outputs: Sequence[Arrays]) -> NDArray[np.float64]:
        """All rows, in their length 1."""
        each = [made[self.name].astype(np.float64)[mask] for made, mask in zip(outputs, self.masks, strict=True)]
        rows = np.concatenate(each)
        rows = np.where(np.isfinite(rows), rows, 0)
        unit: NDArray[np.float64] = rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-30)
        return unit


class Relative:
    """The greatest relative error of outputs."""

    def __init__(self, wanted: Sequence[Arrays], names: Sequence[str]) -> None:
        self.wanted, self.names, self.step = wanted, names, 0.0
        self.what = f"relative error of {', '.join(map(repr, names))}"

    def drop(self, outputs: Sequence[Arrays]) -> Drop:
        error = relative_error(outputs, self.wanted, self.names)
        return Drop(error, f"relative error {error:.2%} of {', '.join(map(repr, self.names))}")


class Agreement:
    """What judges outputs without labels, against those of the float model: the greatest drop of several judges.
    `scores` and `embeddings` are outputs that look like that; detections are recognised by their numbers."""

    def __init__(
        self,
        wanted: Sequence[Arrays],
        samples: Sequence[Arrays],
        scores: Sequence[str] = (),
        embeddings: Sequence[str] = (),
    ) -> None:
        names = real_outputs(wanted)
        if not names:
            raise ConfigError("no output of the model is of real numbers: give --metric FILE.py:FUNCTION to judge by")
        self.names, self.judges = names, list[Judge]()
        for name in names:
            shape = wanted[0][name].shape
            if name in scores and shape[-1] > 1:
                self.judges.append(Classes(wanted, name))
            elif name in embeddings and len(shape) in (2, 3) and shape[-1] >= LEAST_WIDTH:
                self.judges.append(Embeddings(wanted, name, samples))
        judged = {judge.name for judge in self.judges if isinstance(judge, Classes | Embeddings)}
        if (detections := boxes_among(wanted, [name for name in names if name not in judged])) is not None:
            self.judges.append(Boxes(wanted, detections))
            judged |= {*detections.names}
        if others := [name for name in names if name not in judged]:
            self.judges.append(Relative(wanted, others))
        same = [name for name in names if len(wanted) > 1 and _is_constant(wanted, name)]
        constant = f"the float model gives the same {', '.join(map(repr, same))} for every sample that is held back: "
        self.says = (f"{constant}a drop there says little",) if same else ()

    @property
    def what(self) -> str:
        return " and ".join(judge.what for judge in self.judges)

    @property
    def step(self) -> float:
        return max(judge.step for judge in self.judges)

    def drop(self, outputs: Sequence[Arrays]) -> Drop:
        drops = [judge.drop(outputs) for judge in self.judges]
        return Drop(max(drop.share for drop in drops), "; ".join(drop.said for drop in drops))


Measure = Agreement | ByMetric


def unseen(measure: Measure, max_drop: float) -> tuple[str, ...]:
    """What to say where a drop that is not allowed would not be seen."""
    if not 0 < max_drop < measure.step:
        return measure.says
    return (
        *measure.says,
        f"a drop of {max_drop:.2%} cannot be seen: one of the {1 / measure.step:.0f} rows that are held back is "
        f"{measure.step:.2%}; calibrate on {HELD_BACK / max_drop:,.0f} of them, or allow more by --max-drop",
    )


def measure_of(
    metric: str | Metric | None,
    wanted: Sequence[Arrays],
    samples: Sequence[Arrays],
    scores: Sequence[str],
    embeddings: Sequence[str],
) -> Measure:
    """The user's metric, or the one at a place; or what can be said without."""
    if metric is None:
        return Agreement(wanted, samples, scores, embeddings)
    if isinstance(metric, str):
        return ByMetric(metric, metric_at(metric), wanted, samples)
    return ByMetric(getattr(metric, "__name__", type(metric).__name__), metric, wanted, samples)


def _mask_of(sample: Arrays, rows: NDArray[Any]) -> NDArray[np.bool_]:
    """Which rows of an output a mask among the inputs keeps: an input that is called so, of 0 and 1, by row."""
    for name, array in sample.items():
        of_rows = "mask" in name.lower() and array.shape == rows.shape[:-1] and array.ndim > 1
        if of_rows and array.any() and np.isin(array, (0, 1)).all():
            return array.astype(bool)
    return np.ones(rows.shape[:-1], bool)


def _similarities(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of each row to each other one; itself is as far as can be."""
    similar: NDArray[np.float64] = rows @ rows.T
    np.fill_diagonal(similar, -2)
    return similar


def _is_constant(outputs: Sequence[Arrays], name: str) -> bool:
    first = outputs[0][name]
    return all(np.array_equal(made[name], first) for made in outputs[1:])

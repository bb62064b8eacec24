"""Where a departure of an output begins: the kernel whose values leave ONNX Runtime's own by more than roundoff."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

NOTABLE = 0.5  # of an output's departure: a difference below is one that grows on the way


@dataclass(frozen=True)
class Apart:
    """How far a value that `kernel` wrote is from ONNX Runtime's in the whole model: `difference`, as a relative root
    mean square; its largest, over the value's root mean square (`of_scale`); whether some element is `beyond`
    roundoff."""

    kernel: str
    value: str
    difference: float
    of_scale: float
    beyond: bool


@dataclass(frozen=True)
class Beginning:
    """A `difference` at a value, which a kernel wrote and which ONNX Runtime's piece of the model confirms, that grows
    by `factor` up to an output."""

    kernel: str
    value: str
    difference: float
    factor: float

    def sentence(self) -> str:
        return (
            f"a difference of {self.difference:.1e} at {self.value!r} (kernel {self.kernel}) grows by {self.factor:.1e}"
        )


def beginning_of(departure: float, output: str, before: Collection[str], apart: Sequence[Apart]) -> Beginning | None:
    """Where the `departure` of an output, a relative root mean square, begins; `before` are the values that it is made
    of, `apart` what kernels wrote, in the order of execution. It begins at the first value beyond roundoff; where that
    has the whole departure already, as a choice among nearly equal numbers has, at the largest difference before. None
    where no value before the output differs: it begins within the kernel that writes it."""
    on_the_way = [x for x in apart if x.value in before and x.value != output and x.difference > 0]
    first = next((k for k, x in enumerate(on_the_way) if x.beyond), len(on_the_way))
    if first < len(on_the_way) and on_the_way[first].difference <= NOTABLE * departure:
        start = on_the_way[first]
    elif first:
        start = max(on_the_way[:first], key=lambda x: x.difference)
    else:
        return None
    return Beginning(start.kernel, start.value, start.difference, departure / start.difference)


def made_of(reads: Mapping[str, Sequence[str]], output: str) -> set[str]:
    """The values that `output` is made of, itself among them, where `reads` says what each is made of at once."""
    pending, values = [output], set[str]()
    while pending:
        name = pending.pop()
        if name not in values:
            values.add(name)
            pending += reads.get(name, ())
    return values

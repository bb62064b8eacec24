"""What is fixed of a model's inputs: fields that a Request and the section `inputs` of a configuration have alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from modelc.compile.opened import is_range

if TYPE_CHECKING:
    from modelc.frontend.steering.flags import Given, Shapes


def _by_name(fits: Callable[[Any], bool], expected: str) -> Any:
    """A field that maps names to what fits; a configuration that says something else is told what was expected."""
    return field(default_factory=dict, metadata={"fits": fits, "expected": expected})


@dataclass(frozen=True)
class Inputs:
    """What is fixed of a model's inputs, as it is worked with: by a Request, or by the section `inputs` of a
    configuration, which says no shapes."""

    shapes: tuple[Shapes, ...] = ()
    dims: Mapping[str, Sequence[int]] = _by_name(
        lambda given: (
            is_range(given) or (all(type(n) is int and 0 <= n < 1 << 31 for n in _each(given)) and bool(_each(given)))
        ),
        "a whole number, a list of them, or a range for a package of any size, 1..512, 32..1280:32 or 1..512@16,128",
    )
    constants: Mapping[str, Given] = _by_name(
        lambda given: isinstance(given, str) or all(isinstance(one, int | float) for one in _each(given)),
        "a number, true, false, a list of them, or the path of a .npy file",
    )
    states: Mapping[str, str] = _by_name(lambda given: isinstance(given, str), "the name of an output")
    bounds: Mapping[str, int] = _by_name(
        lambda given: type(given) is int and 0 < given < 1 << 31, "a whole number from 1"
    )

    def over(self, under: Inputs) -> Inputs:
        """These, and of `under` what they leave open."""
        return Inputs(self.shapes, **{name: {**getattr(under, name), **getattr(self, name)} for name in BY_NAME})


BY_NAME = tuple(row.name for row in fields(Inputs) if "fits" in row.metadata)


def _each(given: Any) -> list[Any]:
    return given if isinstance(given, list) else [given]

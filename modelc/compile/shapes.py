"""Shapes and sizes that a user of the library gives, as sets of shapes: no room below the frontend is imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import index

from modelc.errors import InputError
from modelc.frontend.steering.flags import Shapes

GivenShapes = Mapping[str, Sequence[int]]  # of inputs, by name


def shape_sets(given: GivenShapes | Sequence[GivenShapes]) -> tuple[Shapes, ...]:
    """Sets of shapes, a variant each: what was given is one, or several. Raises InputError."""
    several = (given,) if isinstance(given, Mapping) else given
    try:
        return tuple({name: tuple(map(index, shape)) for name, shape in one.items()} for one in several)
    except (TypeError, AttributeError):
        raise InputError(
            f"shapes is {str(given)[:200]}; expected whole numbers by input, such as {{'x': (1, 3, 224, 224)}}, or a "
            "list of such, each of which makes a variant"
        ) from None


def dim_sizes(given: Mapping[str, int | Sequence[int]]) -> dict[str, tuple[int, ...]]:
    """Numbers for free dimensions by name. Raises InputError."""
    try:
        return {name: (index(n),) if hasattr(n, "__index__") else tuple(map(index, n)) for name, n in given.items()}
    except (TypeError, AttributeError):
        raise InputError(
            f"dims is {str(given)[:200]}; expected a whole number for each dimension, such as {{'batch': 8}}, or "
            "several, each of which makes a variant"
        ) from None

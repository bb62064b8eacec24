"""Arrays of dtypes that NumPy does not have, as files hold them."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray


def as_bits(array: NDArray[Any]) -> NDArray[Any]:
    """An array of a dtype that is not NumPy's own (of ml_dtypes) as its bits, in unsigned integers of the same size."""
    return array if array.dtype.isbuiltin == 1 else array.view(f"u{array.dtype.itemsize}")

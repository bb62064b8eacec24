"""Rounding to four bits by samples (Frantar et al., GPTQ, 2023): rows of a matrix [K, N] are rounded one after another,
and what each is off by is taken off by those that are still to be rounded, as the products of what the matrix is
multiplied with say. Scales and zero points stay as they are, so that it matters little which row comes first: those
that weigh most do.

With H = X^T X + 1 % of its mean diagonal, U^T U = H^-1 and U upper triangular, rounding row k leaves E = (w_k - q_k) /
U_kk, and w_j -= U_kj E for j > k. Rows that follow a group of GROUP get what it leaves at once.
"""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from modelc.errors import ConfigError
from modelc.frontend.quantize.weights import MIDDLE, MOST, Floats, FourBits

DAMPING = 0.01  # of the mean of the diagonal
GROUP = 32  # rows


@dataclass(frozen=True)
class Inputs:
    """The rows X that a matrix is multiplied with, of which `gram` is X^T X."""

    gram: NDArray[np.float64]

    @cached_property
    def solved(self) -> tuple[NDArray[np.int64], Floats] | None:
        """The order in which rows of the matrix are rounded, and U in that order; None where H cannot be inverted."""
        diagonal = np.diag(self.gram)
        order = np.argsort(-diagonal, kind="stable")
        damped = self.gram[np.ix_(order, order)] + np.diag(np.full(len(order), DAMPING * float(diagonal.mean())))
        if not np.isfinite(damped).all():
            return None
        try:
            lower = np.linalg.cholesky(np.linalg.inv(damped))
        except np.linalg.LinAlgError:
            return None
        return order, np.ascontiguousarray(lower.T, np.float32)

    def error(self, weights: Floats, rounded: Floats) -> float:
        """The relative error of products with `rounded` in the place of `weights`."""
        size = self._squares(weights.astype(np.float64))
        off = max(self._squares(rounded.astype(np.float64) - weights), 0.0)
        return (off / size) ** 0.5 if size > 0 else float(off > 0)

    def _squares(self, matrix: NDArray[np.float64]) -> float:
        return float(np.einsum("kn,kn->", matrix, self.gram @ matrix))


def compensated(weights: Floats, stored: FourBits, inputs: Inputs) -> FourBits | None:
    """`stored` with numbers by which products of these inputs are nearer; None where they say nothing."""
    if inputs.solved is None:
        return None
    order, upper = inputs.solved
    left = np.ascontiguousarray(weights[order], np.float32)
    scales = stored.scales.repeat(stored.block, 0)[order]
    middle = np.full_like(scales, MIDDLE)
    if stored.zeros is not None:
        middle = stored.zeros.repeat(stored.block, 0)[order].astype(np.float32)
    numbers = np.empty(left.shape, np.uint8)
    for first in range(0, len(left), GROUP):
        last = min(first + GROUP, len(left))
        errors = np.empty((last - first, left.shape[1]), np.float32)
        for k in range(first, last):
            rounded = np.clip(np.rint(left[k] / scales[k]) + middle[k], 0, MOST)
            numbers[k] = rounded
            errors[k - first] = (left[k] - (rounded - middle[k]) * scales[k]) / upper[k, k]
            left[k + 1 : last] -= np.outer(upper[k, k + 1 : last], errors[k - first])
        left[last:] -= upper[first:last, last:].T @ errors
    result = np.empty_like(numbers)
    result[order] = numbers
    return stored._replace(numbers=result)


# --- as text --------------------------------------------------------------------------------------------------------


def moves_of(nearest: FourBits, chosen: FourBits) -> str:
    """By how much each number of `chosen` is another than of `nearest`, for choices.json."""
    steps = chosen.numbers.astype(np.int8) - nearest.numbers.astype(np.int8)
    return b64encode(zlib.compress(steps.tobytes())).decode()


def moved(nearest: FourBits, moves: str) -> FourBits:
    """The inverse. Raises ConfigError where `moves` are of another matrix."""
    size = nearest.numbers.size
    try:
        inflate = zlib.decompressobj()
        steps = np.frombuffer(inflate.decompress(b64decode(moves, validate=True), size + 1), np.int8)
        numbers = nearest.numbers + steps.reshape(nearest.numbers.shape)
    except (ValueError, zlib.error) as error:
        raise ConfigError(f"the choices move weights of 4 bits otherwise than this model has them: {error}") from None
    if numbers.min(initial=0) < 0 or numbers.max(initial=0) > MOST:
        raise ConfigError("the choices move weights of 4 bits beyond 4 bits: they are of another model")
    return nearest._replace(numbers=numbers.astype(np.uint8))

"""Inputs that are shorter than a variant, where packages are padded: of which lengths, and what to say of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.package import Manifest, Package, TensorInfo
from modelc.package.padding import Padding, variant_for

MOST = 4  # of a variant


def shorter(manifest: Manifest, number: int, seed: int) -> Iterator[tuple[TensorInfo, ...]]:
    """The inputs of a variant at lengths for which it is the smallest that takes them: the least, one less than its
    own, and drawn ones."""
    padding, variants = manifest.padding, [plan.inputs for plan in manifest.variants]
    if padding is None:
        return
    extents = [_extents(padding, tensors) for tensors in variants]
    own = extents[number]
    least = [1 + max((other[d] for other in extents if other[d] < n), default=0) for d, n in enumerate(own)]
    rng = np.random.default_rng((seed, number))
    tried = [tuple(least), tuple(max(n - 1, low) for n, low in zip(own, least, strict=True))]
    tried += [(*own[:d], low, *own[d + 1 :]) for d, low in enumerate(least)]
    tried += [tuple(int(rng.integers(low, n + 1)) for n, low in zip(own, least, strict=True)) for _ in range(MOST)]
    yielded = 0
    for lengths in dict.fromkeys(tried):
        tensors = _resized(padding, variants[number], lengths)
        chosen = variant_for(variants, padding, [t.shape for t in tensors])
        if lengths != own and chosen == number and yielded < MOST:
            yielded += 1
            yield tensors


def _extents(padding: Padding, tensors: Sequence[TensorInfo]) -> tuple[int, ...]:
    extents = padding.extents([t.shape for t in tensors])
    assert extents is not None, "the manifest was checked"
    return extents


def _resized(padding: Padding, tensors: Sequence[TensorInfo], lengths: tuple[int, ...]) -> tuple[TensorInfo, ...]:
    shapes = [list(t.shape) for t in tensors]
    for place in padding.inputs:
        shapes[place.tensor][place.axis] = lengths[place.dim]
    return tuple(replace(t, shape=tuple(shape)) for t, shape in zip(tensors, shapes, strict=True))


def padded_to(package: Package, number: int, feed: Mapping[str, NDArray[Any]]) -> str:
    """How inputs are filled up for a variant, in words; nothing where they are of its size."""
    padding, tensors = package.manifest.padding, package.manifest.variants[number].inputs
    shapes = [feed[t.name].shape for t in tensors]
    if padding is None or shapes == [t.shape for t in tensors]:
        return ""
    given, own = padding.extents(shapes), _extents(padding, tensors)
    assert given is not None
    return ", ".join(f"{name} of {n} filled up to {m}" for name, n, m in zip(padding.dims, given, own, strict=True))

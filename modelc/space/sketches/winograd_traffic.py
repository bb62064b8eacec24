"""What passes between the caches while Winograd's products go on, for a population of points at once.

Transformed tiles and products are much larger than the maps they are made of: a chunk of them either stays in a core's
second-level cache, or is written to what lies beyond and read again there. Scratch is each thread's own, so what a last
cache that cores share holds is that of all threads together.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from modelc.ir.expr import DTYPES
from modelc.space.analysis.footprint import Ints
from modelc.space.cost.moving import constant_seconds
from modelc.space.sketch import Bools, Floats
from modelc.space.sketches.winograd_roles import Roles, Shape
from modelc.space.tiling.tiled import Tiled
from modelc.target import Target


@dataclass(frozen=True)
class Tilings:
    """What of points the traffic depends on: row p of every array belongs to point p."""

    rows: Ints  # [P x row iterators in the register tile]
    vectors: Ints  # [P]
    chunk: Ints  # [P] rows of tiles
    by_rows: Bools  # [P] panels are streamed past rows
    beside: Ints  # [P] iterations of loops outside rows of tiles that the kernel does not move with, inside its own
    kernel_passes: Ints  # [P] times that products go through the whole kernel: such a loop is outermost
    tile_passes: Ints  # [P] times that they go through all tiles: the loop over panels is outermost


@dataclass(frozen=True)
class Traffic:
    """Bytes [P] that all cores together move, and among how many they find them."""

    near: Floats  # from the second-level cache, beside loads whose cycles are known
    kernel: int  # once, from where a network left it
    more: int  # of these, than before it was transformed
    reread: Floats  # of the kernel, from beyond the second-level cache for another chunk
    again: Floats  # from there: tiles and products both ways
    demanded: Floats  # of these, tiles that the CPU's own prefetcher brings to the products
    scattered: Floats  # what transforms write or read beyond it vector by vector, each in the plane of another point
    held: Bools  # whether the last cache, or each core's own, holds all that is touched in between
    cores: int

    def again_seconds(self, target: Target, share: Floats) -> Floats:
        """Of moving what is moved again beside arithmetic [P], where the busiest core has that share of the products:
        all but the kernel."""
        return np.asarray(self.again / self.rate(target, share), np.float64)

    def demanded_seconds(self, target: Target, share: Floats) -> Floats:
        """Of these, of what the CPU's own prefetcher brings to the products [P]."""
        return np.asarray(self.demanded / self.rate(target, share), np.float64)

    def scattered_seconds(self, target: Target, share: Floats) -> Floats:
        """Of lines that each lie far from the one before, at the part of a demanded bandwidth that is had there [P]:
        each core waits for lines of its own."""
        cost = target.cost
        apart = np.where(self.held, cost.held_scattered_ratio, cost.scattered_share) / cost.demanded_share
        return np.asarray(share * self.scattered / (self.bandwidth(target, 1) * apart), np.float64)

    def kernel_seconds(self, target: Target, share: Floats) -> Floats:
        """Of moving the kernel [P]: once from where a network left it, then from nearer by for other chunks."""
        return constant_seconds(self.kernel, target, self.more, self.cores) + self.reread / self.rate(target, share)

    def bandwidth(self, target: Target, cores: int) -> Floats:
        """Bandwidth from beyond the second-level cache in bytes per second [P]: of one core from a cache, or of `cores`
        cores from memory."""
        return 1e9 * np.where(self.held, target.caches[-1].bandwidth_gbs, target.memory_gbs(cores))

    def rate(self, target: Target, share: Floats) -> Floats:
        """The same of all cores [P], where the busiest has that share: they share what memory gives."""
        bandwidth = self.bandwidth(target, self.cores)
        return np.asarray(np.where(self.held, bandwidth / share, bandwidth), np.float64)


def kept_bytes(target: Target) -> int:
    """Of a chunk's tiles and products, that stay in the second-level cache while they are worked on."""
    return target.second.bytes * 3 // 4


def traffic(roles: Roles, gemm: Tiled, shape: Shape, tilings: Tilings, cores: int) -> Traffic:
    """The traffic between the caches when the transforms run in `shape` around products of these tilings."""
    ranges, zero = roles.product.ranges, np.zeros(len(tilings.chunk))
    samples, depths = (roles.points(names) for names in roles.lead)
    phases, groups = roles.kernels  # whose kernels are other parts of the whole
    kernel = roles.task.buffer(roles.kernel(gemm).load.buffer).bytes
    room, near_by = roles.target.second.bytes // 2, kept_bytes(roles.target)
    part = tilings.chunk / roles.tile_rows
    panels = -(-ranges[roles.vector] // (tilings.vectors * roles.lanes))
    tiles, products = zero + roles.bytes(roles.columns), zero + roles.bytes(roles.write)
    summed = (i.extent for i in roles.product.reduction if i.name not in roles.columns.ranges)  # not phases of strides
    slices = prod(summed) * groups // roles.columns.ranges[roles.channel]
    window = tiles / samples * min(1.0, slices / depths)  # tiles that the products of one depth read
    near, beyond = _panels_again(roles, gemm, tilings)
    last = roles.target.caches[-1]
    threads = cores if last.shared else 1  # that fill one last cache
    phases_touch = 2 * roles.bytes(roles.pad) + tiles + kernel + roles.bytes(roles.owner)
    room_between = last.bytes * roles.target.cost.between_share
    if shape is Shape.ROWS:
        scratch, results = tiles * part / samples, products * part / (samples * depths)
        far = scratch + results > near_by
        read = np.where(window * part + results > near_by, slices, far) * tiles
        moved = tiles * far + 2 * products * (results > near_by)
        chunks = -(-roles.tile_rows // tilings.chunk) * (samples // phases) * (depths // groups)
        reread = zero + (kernel > room * phases) * kernel * (chunks - 1)
        scattered = tiles * far + products * (results > near_by)
        held = threads * (scratch + results) + kernel <= room_between
    elif shape is Shape.PANELS:
        times = roles.points(roles.around(gemm))  # that a panel's products are gone through
        results = products / (panels * times)
        read = np.where(window > room, slices, 1) * panels * tiles * (tiles > room)
        moved = 2 * products * (results > room)
        reread = (kernel > room * panels * phases * groups) * np.float64(kernel) * (times // (phases * groups) - 1)
        scattered = tiles * (tiles > room) + products * (results > room)
        held = phases_touch + threads * results <= room_between
    else:
        written, moved = tiles * (tiles > room), products * (products > room)
        read, reread = written * tilings.tile_passes, np.float64(kernel) * (tilings.kernel_passes - 1)
        scattered, held = written + moved, phases_touch + products <= room_between
    demanded = zero if shape is Shape.POINTS else read  # there the products of a point read its tiles one by one
    taps, points = prod(len(m.kernel[0]) for m in roles.matrices), prod(len(m.kernel) for m in roles.matrices)
    more = kernel - kernel * taps // points
    return Traffic(near, kernel, more, reread, read + moved + beyond, demanded, scattered, held, cores)


def _panels_again(roles: Roles, gemm: Tiled, tilings: Tilings) -> tuple[Floats, Floats]:
    """(bytes that come from the second-level cache, from beyond it) where a register tile's rows stay and panels of
    the kernel are streamed, more than the other way round: for that cycles of loads are known."""
    ranges = roles.product.ranges
    each = DTYPES[roles.task.buffer(roles.tiles.buffer).dtype].itemsize
    depth = each * prod(i.extent for i in roles.product.reduction)
    slab = depth * ranges[roles.vector]
    extents = [np.full(len(tilings.chunk), ranges[n]) for n in gemm.inside]
    extents = [tilings.chunk if n == roles.th else x for n, x in zip(gemm.inside, extents, strict=True)]
    counts = [-(-x // r) for x, r in zip(extents, tilings.rows.T, strict=True)]
    rows, tiles = (np.prod(np.stack([tilings.beside, *own]), axis=0, dtype=np.float64) for own in (extents, counts))
    panels = -(-ranges[roles.vector] // (tilings.vectors * roles.lanes))
    near = roles.target.caches[0].bytes // 2
    again = slab * (tiles - 1) * (slab > near) - depth * rows * (panels - 1) * (depth * rows > near)
    whole = prod(ranges[i.name] for i in roles.product.spatial if i.name != roles.vector) / rows
    extra = np.where(tilings.by_rows, np.maximum(0.0, again) * whole, 0.0)
    beyond = slab > roles.target.second.bytes // 2
    return (np.zeros_like(extra), extra) if beyond else (extra, np.zeros_like(extra))

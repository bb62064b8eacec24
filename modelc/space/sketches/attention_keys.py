"""Copies of keys that do not stay near: stored by panels, as the register tiles of the scores read them.

rows       [depth, keys]                each step of the sum is on a page of its own
panels     [keys / n, depth, n]         what a register tile of n keys reads lies in one piece; keys in parts are
                                        [parts, keys of a part / n, depth, n]
"""

from __future__ import annotations

from math import prod

from modelc.ir.expr import DTYPES, Load, Var
from modelc.ir.layout import Layout
from modelc.space.sketches.attention_roles import Roles
from modelc.target import Target


def far_keys(roles: Roles, parts: int, dtype: str, target: Target) -> Load | None:
    """What the scores read of a copy of a head's keys, in so many `parts`, that is larger than half of the second-level
    cache; else None."""
    scores = roles.scores
    key = roles.iters[scores.name][roles.key]
    copies = {pack.writes[0].buffer for pack in roles.packs}
    reads = [r for r in scores.reads if r.buffer in copies and Var(key) in r.indices]
    size = parts * scores.ranges[key] * prod(i.extent for i in scores.reduction) * DTYPES[dtype].itemsize
    plain = len(reads) == 1 and len(scores.reduction) == 1 and Var(scores.reduction[0].name) in reads[0].indices
    return reads[0] if plain and size > target.second.bytes // 2 else None


def panels(roles: Roles, keys: Load, width: int) -> Layout:
    """The layout of a copy that is read as `keys`, by panels of `width` keys."""
    scores, rank = roles.scores, len(keys.indices)
    key = roles.iters[scores.name][roles.key]
    dim, depth = keys.indices.index(Var(key)), keys.indices.index(Var(scores.reduction[0].name))
    moved = [d if d <= dim else d + 1 for d in range(rank)]  # where dimensions are after the split
    outer = [moved[d] for d in range(rank) if d not in (dim, depth)]
    split = Layout().then("pad", dim, 0, -scores.ranges[key] % width).then("split", dim, width)
    return split.then("reorder", *outer, dim, moved[depth], dim + 1)

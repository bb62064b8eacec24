"""Heads of queries that share a head of keys or values read it where it is: it is not repeated.

    MatMul(q [b, g*r, n, d], Transpose(Reshape(Expand(k [b, g, 1, t, d], r))))       [b, g*r, n, t]
    ->  Reshape(MatMul(Reshape(q) [b, g, r, n, d], Transpose(k) [b, g, 1, d, t]))

Grouped queries (GQA), as exporters write them and as GroupQueryAttention is imported.
"""

from __future__ import annotations

import numpy as np

from modelc.passes.pattern import Bind, Editor, Match, Op, Rule, RulePass

RANK = 4  # of queries, keys and values by head


def _shared(e: Editor, m: Match, turned: bool = False) -> str | None:
    """The product with the operand as it was before it was repeated; None where another dimension is."""
    one, many, repeated = (e.shape(m[name]) for name in ("one", "many", "repeated"))
    q, out = m.root.inputs[0], m.root.outputs[0]
    shape = e.shape(q)
    if len(one) != RANK + 1 or len(repeated) != RANK or len(shape) != RANK or len(many) != RANK + 1:
        return None
    batch, groups, _, *row = one
    times = many[2]
    fits = one[2] == 1 and many == (batch, groups, times, *row) and repeated == (batch, groups * times, *row)
    if not fits or times == 1 or shape[:2] != repeated[:2]:
        return None
    shared = e.add("Transpose", (m["one"],), {"perm": (0, 1, 2, 4, 3)}) if turned else m["one"]
    rows = _reshaped(e, q, (batch, groups, times, *shape[2:]), "grouped")
    return _reshaped(e, e.again(m.root, (rows, shared)), e.shape(out), out)


def _turned(e: Editor, m: Match) -> str | None:
    return _shared(e, m, True) if tuple(e.node(m["turned"]).attrs.get("perm", ())) == (0, 1, 3, 2) else None


def _reshaped(e: Editor, x: str, shape: tuple[int, ...], base: str) -> str:
    return e.add("Reshape", (x, e.constant(np.asarray(shape, np.int64), f"{base}_shape")))


_REPEATED = Op("Reshape", Op("Expand", Bind("one"), Bind("times"), name="many"), Bind("shape"), name="repeated")


class ShareHeads(RulePass):
    """Heads that are shared are not repeated."""

    rules = (
        Rule(Op("MatMul", Bind("q"), _REPEATED), _shared),
        Rule(Op("MatMul", Bind("q"), Op("Transpose", _REPEATED, name="turned")), _turned),
    )

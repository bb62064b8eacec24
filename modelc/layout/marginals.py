"""Min-marginals: what the best assignment costs in which a variable has another value than in the best of all.

Elimination goes one way, and leaves for each variable the join of its tables, what of it went on to the next, and the
least of everything below. On the way back each join is told the least of everything outside of it: both together are
the whole, and their least over the other variables is what every value of the variable costs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from modelc.layout.elimination import Costs, Factor, eliminated, join


def marginals(sizes: Sequence[int], factors: Sequence[Factor], reference: Sequence[int]) -> list[Costs]:
    """For every variable the least cost with each of its values. Variables of a core that is too dense for elimination
    keep their values of `reference`: their other values are given no cost (infinity)."""
    steps, left = eliminated(sizes, factors)
    core = {v for f in left for v in f.scope}
    if core:
        steps, left = eliminated(sizes, [_at(f, core, reference) for f in factors])
    constant = float(sum(f.table for f in left))
    outside = [Factor((), np.array(constant)) for _ in steps]  # of each step, the least of all that is not below it
    owner = {step.variable: k for k, step in enumerate(steps)}
    least = [np.full(size, np.inf) for size in sizes]
    whole = float("inf")
    for k in reversed(range(len(steps))):
        step = steps[k]
        if step.reduced.scope:
            parent = steps[min(owner[u] for u in step.reduced.scope)]
            above = join([parent.joined, outside[owner[parent.variable]]], sizes, parent.variable)
            outside[k] = _without(above, step.reduced, sizes)
        else:
            outside[k] = Factor((), np.array(constant - float(step.reduced.table)))
        every = join([step.joined, outside[k]], sizes, step.variable)
        others = tuple(a for a, u in enumerate(every.scope) if u != step.variable)
        least[step.variable] = every.table.min(axis=others)
        whole = min(whole, float(least[step.variable].min()))
    for v in core:
        least[v][...] = np.inf
        least[v][reference[v]] = whole
    return least


def _at(factor: Factor, core: set[int], values: Sequence[int]) -> Factor:
    """The factor where the variables `core` have these values."""
    at = tuple(values[u] if u in core else slice(None) for u in factor.scope)
    return Factor(tuple(u for u in factor.scope if u not in core), np.asarray(factor.table[at]))


def _without(above: Factor, part: Factor, sizes: Sequence[int]) -> Factor:
    """The least over all other variables of what is `above` without its summand `part`. Where that part is ruled out,
    so is the whole, whatever is left."""
    shape = [sizes[u] if u in part.scope else 1 for u in above.scope]
    own = np.where(np.isinf(part.table), 0.0, part.table).reshape(shape)
    others = tuple(a for a, u in enumerate(above.scope) if u not in part.scope)
    return Factor(part.scope, (above.table - own).min(axis=others))

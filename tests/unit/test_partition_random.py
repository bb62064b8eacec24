"""Random graphs: whatever is fused, viewed or written in place, a Program computes what its nodes do one by one."""

from __future__ import annotations

import numpy as np
import pytest
from grown_graphs import Random
from program_runs import run_program

from modelc.layout.program import partition
from modelc.ops import MEANINGS
from modelc.partition.draft import drafting
from modelc.partition.groups import Groups
from modelc.partition.pieces import pieces_of


@pytest.mark.sweep(25)
@pytest.mark.parametrize("seed", [*range(120), 828, 2056])
def test_random_graphs(seed):
    made = Random(seed)
    graph = made.graph(8 + seed % 30)
    found = run_program(partition(graph), {"x": made.data["x"]}, MEANINGS)
    for name in graph.outputs:
        np.testing.assert_allclose(found[name], made.data[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", range(8))
def test_what_a_group_waits_for_is_known_however_groups_are_merged(seed):
    graph = Random(seed).graph(24)
    groups = Groups(drafting(0)(graph, pieces_of(graph), {}).work)
    every, rng = range(len(groups.pieces)), np.random.default_rng(seed)

    def waits_for():
        """By group, the groups that it waits for, itself among them."""
        found = {g: {g} for g in groups.members}
        for _ in found:
            for g, members in groups.members.items():
                for needed in {groups.group[n] for k in members for n in groups.needs[k]}:
                    found[g] |= found[needed]
        return found

    for _ in range(8):
        found = waits_for()
        for k in every:
            for j in every:
                assert groups.depends([k], [j]) == (groups.group[j] in found[groups.group[k]])
        pairs = [
            (j, k)
            for k in every
            for j in groups.needs[k]
            if (own := groups.group[k]) != (other := groups.group[j])
            and not any(own != g != other and other in found[g] for g in found[own])
        ]
        if pairs:
            groups.merge([*pairs[rng.integers(len(pairs))]])
    assert len(groups.ordered()) == len(groups.members) < len(groups.pieces)

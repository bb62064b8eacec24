"""Random graphs: whatever is fused, viewed or written in place, a Program computes what its nodes do one by one."""

from __future__ import annotations

import numpy as np
import pytest
from grown_graphs import Random
from program_runs import run_program

from modelc.layout.program import partition
from modelc.ops import MEANINGS


@pytest.mark.sweep(25)
@pytest.mark.parametrize("seed", [*range(120), 828, 2056])
def test_random_graphs(seed):
    made = Random(seed)
    graph = made.graph(8 + seed % 30)
    found = run_program(partition(graph), {"x": made.data["x"]}, MEANINGS)
    for name in graph.outputs:
        np.testing.assert_allclose(found[name], made.data[name], rtol=1e-5, atol=1e-5)

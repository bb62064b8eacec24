"""The Sketch of a contraction or a window: a register tile inside macro loops, of vectors or of an intrinsic.

rows.N     rows of row iterator N in the register tile
vectors    vectors (or columns of units) of the register tile along the vector iterator
chunk      rows of the first row iterator that a panel of vectors goes over before the next panel
order      "rows": chunks of rows outside, panels of vectors inside; "panels": the other way round
parallel   the macro loop whose iterations go to threads; "" where it is none
steps      reduction steps in one iteration of the innermost loop, as far as registers hold what they load
prefetch   software prefetch (nest/prefetch.py): "far", of what comes from beyond the second-level cache; or "none"

Of a matrix product the rows are M, the vector iterator N, the reductions K; in BLIS' words rows.m x vectors is mr x nr
and chunk is mc. There is no kc: accumulators stay in registers over all of K, and panels of constants are streamed with
a prefetch of the next one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np

from modelc.ir.candidate import Candidate
from modelc.space.cost.analytic import estimate
from modelc.space.cost.model import Model, Population, model_of
from modelc.space.cost.population import chunks, legal
from modelc.space.cost.register_tile import fits
from modelc.space.cost.work import Work
from modelc.space.sketch import Bools, Floats, Knob, Points, Sketch, Value, loop_named, word_of
from modelc.space.sketches.tiled_candidate import tiled_candidate
from modelc.space.sketches.tiled_rules import default_knobs
from modelc.space.tiling.tiled import FAR, MAX_VECTORS, Tiled, TiledKnobs


class Contraction(Sketch):
    """The Sketch of `tiled`. `known`: the analytic cost was fitted to such register tiles."""

    def __init__(self, tiled: Tiled):
        unit = "vectors" if tiled.unit.intrinsic is None else tiled.unit.intrinsic.name
        name = f"{unit} along {tiled.vector}{', unpacked' if tiled.unpacked else ''}"
        super().__init__("contraction", name, tiled.task, tiled.target, tiled.stages)
        self.tiled = tiled
        self.modelled = tiled.unit.plain and tiled.dtype == "float32"
        self.doubt = 0.0 if self.modelled else tiled.target.cost.unit_doubt_share

    @cached_property
    def model(self) -> Model:
        """What the analytic cost needs to know of the Task."""
        return model_of(self.tiled)

    @cached_property
    def rules(self) -> TiledKnobs:
        """What rules take."""
        return default_knobs(self.tiled)

    def all_knobs(self) -> list[Knob]:
        tiled, model = self.tiled, self.model
        most = min(MAX_VECTORS, -(-tiled.ranges[tiled.vector] // tiled.lanes))
        loops = tuple(map(word_of, model.parallel))
        return [
            *(
                Knob(f"rows.{n}", tuple(tiled.unit.row_counts(tiled, n)), f"rows of {n} in the register tile")
                for n in tiled.inside
            ),
            Knob("vectors", tuple(range(1, most + 1)), f"vectors of the register tile along {tiled.vector}"),
            Knob("chunk", self.chunks, "rows that one panel goes over before the next"),
            Knob("order", ("panels", "rows"), "whether panels of vectors or chunks of rows are outside"),
            Knob("parallel", loops, "the loop whose iterations go to threads"),
            Knob("steps", tiled.step_counts, "reduction steps in one iteration"),
            Knob("prefetch", (FAR, "none"), "what is prefetched by instructions"),
        ]

    def start_values(self) -> dict[str, Value]:
        return self.values_of(self.rules)

    def values_of(self, knobs: TiledKnobs) -> dict[str, Value]:
        """Every knob as `knobs` have it; a chunk, as the size that makes it in whole register tiles, or the nearest."""
        chunk = min(self.chunks, key=lambda s: (abs(self.whole(s, knobs.rows) - knobs.chunk), s))
        loops = self.model.parallel
        return {f"rows.{n}": c for n, c in knobs.rows} | {
            "vectors": knobs.vectors,
            "chunk": chunk,
            "order": "rows" if knobs.by_rows else "panels",
            "parallel": word_of(knobs.parallel if knobs.parallel in loops else loops[0]),
            "steps": knobs.steps,
            "prefetch": knobs.prefetch,
        }

    def knobs_of(self, values: Mapping[str, Value]) -> TiledKnobs:
        """`values` as Tiled knows them; the chunk in whole register tiles."""
        rows = tuple((n, int(values[f"rows.{n}"])) for n in self.tiled.inside)
        chunk = self.whole(int(values["chunk"]), rows)
        parallel = loop_named(values["parallel"])
        vectors, steps, by_rows = int(values["vectors"]), int(values["steps"]), values["order"] == "rows"
        return TiledKnobs(rows, vectors, chunk, by_rows, parallel, steps, str(values["prefetch"]))

    @cached_property
    def chunks(self) -> tuple[int, ...]:
        """Sizes of a chunk worth trying, that of the rules among them."""
        return tuple(sorted({*chunks(self.model), self.rules.chunk}))

    def whole(self, chunk: int, rows: Sequence[tuple[str, int]]) -> int:
        """`chunk` in whole register tiles of `rows`, and no more of them than there are."""
        if not rows:
            return chunk
        (name, least), *_ = rows
        return min(max(chunk // least, 1) * least, -(-self.tiled.ranges[name] // least) * least)

    def candidate_of(self, values: Mapping[str, Value]) -> Candidate:
        return tiled_candidate(self.tiled, self.knobs_of(values))

    def population(self, points: Points) -> Population:
        """`points` as the analytic cost reads them."""
        inside = self.tiled.inside
        rows = np.column_stack([self.column(points, f"rows.{n}") for n in inside]) if inside else points[:, :0]
        by_rows = self.index(points, "order") == 1
        parallel = self.index(points, "parallel")
        members = Population(rows, self.column(points, "vectors"), self.column(points, "chunk"), by_rows, parallel)
        return legal(self.model, members)

    def legal(self, points: Points) -> Bools:
        population = self.population(points)
        return fits(self.tiled, population.rows, population.vectors)

    def work(self, points: Points, cores: int) -> Work:
        return estimate(self.model, self.population(points), cores).work

    def away(self, points: Points) -> Floats:
        steps = np.abs(np.log2(self.column(points, "steps") / self.tiled.usual_steps))
        return np.asarray(steps + self.index(points, "prefetch"), np.float64)

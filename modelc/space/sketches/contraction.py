"""The Sketch of a contraction or a window: a register tile inside macro loops, of vectors or of an intrinsic.

rows.N     rows of row iterator N in the register tile
vectors    vectors (or columns of units) of the register tile along the vector iterator
chunk      rows of the first row iterator that a panel of vectors goes over before the next panel
order      "rows": chunks of rows outside, panels of vectors inside; "panels": the other way round
parallel   the macro loop whose iterations go to threads; "" where it is none
steps      reduction steps in one iteration of the innermost loop, as far as registers hold what they load
prefetch   software prefetch (nest/prefetch.py): "far", of what comes from beyond the second-level cache; or "none"

Of a matrix product the rows are M, the vector iterator N, the reductions K; in BLIS' words rows.m x vectors is mr x nr
and chunk is mc. Accumulators stay in registers over all of K, and panels of constants are streamed with a prefetch of
the next one; with kc, K is in parts, which a Task of its own has (parts.py).
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from modelc.ir.candidate import Candidate
from modelc.space.cost.analytic import estimate
from modelc.space.cost.model import Model, Population, model_of
from modelc.space.cost.register_tile import fits
from modelc.space.cost.work import Work
from modelc.space.sketch import Bools, Floats, Knob, Points, Sketch, Value, Values
from modelc.space.sketches.tiled_candidate import tiled_candidate
from modelc.space.sketches.tiled_rules import chunks, default_knobs
from modelc.space.tiling.tiled import FAR, MAX_VECTORS, Tiled, TiledKnobs


class Contraction(Sketch):
    """The Sketch of `tiled`. `known`: the analytic cost was fitted to such register tiles."""

    listed = 1 << 11

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
        return [
            *(
                Knob(f"rows.{n}", tuple(tiled.unit.row_counts(tiled, n)), f"rows of {n} in the register tile")
                for n in tiled.inside
            ),
            Knob("vectors", tuple(range(1, most + 1)), f"vectors of the register tile along {tiled.vector}"),
            Knob("chunk", self.chunks, "rows that one panel goes over before the next"),
            Knob("order", ("panels", "rows"), "whether panels of vectors or chunks of rows are outside"),
            Knob("parallel", model.parallel, "the loop whose iterations go to threads"),
            Knob("steps", tiled.step_counts, "reduction steps in one iteration"),
            Knob("prefetch", (FAR, "none"), "what is prefetched by instructions"),
        ]

    def start_values(self) -> dict[str, Value]:
        knobs, loops = self.rules, self.model.parallel
        return {f"rows.{n}": c for n, c in knobs.rows} | {
            "vectors": knobs.vectors,
            "chunk": knobs.chunk,
            "order": "rows" if knobs.by_rows else "panels",
            "parallel": knobs.parallel if knobs.parallel in loops else loops[0],
            "steps": knobs.steps,
            "prefetch": knobs.prefetch,
        }

    def knobs_of(self, values: Values) -> TiledKnobs:
        """`values` as Tiled knows them; the chunk in whole register tiles."""
        rows = tuple((n, values[f"rows.{n}"]) for n in self.tiled.inside)
        chunk = int(self.tiled.whole(np.array([values["chunk"]]), np.array([[count for _, count in rows]]))[0])
        vectors, by_rows = values["vectors"], values["order"] == "rows"
        return TiledKnobs(rows, vectors, chunk, by_rows, values["parallel"], values["steps"], values["prefetch"])

    @cached_property
    def row_knobs(self) -> list[str]:
        """The knobs of the rows of a register tile."""
        return [f"rows.{n}" for n in self.tiled.inside]

    @cached_property
    def chunks(self) -> tuple[int, ...]:
        """Sizes of a chunk worth trying, that of the rules among them."""
        return tuple(sorted({*chunks(self.tiled), self.rules.chunk}))

    def candidate_of(self, values: Values) -> Candidate:
        return tiled_candidate(self.tiled, self.knobs_of(values))

    def population(self, points: Points) -> Population:
        """`points` as the analytic cost reads them."""
        rows = self.columns(points, self.row_knobs)
        chunk, order = self.tiled.whole(self.column(points, "chunk"), rows), self.index(points, "order")
        return Population(rows, self.column(points, "vectors"), chunk, order == 1, self.index(points, "parallel"))

    def points(self, population: Population) -> Points:
        """The points of a population [P x knobs], the other knobs as rules have them; a chunk is the size that makes it
        in whole register tiles, or the nearest."""
        made = np.stack([self.tiled.whole(np.full(len(population), s), population.rows) for s in self.chunks], axis=1)
        places = {"order": population.by_rows, "parallel": population.parallel}
        places["chunk"] = np.argmin(np.abs(made - population.chunk[:, None]), axis=1)
        sizes = {"vectors": population.vectors, **dict(zip(self.row_knobs, population.rows.T, strict=True))}
        points = np.repeat(self.start()[None, :], len(population), axis=0)
        for column, knob in enumerate(self.knobs):
            if knob.name in sizes:
                places[knob.name] = np.searchsorted(np.array(knob.values, np.int64), sizes[knob.name])
            if knob.name in places:
                points[:, column] = places[knob.name]
        return points

    def legal(self, points: Points) -> Bools:
        population = self.population(points)
        return fits(self.tiled, population.rows, population.vectors)

    def work(self, points: Points, cores: int) -> Work:
        return estimate(self.model, self.population(points), cores).work

    def away(self, points: Points) -> Floats:
        steps = np.abs(np.log2(self.column(points, "steps") / self.tiled.usual_steps))
        return np.asarray(steps + self.index(points, "prefetch"), np.float64)

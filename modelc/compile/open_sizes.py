"""The stages for one package of any size: a Program out of those at the samples, a schedule that holds at all sizes for
each of its Tasks, and verification at sizes that are no samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from modelc.compile.any_size import AnySize, NeedsLargest, generalised_program, program_at
from modelc.compile.choices import Shapes
from modelc.compile.pipeline import QUANTIZING, Built, Run, place_of
from modelc.compile.programs import Programs
from modelc.compile.publish import Comparison, publish
from modelc.errors import ModelError, blaming
from modelc.forks import shared
from modelc.frontend.building.trips import Trips, differing
from modelc.frontend.onnx import import_model
from modelc.frontend.steering.flags import steered
from modelc.ir.generalise import instance, nest_at
from modelc.ir.graph import Graph
from modelc.ir.program import Program
from modelc.ir.sizes import Sizes
from modelc.plan.program import Compiled
from modelc.space.any_size import Looks, chosen_at_all_sizes
from modelc.space.choose import Chosen
from modelc.verify.kernels.blueprint import Blueprint, Scheduled

LOOKS = 8  # imports at the samples until it is known which nodes are loops


@dataclass
class OpenRun(Run):
    """One compilation for any size. `shapes` are those at the samples, and `fixed` the dimensions that are numbers."""

    any_size: AnySize = field(default_factory=lambda: AnySize((), (), ()))
    fixed: Mapping[str, Sequence[int]] = field(default_factory=dict)
    loops: frozenset[str] | None = None  # nodes that sizes say the number of iterations of; None: it is not known yet

    def originals(self, bounds: Mapping[str, int]) -> Sequence[Graph]:
        """The model at the samples, all of the same nodes: what does not run equally often in all is a loop."""
        for _ in range(LOOKS):
            looks = [Trips(self.loops) for _ in self.shapes]
            graphs = [
                import_model(self.model, shapes, self.constants, bounds, trips)
                for shapes, trips in zip(self.shapes, looks, strict=True)
            ]
            loops = differing(looks)
            refused = {name: why for trips in looks for name, why in trips.refused.items() if name in loops}
            for name, why in refused.items():
                raise ModelError(f"sizes say how often node {name!r} runs, and it cannot be a loop: {why}")
            if self.loops is None and loops == {name for trips in looks for name in trips.counts}:
                self.loops = loops
                return graphs
            if self.loops is not None and loops <= self.loops:
                return graphs
            self.loops = loops | (self.loops or frozenset())
        raise ModelError("which nodes run more often at larger sizes depends on which others are loops")

    def shapes_at(self, run: Sizes) -> Shapes:
        """The shapes of the model's inputs in a run."""
        dims = {**self.fixed, **{name: (n,) for name, n in self.any_size.dims(run).items()}}
        return steered(self.model, (), dims, self.constants).shapes[0]

    def made(self, programs: Programs, output: Path, verify: bool, keep_unverified: bool) -> Built:
        """schedule to verify."""
        general = self.general(programs)
        whole = replace(programs, rounded=(general,))
        compiled = self.kernels_of(general, programs.rounded)
        spec = self.spec(whole, compiled)
        self.limits.check_plan(spec, self.within)
        runs = self.any_size.checked() if verify else ()
        comparison = Comparison(
            self.model,
            self.imported.inputs,
            self.config.verify,
            [self.blueprint_at(run, general, compiled) for run in runs],
            any(node.op in QUANTIZING for graph in self.imported.originals for node in graph.nodes),
            runs,
        )
        package, report = publish(
            spec, output, comparison if verify else None, self.stages, keep_unverified, False, self.limits
        )
        return Built(self, whole, compiled, spec, package, report)

    def general(self, programs: Programs) -> Program:
        """The Programs at the samples as one."""
        try:
            return generalised_program(programs.rounded, None, self.any_size)
        except NeedsLargest:
            largest = replace(self, shapes=(self.shapes_at(self.any_size.largest),))
            layouts = programs.layouts[:1]
            (program,) = largest.partitioning.stored(layouts, ((),)).rounded
            return generalised_program(programs.rounded, program, self.any_size)

    def kernels_of(self, general: Program, samples: Sequence[Program]) -> dict[str, Compiled]:
        """schedule, codegen: every distinct Task once, by its hash."""
        pairs = zip(general.kernels, samples[0].kernels, strict=True)
        every = {bound.task.hash: (bound.task, usual.task.canonical()) for bound, usual in pairs}
        looks = Looks(self.any_size.explained_tasks, (*self.any_size.checked(), self.any_size.usual))

        def scheduled(key: str) -> Chosen:
            task, usual = every[key]
            with blaming(place_of(task)):
                return chosen_at_all_sizes(task.canonical(), usual, self.schedules, looks)

        with self.stages.stage("schedule", f"{len(every)} distinct tasks") as dump:
            self.schedules.prepare([task for _, task in every.values()], True)
            chosen, names = dict[str, Chosen](), [*every]
            for number, schedule in shared(scheduled, names, self.threads):
                chosen[names[number]] = schedule
                self.rejected += len(schedule.rejected)
                self.stages.progress("schedule", f"{len(chosen)} of {len(every)} tasks")
            for key, (task, _) in every.items() if self.stages.dumping else ():
                dump(f"{key} {task.name}\n{chosen[key].candidate}\n{chosen[key].nest}\n")

        @contextmanager
        def blaming_task(name: str) -> Iterator[None]:
            with blaming(place_of(every[name][0])):
                yield

        with self.stages.stage("codegen", f"{len(every)} kernels, {self.threads} at a time"):
            kernels = self.machine_code(self.schedules.store).compiled(
                {name: chosen[name] for name in every}, blaming_task
            )
        usual = self.any_size.usual
        return {
            key: Compiled(task.canonical(), one.candidate, one.task, one.nest, kernels[key], usual)
            for key, (task, _) in every.items()
            for one in [chosen[key]]
        }

    def blueprint_at(self, run: Sizes, general: Program, compiled: Mapping[str, Compiled]) -> Blueprint:
        """What the kernels are judged by in a run."""
        shapes, trips = self.shapes_at(run), Trips(self.loops or frozenset())
        graph = import_model(self.model, shapes, self.constants, self.config.inputs.bounds, trips)
        program = program_at(general, instance(replace(general, constants={}), run))
        scheduled = dict[str, Scheduled]()
        for bound, here in zip(general.kernels, program.kernels, strict=True):
            kernel = compiled[bound.task.hash]
            if here.task.hash not in scheduled:
                candidate, derived = instance(kernel.candidate, run), instance(kernel.derived, run)
                scheduled[here.task.hash] = Scheduled.of(
                    here.task.canonical(), candidate, derived, nest_at(kernel.nest, run)
                )
        return Blueprint(graph, program, scheduled)

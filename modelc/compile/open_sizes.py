"""The stages for one package of any size: a Program out of those at the samples, a schedule that holds at all sizes for
each of its Tasks, and verification at sizes that are no samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.compile.any_size import AnySize, NeedsLargest, generalised_program, program_at
from modelc.compile.caches import Caches, caches_of, growing_states
from modelc.compile.choices import Shapes
from modelc.compile.fixed import Inputs
from modelc.compile.found_order import when_sizes_are_known
from modelc.compile.opened import Open
from modelc.compile.pinned import pin_extents
from modelc.compile.pipeline import QUANTIZING, Built, Run, place_of
from modelc.compile.programs import Programs
from modelc.compile.publish import Comparison, publish
from modelc.compile.request import Request
from modelc.errors import ConfigError, InvalidIR, ModelError, blaming
from modelc.forks import shared
from modelc.frontend.building.rooms import Rooms
from modelc.frontend.building.trips import Trips, differing
from modelc.frontend.load.outline import read_outline
from modelc.frontend.load.read import element_type
from modelc.frontend.onnx import import_model
from modelc.frontend.steering.specialise import declared_shapes, free_inputs, resized
from modelc.ir.block import Block, Task
from modelc.ir.candidate import Candidate
from modelc.ir.explain import Unexplained
from modelc.ir.generalise import instance, nest_at
from modelc.ir.graph import Graph, Node, sized
from modelc.ir.program import Program, check_places
from modelc.ir.sizes import DependsOnSize, Sizes, at, is_sized, text_of
from modelc.package import Plan, TensorInfo, run_of, sizes_sentence
from modelc.plan.program import Compiled
from modelc.space.any_size import Looks, accepted_at_all_sizes, chosen_at_all_sizes, prepared
from modelc.space.choose import Chosen, Offer, Schedule
from modelc.space.constants import Within, kept_within, model_bytes
from modelc.verify.check import check_feed, without_constants
from modelc.verify.kernels.blueprint import Blueprint, Scheduled

LEAST_SHARED = 1 << 12  # bytes of a constant that is compared with another graph's
MOST_FOUND = 4  # nodes of which what they find has a size
LOOKS = 8  # imports at the samples until it is known which nodes are loops
TAKEN = "leave open what the model takes, as in --dim NAME=A..B, or in steps: --dim NAME=A..B:STEP"
INSTEAD = "give a dimension that is left open a number"


class FoundDiffer(ModelError):
    """No one package computes what is found as far as it is: there is one that computes the most."""


def check_one_variant(request: Request, wanted: Inputs, ranges: Mapping[str, Open], asked: Mapping[str, bool]) -> None:
    """Raises ConfigError for what no package for any size has, and for what else is `asked`."""
    several = [name for name, numbers in wanted.dims.items() if name not in ranges and len(numbers) > 1]
    has = {
        "several --shape, which make variants": len(wanted.shapes) > 1,
        f"several numbers for --dim {', '.join(several)}, which make variants": bool(several),
        "--database, which knows schedules for fixed shapes": not isinstance(request.database, bool),
        **asked,
    }
    what = next((name for name, is_asked in has.items() if is_asked), None)
    if what is not None:
        dims = " ".join(f"--dim {name}={numbers}" for name, numbers in ranges.items())
        raise ConfigError(f"{dims} asks for one package of any size, which does not go with {what}: leave out one")


def sharing(graph: Graph, other: Graph) -> Graph:
    """The graph with large constants that are equal to the other's in one place with these."""
    values = {**graph.values}
    for name, value in graph.values.items():
        theirs = other.values[name].data if name in other.values else None
        if value.data is None or theirs is None or value.data is theirs or value.bytes < LEAST_SHARED:
            continue
        alike = (value.data.dtype, value.data.shape) == (theirs.dtype, theirs.shape)
        if alike and np.array_equal(value.data.reshape(-1).view(np.uint8), theirs.reshape(-1).view(np.uint8)):
            values[name] = replace(value, data=theirs)
    return replace(graph, values=values)


def worded_as(graph: Graph, other: Graph) -> Graph:
    """The graph with the other's sentences for people: of branches that cannot be run they name shapes."""
    refusals = {node.name: node.attrs["refusal"] for node in other.every_node if "refusal" in node.attrs}

    def worded(node: Node) -> Node:
        bodies = tuple(replace(body, nodes=tuple(map(worded, body.nodes))) for body in node.bodies)
        attrs = {**node.attrs, "refusal": refusals[node.name]} if node.name in refusals else node.attrs
        return replace(node, attrs=attrs, bodies=bodies)

    return replace(graph, nodes=tuple(map(worded, graph.nodes)), notes=other.notes) if refusals else graph


def check_branches(graphs: Sequence[Graph], runs: Sequence[Sizes]) -> None:
    """Raises ModelError where a branch of an If can be run at one of the sizes of `runs`, and not at another."""
    for graph, run in zip(graphs, runs, strict=False):
        if differing := sorted(graph.single_branches ^ graphs[0].single_branches):
            raise ModelError(
                f"node {differing[0][0]!r} (If): at {sizes_sentence(run)} other branches can be run than at "
                f"{sizes_sentence(runs[0])}; give a range in which the same can, with --dim NAME=A..B"
            )


@dataclass
class OpenRun(Run):
    """One compilation for any size. `shapes` are those at the samples; `given_inputs` are to verify with, of a size of
    their own."""

    any_size: AnySize = field(default_factory=lambda: AnySize((), (), ()))
    sampled: tuple[Sizes, ...] = ()  # whose `shapes` are; none: the samples
    given_inputs: Mapping[str, NDArray[Any]] | None = None
    caches: Caches | None = None  # None: it is not known yet
    loops: frozenset[str] | None = None  # nodes that sizes say the number of iterations of; None: it is not known yet

    def originals(self, bounds: Mapping[str, int]) -> Sequence[Graph]:
        """The model at the samples, all of the same nodes: what does not run equally often in all is a loop."""
        for _ in range(LOOKS):
            looks = [Trips(self.loops) for _ in self.shapes]
            graphs = list[Graph]()
            runs = self.sampled or self.any_size.samples
            for run, shapes, trips in zip(runs, self.shapes, looks, strict=True):
                rooms = self.rooms_at(run)
                try:
                    graph = import_model(self.model, shapes, self.constants, bounds, trips, self.growing, rooms)
                except ModelError as wrong:
                    at_sizes = sizes_sentence(self.any_size.dims(run))
                    raise ModelError(f"{wrong}; this is at {at_sizes}: {TAKEN}" if at_sizes else str(wrong)) from None
                graphs.append(worded_as(sharing(graph, graphs[0]), graphs[0]) if graphs else graph)
            check_branches(graphs, [*map(self.any_size.dims, runs)])
            loops = differing(looks)
            refused = {name: why for trips in looks for name, why in trips.refused.items() if name in loops}
            for name, why in refused.items():
                raise ModelError(f"sizes say how often node {name!r} runs, and it cannot be a loop: {why}")
            if self.loops is None and loops == {name for trips in looks for name in trips.counts}:
                self.loops = loops
            if self.loops is not None and loops <= self.loops:
                if len(graphs) == len(self.any_size.samples):
                    pinned = pin_extents(self.any_size, graphs, self.original_at)
                    self.any_size = replace(self.any_size, pinned=pinned)
                return graphs
            self.loops = loops | (self.loops or frozenset())
        raise ModelError("which nodes run more often at larger sizes depends on which others are loops")

    def original_at(self, run: Sizes) -> Graph:
        """The model as it is imported in a run."""
        return self.imported_at(run, Trips(self.loops or frozenset()), self.rooms_at(run))

    def imported_at(self, run: Sizes, trips: Trips, rooms: Rooms) -> Graph:
        """The same, where loops stay as `trips` says, and what is found has these `rooms`."""
        shapes, bounds = self.shapes_at(run), self.config.inputs.bounds
        return import_model(self.model, shapes, self.constants, bounds, trips, self.growing, rooms)

    def rooms_at(self, run: Sizes) -> Rooms:
        """The rooms for what is found in a run."""
        return Rooms({size.name: run[size.name] for size in self.any_size.found})

    def finding(self) -> OpenRun:
        """The same with the sizes that a run finds."""
        found, tried = self, set[str]()
        while len(tried) < MOST_FOUND:
            every = []
            for run in found.any_size.samples:
                rooms = found.rooms_at(run)
                try:
                    found.imported_at(run, Trips(), rooms)
                except ModelError:  # which is raised where the model is imported to be compiled
                    return found
                every.append(rooms.most)
            name = next((name for name in every[0] if name not in tried), None)
            if name is None:
                break
            tried.add(name)
            known = all(name in most for most in every)
            sizes = found.any_size.finding(name, [most[name] for most in every]) if known else None
            if sizes is not None:
                shapes_of = tuple(map(self.shapes_at, sizes.samples))
                found = replace(found, any_size=sizes, free=sizes.free, shapes=shapes_of)
        return found

    @property
    def opened(self) -> Mapping[str, Open]:
        """The dimensions of the inputs that the package leaves open."""
        return self.any_size.opened

    @cached_property
    def growing(self) -> Mapping[str, str]:
        """The states that are caches which grow, and the dimension that is their length."""
        pairs = zip(self.any_size.names, self.any_size.free, strict=True)
        return growing_states(self.model, self.config.inputs.states, [name for name, size in pairs if size.is_length])

    def with_caches(self, graphs: list[Graph]) -> list[Graph]:
        """The simplified graphs with the places of caches that grow."""
        if self.caches is None:
            self.caches = caches_of(graphs, self.config.inputs.states, self.growing, self.any_size.explained)
            self.free = self.caches.lengthened(self.free)
            self.any_size = replace(self.any_size, free=self.free)
        return [self.caches.placed(sharing(graph, graphs[0])) for graph in graphs]

    def shapes_at(self, run: Sizes) -> Shapes:
        """The shapes of the model's inputs in a run."""
        declared = declared_shapes(read_outline(self.model).graph)
        return resized(declared, self.shapes[0], self.any_size.dims(run))

    @cached_property
    def looks(self) -> Looks:
        """At which sizes schedules are looked at."""
        runs = (*self.any_size.checked(), self.any_size.usual)
        return Looks(self.any_size.explained_tasks, runs, self.any_size.weighed)

    def programs(self) -> Programs:
        with self.telling_found():
            return super().programs()

    @contextmanager
    def telling_found(self) -> Iterator[None]:
        """Where some sizes are found, what fails may fail because of them."""
        try:
            yield
        except (ModelError, Unexplained) as wrong:
            raise (FoundDiffer(str(wrong)) if self.any_size.found else wrong) from None

    def check_found(self) -> None:
        """Raises ModelError, or Unexplained, where little is found and a value has another shape than samples say."""
        usual, explained = self.any_size.usual, self.any_size.explained
        runs = [{**usual, size.name: size.least} for size in self.any_size.found]
        shapes: dict[str, list[tuple[int, ...]]] = {}
        for graph in self.imported.originals if runs else ():
            for name, value in graph.values.items():
                shapes.setdefault(name, []).append(value.shape)
        for run in self.any_size.possible(runs):
            there = self.original_at(run).values
            for name, value in there.items():
                told = zip(*shapes.get(name, ()), strict=True)
                if value.data is None and (*(at(explained.number(n), run) for n in told),) != value.shape:
                    raise ModelError(f"{name!r} is {list(value.shape)} where little is found, and not as samples say")

    def made_as_planned(self, programs: Programs, output: Path, verify: bool, keep_unverified: bool) -> Built:
        """schedule to verify, once. Raises ModelError for what no kernel of any size does."""
        try:
            return self._made(programs, output, verify, keep_unverified)
        except DependsOnSize as wrong:
            kind = FoundDiffer if self.any_size.found else ModelError
            raise kind(f"what is computed differs from size to size: {wrong}; {INSTEAD}") from None

    def _made(self, programs: Programs, output: Path, verify: bool, keep_unverified: bool) -> Built:
        with self.telling_found():
            self.check_found()
            general = self.general(programs)
        for name in self.config.inputs.states.keys() - self.growing.keys():
            if any(map(is_sized, general.values[name].shape)):
                shape = ", ".join(map(text_of, general.values[name].shape))
                raise ModelError(
                    f"--state {name}: its shape [{shape}] depends on a dimension that is left open, and a state has "
                    "one shape: give that dimension a number"
                )
        with self.telling_found():
            chosen = self.chosen(general, programs.rounded)
            compiled = self.compiled(general, chosen)
            ordered = when_sizes_are_known(general)
        return self.published(replace(programs, rounded=(ordered,)), chosen, compiled, output, verify, keep_unverified)

    def published(
        self,
        whole: Programs,
        chosen: Mapping[str, Chosen],
        compiled: dict[str, Compiled],
        output: Path,
        verify: bool,
        keep_unverified: bool,
    ) -> Built:
        """package, verify: of the kernels that were `compiled` as `chosen`; `whole` has the general Program."""
        (general,) = whole.rounded
        spec = self.spec(whole, compiled)
        self.limits.check_plan(spec, self.within)
        inputs, runs = self.compared() if verify else (None, ())
        comparison = Comparison(
            self.model,
            inputs,
            self.config.verify,
            partial(self.blueprints_in, general, chosen),
            any(node.op in QUANTIZING for graph in self.imported.originals for node in graph.nodes),
            runs,
        )
        filtered = {key for key, one in compiled.items() if verify and one.error_bound}
        package, report = publish(
            spec, output, comparison if verify else None, self.stages, keep_unverified, filtered, self.limits
        )
        return Built(self, whole, compiled, spec, package, report)

    def compared(self) -> tuple[Mapping[str, NDArray[Any]] | None, tuple[Sizes, ...]]:
        """The inputs to verify with, and at which sizes that is done: theirs among them. Raises InputError where they
        do not fit."""
        runs = self.any_size.compared()
        if self.given_inputs is None:
            return None, runs
        inputs = without_constants(self.constants, self.given_inputs)
        what = f"the model {self.model}"
        free = tuple(self.any_size.given.values())
        own = run_of(Plan(self.tensors_at(self.any_size.usual), (), (), free=free), inputs, what)
        check_feed([self.tensors_at(own)], inputs, what)
        if self.growing:  # the first run of several
            return inputs, (own, *runs)
        return inputs, (own, *(run for run in runs if run != own))

    def tensors_at(self, run: Sizes) -> tuple[TensorInfo, ...]:
        """The inputs of the package in a run."""
        taken = free_inputs(read_outline(self.model).graph)
        shapes = self.shapes_at(run)
        return tuple(
            TensorInfo(name, element_type(taken[name].type.tensor_type.elem_type, f"input {name!r}"), shapes[name])
            for name in taken
            if name in shapes and name not in self.config.inputs.states
        )

    def general(self, programs: Programs) -> Program:
        """The Programs at the samples as one."""
        try:
            return generalised_program(programs.rounded, None, self.any_size)
        except NeedsLargest:
            run = self.any_size.largest
            largest = replace(self, shapes=(self.shapes_at(run),), sampled=(run,))
            layouts = programs.layouts[:1]
            (program,) = largest.partitioning.stored(layouts, programs.kept[:1]).rounded
            return generalised_program(programs.rounded, program, self.any_size)

    def chosen(self, general: Program, samples: Sequence[Program]) -> dict[str, Chosen]:
        """schedule: every distinct Task once, by its hash."""
        every = distinct_tasks(general, samples)

        smaller: Mapping[str, Schedule] = {}  # by the hashes of Tasks at the usual size

        def scheduled(key: str) -> Chosen:
            task, usual = every[key]
            with blaming(place_of(task)):
                if key in self.tasks:
                    return self.as_chosen(task)
                try:
                    preferred = smaller.get(usual.hash)
                    return chosen_at_all_sizes(task.canonical(), usual, self.schedules, self.looks, preferred)
                except InvalidIR as wrong:
                    raise ModelError(f"{wrong}; {INSTEAD}") from None

        with self.stages.stage("schedule", f"{len(every)} distinct tasks") as dump:
            prepared([pair for key, pair in every.items() if key not in self.tasks], self.schedules, self.looks)
            chosen, names = dict[str, Chosen](), [*every]
            for number, schedule in shared(scheduled, names, self.threads):
                chosen[names[number]] = schedule
                self.rejected += len(schedule.rejected)
                self.stages.progress("schedule", f"{len(chosen)} of {len(every)} tasks")
            self.within = self.kept_at_usual(samples[0], every, chosen)
            smaller = self.within.schedules
            for key in [key for key, (_, usual) in every.items() if usual.hash in smaller]:
                chosen[key] = scheduled(key)
            for key, (task, _) in every.items() if self.stages.dumping else ():
                dump(f"{key} {task.name}\n{chosen[key].candidate}\n{chosen[key].nest}\n")
        return chosen

    def kept_at_usual(
        self, usual: Program, every: Mapping[str, tuple[Task, Task]], chosen: Mapping[str, Chosen]
    ) -> Within:
        """How constants are kept as small as they have to be, of which the `usual` Program has all but what is longer
        at other sizes."""
        given, preferred = dict[str, Candidate](), dict[str, Schedule]()
        for key, (_, task) in every.items():
            candidate = instance(chosen[key].candidate, self.any_size.usual)
            if key in self.tasks:
                given[task.hash] = candidate
            elif all(isinstance(block, Block) for block in task.blocks):
                seconds = self.schedules.seconds(task)
                preferred[task.hash] = Offer(self.schedules, task, seconds, 0, 0, (), candidate)
        return kept_within([usual], self.schedules, given, preferred, self.room(model_bytes([usual])))

    def compiled(self, general: Program, chosen: Mapping[str, Chosen]) -> dict[str, Compiled]:
        """codegen: of the Tasks that are `chosen`, by their hashes."""
        tasks = {bound.task.hash: bound.task for bound in general.kernels if bound.task.hash in chosen}

        @contextmanager
        def blaming_task(name: str) -> Iterator[None]:
            try:
                yield
            except InvalidIR as wrong:
                raise ModelError(f"{place_of(tasks[name])}: {wrong}; {INSTEAD}") from None

        code = self.machine_code(self.schedules.store)
        kernels = code.kept({key: one.candidate for key, one in chosen.items()})
        anew = {key: one for key, one in chosen.items() if key not in kernels}
        with self.stages.stage("codegen", f"{len(anew)} kernels, {self.threads} at a time"):
            kernels |= code.compiled(anew, blaming_task)
        usual = self.any_size.usual
        return {
            key: Compiled(task.canonical(), one.candidate, one.task, one.nest, kernels[key], usual)
            for key, task in tasks.items()
            for one in [chosen[key]]
        }

    def as_chosen(self, task: Task) -> Chosen:
        """What a Task is lowered from that has a schedule."""
        with self.blaming_given(task):
            return accepted_at_all_sizes(task.canonical(), self.tasks[task.hash], self.schedules, self.looks)

    def blueprints_at(self, runs: Sequence[Sizes]) -> tuple[Blueprint, ...]:
        """What the kernels of a package are judged by in runs, which was made with the schedules that are given. Raises
        ConfigError where some Task has none."""
        general = when_sizes_are_known(self.general(self.programs()))
        tasks = {bound.task.hash: bound.task for bound in general.kernels}
        if missing := [task.name for key, task in tasks.items() if key not in self.tasks]:
            counts = f"{len(missing)} of {len(tasks)} Tasks"
            raise ConfigError(f"there is no schedule of {counts} of {self.model}, the first of which is {missing[0]}")
        schedules = {key: self.as_chosen(task) for key, task in tasks.items()}
        return self.blueprints_in(general, schedules, runs)

    def blueprints_in(
        self, general: Program, schedules: Mapping[str, Chosen], runs: Sequence[Sizes]
    ) -> tuple[Blueprint, ...]:
        """What the kernels are judged by in each of the runs."""
        distinct = {tuple(run.values()): run for run in runs}
        with self.telling_found():
            made = {key: self.blueprint_at(run, general, schedules) for key, run in distinct.items()}
        return tuple(made[tuple(run.values())] for run in runs)

    def check_outputs(self, run: Sizes, graph: Graph, program: Program) -> None:
        """Raises ModelError where the model has another output in a run than the Program for every size."""
        room = {found[0] for name in graph.outputs if (found := sized(name)) is not None}  # of which there may be more
        for name in graph.outputs:
            model, general = graph.value(name).shape, program.values[name].shape
            if name not in room and model != general:
                at = " ".join(f"--dim {dim}={number}" for dim, number in self.any_size.dims(run).items())
                raise ModelError(
                    f"with {at} the output {name!r} is {list(model)}, and what holds at other sizes says "
                    f"{list(general)}: give a range in which one rule holds with --dim NAME=A..B"
                )

    def blueprint_at(self, run: Sizes, general: Program, schedules: Mapping[str, Chosen]) -> Blueprint:
        """What the kernels are judged by in a run."""
        graph = sharing(self.original_at(run), self.imported.originals[0])
        program = program_at(general, instance(replace(general, constants={}), run))
        self.check_outputs(run, graph, program)
        try:
            check_places(program, f"at {sizes_sentence(self.any_size.dims(run))}")
        except InvalidIR as wrong:
            raise ModelError(f"what is computed is not said right for every size: {wrong}; {INSTEAD}") from None
        scheduled = dict[str, Scheduled]()
        for bound, here in zip(general.kernels, program.kernels, strict=True):
            kernel = schedules[bound.task.hash]
            if here.task.hash not in scheduled:
                candidate, derived = instance(kernel.candidate, run), instance(kernel.task, run)
                scheduled[here.task.hash] = Scheduled.of(
                    here.task.canonical(), candidate, derived, nest_at(kernel.nest, run)
                )
        return Blueprint(graph, program, scheduled)


def distinct_tasks(general: Program, samples: Sequence[Program]) -> dict[str, tuple[Task, Task]]:
    """Every distinct Task, by its hash, and what it is at the usual size."""
    pairs = zip(general.kernels, samples[0].kernels, strict=True)
    return {bound.task.hash: (bound.task, usual.task.canonical()) for bound, usual in pairs}

"""The stages, in order: a model and a target go in, a verified package comes out (DESIGN section 2)."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from modelc import __version__
from modelc.cache.store import Store, user_store
from modelc.codegen.kernel import Kernel
from modelc.compile.byte_prices import Reasons, slower_in_bytes
from modelc.compile.choices import (
    Choices,
    Shapes,
    blaming_choices,
    occurrences,
)
from modelc.compile.config import Config
from modelc.compile.inputs import check_elements, check_states, fitting
from modelc.compile.limits import Limits
from modelc.compile.machine_code import MachineCode
from modelc.compile.opened import Open
from modelc.compile.precision import Added, Arrays, constant_bytes, errors_added, ways
from modelc.compile.programs import Partitioning, Programs, parameter_bytes
from modelc.compile.publish import Comparison, WrongByFiltering, offering_no_verify, publish
from modelc.compile.result import CompileResult
from modelc.compile.stages import Stages, Stopped
from modelc.database.recorded import Recorded
from modelc.errors import ConfigError, VerificationError, blaming
from modelc.forks import cores, shared
from modelc.frontend.load.beside import bytes_with_files_beside
from modelc.frontend.load.origin import kept_origin
from modelc.frontend.load.outline import read_outline
from modelc.frontend.onnx import import_model
from modelc.frontend.quantize.packing import Packing
from modelc.frontend.quantize.recipe import Recipe
from modelc.ir.block import Block, Task
from modelc.ir.candidate import Candidate
from modelc.ir.graph import Graph
from modelc.ir.graph_text import show_graph
from modelc.ir.program import Program
from modelc.ops.found import checks_sizes
from modelc.package import (
    FixedInput,
    Form,
    Package,
    PackageSpec,
    PackageTarget,
    Toolchain,
    check_place,
    compile_kernel,
    emulator,
    find_toolchain,
    write_package,
)
from modelc.package.form import prefix_of
from modelc.package.spec import FreeSize, made_bytes
from modelc.partition.draft import Prepared, prepared
from modelc.partition.narrow_products import narrowing, require
from modelc.partition.precision import contracting_tasks, with_roundings
from modelc.passes import Machine, run_passes
from modelc.plan.parameters import Parameters
from modelc.plan.program import Compiled, plan_program
from modelc.space.choose import Chosen, Schedules
from modelc.space.constants import GROWTH, Room, Within, kept_within, model_bytes
from modelc.space.shared_packing import SharedPacking, shared_packing_of
from modelc.target import Target
from modelc.target.family import priced_as_another
from modelc.verify.check import drawn
from modelc.verify.kernels.blueprint import Blueprint, Scheduled
from modelc.verify.report import Report

MOST_THREADS = 4
NAMED = 4  # nodes of a task that an error names
SHOWN_ELEMENTS = 16  # constants of more elements are dumped by their hash
QUANTIZING = ("QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul")
TOOLS = ("apache-tvm", "numpy", "onnx")


def place_of(task: Task) -> str:
    """The task and the nodes that it covers, for an error."""
    more = f" and {len(task.nodes) - NAMED} more" if len(task.nodes) > NAMED else ""
    return f"task {task.name} ({', '.join(map(repr, task.nodes[:NAMED]))}{more})"


def default_threads() -> int:
    """CPUs that this process may run on, but not more than kernels keep busy."""
    return min(cores(), MOST_THREADS)


@dataclass(frozen=True)
class Imported:
    """A model as Graphs, one for each set of shapes: as they were imported, and simplified. `inputs`: the
    data to verify with that is no constant; `real`: what is quantized and multiplied in float32, and why."""

    originals: tuple[Graph, ...]
    graphs: tuple[Graph, ...]
    inputs: Mapping[str, NDArray[Any]] | None
    real: Reasons


@dataclass(frozen=True)
class Built:
    """A package that was written and, if that was asked for, found right; and what it was made of, by a `run` under the
    policy by which it is right."""

    run: Run
    programs: Programs
    compiled: dict[str, Compiled]  # by the Task's hash
    spec: PackageSpec
    package: Package
    report: Report | None


@dataclass
class Run:
    """One compilation: what it is asked for, which stays as it is, and below that what is remembered of what was
    computed. A stage gives what the next one takes."""

    model: Path
    digest: str
    target: Target
    config: Config
    shapes: tuple[Shapes, ...]
    threads: int = field(default_factory=default_threads)
    locked: Choices | None = None  # of this very model and these shapes: layouts and precision are theirs
    tasks: Mapping[str, Candidate] = field(default_factory=dict)  # that were chosen before, by the Task's hash
    constants: Mapping[str, NDArray[Any]] = field(default_factory=dict)  # inputs of the model that are fixed
    inputs: Mapping[str, NDArray[Any]] | None = None  # to verify with
    stages: Stages = field(default_factory=Stages)
    recorded: Recorded | None = None  # what a database says of Tasks that were not chosen before
    notes: tuple[str, ...] = ()  # what became of the user's configuration and database on the way
    done: dict[str, Compiled] = field(default_factory=dict)  # kernels that there are, by the Task's hash
    rejected: int = 0  # schedules that the Nest's verifier refused
    form: Form = field(default_factory=Form)  # what the package is made as
    shared_packing: SharedPacking = field(default_factory=SharedPacking)  # of what was scheduled last
    limits: Limits = field(default_factory=Limits)  # of sizes
    within: Within = field(default_factory=Within)  # how constants were kept within them
    weighing: bool = True  # whether what a model quantizes is multiplied in bytes by its price
    store: Store = field(default_factory=user_store)  # of what was worked out before
    recipe: Recipe | Packing | None = None  # by which `model` was quantized; `digest` is of the float model then
    float_model: Path | None = None  # which is this
    alike: bool = False  # the shapes are those of one package for any size
    free: tuple[FreeSize, ...] = ()  # sizes that the package leaves open

    @property
    def opened(self) -> Mapping[str, Open]:
        """The dimensions of the inputs that the package leaves open."""
        return {}

    @property
    def growing(self) -> Mapping[str, str]:
        """The states that are caches which grow, and the dimension that is their length."""
        return {}

    def with_caches(self, graphs: list[Graph]) -> list[Graph]:
        """The simplified graphs with the places of caches that grow."""
        return graphs

    def compile(self, output: Path, verify: bool, keep_unverified: bool) -> CompileResult:
        if self.stages.reach("package"):  # what would fail at the end, before any work
            check_place(output)
        require(self.target, self.config.policy.precision)  # what no tool mends, before tools are asked for
        if self.stages.reach("codegen"):
            self.machine_code(self.store).check()
        if self.stages.reach("package"):
            _ = self.toolchain
            if verify and self.stages.reach("verify"):
                with offering_no_verify():
                    emulator(self.target.triple, self.target.features)
        verify = verify and self.stages.reach("verify")
        try:
            built = self.built(output, verify, keep_unverified)
        except Stopped:
            return CompileResult(None, self.target.name, self.stages.seconds, self.threads)
        spec, compiled, files, run = built.spec, built.compiled, built.package.manifest.files, built.run
        return CompileResult(
            path=output,
            target=self.target.name,
            seconds=self.stages.seconds,
            threads=self.threads,
            kernels=len(compiled),
            steps=len(spec.variants[0].steps),
            arena_bytes=max(plan.arena_bytes for plan in spec.variants),
            params_bytes=spec.params_bytes,
            made_bytes=made_bytes(spec.made),
            file_bytes=spec.file_bytes,
            library_bytes=files[spec.form.code].bytes,
            rejected=run.rejected,
            chosen=len(compiled.keys() & run.tasks.keys()),
            measured=len(compiled.keys() & self.recorded.candidates.keys()) if self.recorded else 0,
            database=self.recorded.database.path if self.recorded else None,
            other_records=sum(self.recorded.others.values()) if self.recorded else 0,
            shared_packing=run.shared_packing,
            constants=run.within,
            notes=(
                *spec.notes,
                *run.notes,
                *self.limits.notes(run.within, self.file_bytes),
                *(self.recorded.notes if self.recorded else ()),
                *priced_as_another(self.target.cpu),
                *filter(None, (self.store.trouble,)),
            ),
            report=built.report,
            recipe=run.recipe,
            consulted=self.recorded.consulted if self.recorded else None,
            answers=self.recorded.consulted.answers(self.recorded.database) if self.recorded else "",
        )

    def built(self, output: Path, verify: bool, keep_unverified: bool) -> Built:
        """Every stage. With precision auto, a package that is too far off is made again with Tasks in float32."""
        first = self.programs()
        precision, target = self.config.policy.precision, self.target
        searched = precision == "auto" and narrowing(precision, target) and self.locked is None
        if searched and not verify and self.stages.reach("package"):
            raise ConfigError("precision auto is decided by verification: verify, or say --precision bf16 or f32")
        added = partial(self.added, first) if searched else None
        for kept, last in ways(first.kept, added, self.config.verify.bf16.rms):
            programs = first
            if kept != first.kept:
                self.stages.progress("partition", f"{sum(map(len, kept))} tasks stay in float32")
                programs = self.partitioning.keeping(first, kept)
            try:
                return self.made(programs, output, verify, keep_unverified and last)
            except VerificationError:
                if last:
                    raise
        raise AssertionError("one of the ways is the last")

    def made(self, programs: Programs, output: Path, verify: bool, keep_unverified: bool) -> Built:
        """schedule to verify. What fewer multiplications take too far off is made again with all of them."""
        try:
            return self.made_as_planned(programs, output, verify, keep_unverified)
        except WrongByFiltering as wrong:
            self.stages.progress("schedule", f"{len(wrong.tasks)} tasks with all multiplications")
            note = f"fewer multiplications (Winograd, Strassen) are not used; with them the package {wrong}"
            return self.without_filters(wrong.tasks, note).made(programs, output, verify, keep_unverified)

    def made_as_planned(self, programs: Programs, output: Path, verify: bool, keep_unverified: bool) -> Built:
        """The same, once. Raises WrongByFiltering where fewer multiplications take outputs too far off."""
        compiled = self.kernels(programs.rounded)
        start = time.perf_counter()
        spec = self.spec(programs, compiled)
        self.stages.took("package", time.perf_counter() - start)
        self.limits.check_plan(spec, self.within)
        comparison = Comparison(
            self.model,
            self.imported.inputs,
            self.config.verify,
            lambda runs: self.blueprints(programs, compiled),
            any(node.op in QUANTIZING for graph in self.imported.originals for node in graph.nodes),
        )
        filtered = {key for key, one in compiled.items() if verify and one.error_bound}
        package, report = publish(
            spec, output, comparison if verify else None, self.stages, keep_unverified, filtered, self.limits
        )
        return Built(self, programs, compiled, spec, package, report)

    def without_filters(self, filtered: Collection[str], note: str) -> Run:
        """The same compilation with all multiplications, where the Tasks `filtered` are scheduled anew."""
        plain = copy(self)
        plain.notes += (note,)
        plain.config = self.config.allowing(winograd=False, strassen=False)
        plain.tasks = {key: candidate for key, candidate in self.tasks.items() if key not in filtered}
        plain.done = {key: kernel for key, kernel in self.done.items() if key not in filtered}
        vars(plain).pop("schedules", None)  # which are under the policy of before
        return plain

    def added(self, programs: Programs) -> list[Added]:
        """The error that each contraction by itself would add to the outputs in bfloat16, for each set of shapes."""
        wide = programs.wide
        every = [{name: with_roundings(p, name) for name in contracting_tasks(p)} for p in wide]
        self.kernels([*wide, *(one for some in every for one in some.values())], together=False)

        def package(program: Program, path: Path) -> Package:
            return write_package(self.spec(programs.only(program), self.kernels([program])), path)

        def draw(package: Package) -> Arrays:
            return next(drawn(package, self.model, self.config.verify.seed))

        progress = partial(self.stages.progress, "verify")
        return [errors_added(p, some, package, draw, progress) for p, some in zip(wide, every, strict=True)]

    # --- stages ---------------------------------------------------------------------------------------------------

    @cached_property
    def imported(self) -> Imported:
        """import, simplify."""
        with self.stages.stage("import", str(self.model)) as dump:
            states, bounds = self.config.inputs.states, self.config.inputs.bounds
            originals = self.originals(bounds)
            if not self.config.check_addresses and any(map(checks_sizes, originals)):
                raise ConfigError(
                    "the model computes sizes from data, which a run has to check: check_addresses is false"
                )
            check_states(originals, states, self.growing)
            for graph in originals:
                check_elements(self.model, graph)
            inputs = self.inputs
            if inputs is not None:
                inputs = fitting(inputs, originals, self.constants, states, self.model)
            for graph in originals if self.stages.dumping else ():
                dump(show_graph(graph, SHOWN_ELEMENTS))
        with self.stages.stage("simplify", f"{sum(len(g.nodes) for g in originals)} nodes") as dump:
            real = self._real(originals[0])
            graphs = self.with_caches([self._simplified(graph, real) for graph in originals])
            for graph in graphs if self.stages.dumping else ():
                dump(show_graph(graph, SHOWN_ELEMENTS))
        return Imported(tuple(originals), tuple(graphs), inputs, real)

    def originals(self, bounds: Mapping[str, int]) -> Sequence[Graph]:
        """The model as it is imported at each set of shapes."""
        return [import_model(self.model, shapes, self.constants, bounds) for shapes in self.shapes]

    def _simplified(self, graph: Graph, real: Reasons) -> Graph:
        """`graph` after the passes, where the contractions `real` are multiplied in float32."""
        machine = replace(Machine.of(self.target, self.config.policy.tensorize), real=real)
        return run_passes(graph, self.config.simplify, machine, self._on_pass)

    def _real(self, original: Graph) -> Reasons:
        """The quantized contractions of a model that are multiplied in float32 by their price."""
        if self.locked is not None:
            return self.locked.real
        if self.recipe is not None or not self.weighing:
            return {}
        simplified, allowed = partial(self._simplified, original), self._widened_within
        on = partial(self.schedules_on, stage="simplify")
        return slower_in_bytes(original, simplified, self.target, self.config, allowed, on)

    def _widened_within(self, constants: int) -> int | None:
        """The bytes that parameters may have with weights in float32 that the model gives in bytes, of so many: where
        opening does not make them of bytes, half of what they may grow by default."""
        limit = self.limits.params_bytes(constants)
        if limit is None and self.room(constants).opened is False:
            return constants + int((GROWTH - 1) / 2 * self.file_bytes)
        return limit

    @cached_property
    def drafts(self) -> tuple[Prepared, ...]:
        """The simplified Graphs in Blocks."""
        return tuple(prepared(graph) for graph in self.imported.graphs)

    def programs(self) -> Programs:
        """import, simplify, partition."""
        with self.stages.stage("partition", f"{sum(len(g.nodes) for g in self.imported.graphs)} nodes") as dump:
            programs = self.partitioning.programs()
            for program in programs.rounded if self.stages.dumping else ():
                dump(str(program))
        return programs

    @property
    def partitioning(self) -> Partitioning:
        """What the graphs are cut into Programs by."""
        halves = self.recipe.halves if isinstance(self.recipe, Recipe) else frozenset()
        return Partitioning(self.drafts, self.target, self.config, self.schedules, self.locked, halves, self.alike)

    @cached_property
    def schedules(self) -> Schedules:
        """What Tasks are scheduled by."""
        return self.schedules_on(self.estimating)

    def schedules_on(self, target: Target, stage: str = "partition") -> Schedules:
        """What Tasks would be scheduled by on another target, in a stage that is told how far it is."""
        say = partial(self.stages.progress, stage)
        return Schedules(target, self.config.policy, self.threads, self.store, say)

    @cached_property
    def cold_bytes(self) -> int:
        """Of the constants of the largest of the graphs."""
        return max(constant_bytes(g, self.config.policy.precision, self.target) for g in self.imported.graphs)

    @cached_property
    def file_bytes(self) -> int:
        """Of the model that is compiled, and the files beside it."""
        return bytes_with_files_beside(self.model)

    def room(self, constants: int) -> Room:
        """How large parameters may be, of a model with constants of so many bytes."""
        opened = {"stored": False, "opened": True, "auto": None}[self.config.params]
        return Room(self.file_bytes, self.limits.params_bytes(constants), False if self.form.freestanding else opened)

    @cached_property
    def toolchain(self) -> Toolchain:
        """What compiles and links for the target, and does so: ziglang is not tried, which would build a C library."""
        toolchain = find_toolchain(self.target.triple, self.form.libc, self.form.cc, self.form.ar)
        if not toolchain.zig:
            toolchain.check()
        return toolchain

    @property
    def prefix(self) -> str:
        """What the names of kernels begin with: two models may have equal Tasks, and be in one program."""
        return self.form.prefix or prefix_of(self.model.stem)

    @property
    def estimating(self) -> Target:
        """The target, with what estimates have to know of the network."""
        return replace(self.target, cold_bytes=self.cold_bytes)

    def _on_pass(self, name: str, graph: Graph) -> None:
        self.stages.progress("simplify", f"{name}: {len(graph.nodes)} nodes")

    def kernels(self, programs: Sequence[Program], together: bool = True) -> dict[str, Compiled]:
        """schedule, codegen: every distinct Task once, by its hash. `together`: the Programs make one package, in which
        constants are stored once where that costs next to nothing."""
        every: dict[str, Task] = {}
        for program in programs:
            for bound in program.kernels:
                every.setdefault(bound.task.hash, bound.task)
        if self.recorded is not None:
            canonical = {key: task.canonical() for key, task in every.items() if key not in self.tasks}
            self.recorded.take(canonical, occurrences(programs), self.config.policy, parameter_bytes(programs))
        tasks = {key: task for key, task in every.items() if key not in self.done}
        with self.stages.stage("schedule", f"{len(tasks)} distinct tasks") as dump:
            given = self.given
            self.schedules.prepare([task for key, task in tasks.items() if key not in given], True)
            if together:
                open_tasks = tasks.keys() - given.keys()
                packing = shared_packing_of(programs, self.schedules, given) if open_tasks else SharedPacking()
                room = self.room(model_bytes(programs))
                self.within = kept_within(programs, self.schedules, given, packing.schedules, room)
                self.shared_packing = packing
                self.schedules.prefer({**packing.schedules, **self.within.schedules})
            code = self.machine_code(self.schedules.store)
            compiled = code.kept(self.tried_first(tasks)) if self.stages.reach("codegen") else {}
            chosen = self.schedule_all(tasks, compiled)
            self.schedules.keep()
            for key, task in tasks.items() if self.stages.dumping else ():
                dump(f"{key} {task.name}\n{chosen[key].candidate}\n{chosen[key].nest}\n")
        with self.stages.stage("codegen", f"{len(tasks) - len(compiled)} kernels, {self.threads} at a time") as dump:

            @contextmanager
            def blaming_task(name: str) -> Iterator[None]:
                with blaming(place_of(tasks[name])), self.blaming_given(tasks[name]):
                    yield

            anew = {name: schedule for name, schedule in chosen.items() if name not in compiled}
            kernels = compiled | code.compiled(anew, blaming_task)
            if self.stages.dumping:
                dump("\n".join(str(step) for key in tasks for step in kernels[key].steps))
        for name, task in tasks.items():
            schedule = chosen[name]
            self.done[name] = Compiled(
                task.canonical(), schedule.candidate, schedule.task, schedule.nest, kernels[name]
            )
        return {key: self.done[key] for key in every}

    def schedule_all(self, tasks: Mapping[str, Task], compiled: Collection[str]) -> dict[str, Chosen]:
        """What the Tasks by their hash are lowered from; Nests of those that are `compiled` were verified before."""
        chosen = {name: self.schedule(name, tasks[name], verify=False) for name in compiled}
        names = [name for name in tasks if name not in compiled]

        def scheduled(name: str) -> Chosen:
            with blaming(place_of(tasks[name])):
                return self.schedule(name, tasks[name])

        for number, schedule in shared(scheduled, names, self.threads):
            chosen[names[number]] = schedule
            self.schedules.remember(tasks[names[number]], schedule)
            self.rejected += len(schedule.rejected)
            self.stages.progress("schedule", f"{len(chosen)} of {len(tasks)} tasks")
        return {name: chosen[name] for name in tasks}

    def tried_first(self, tasks: Mapping[str, Task]) -> dict[str, Candidate]:
        """The Candidates that Tasks of Blocks get, by the Tasks' hashes, unless a Nest is rejected."""
        candidates = dict(self.given)
        for name, task in tasks.items():
            if name not in candidates and all(isinstance(block, Block) for block in task.blocks):
                with blaming(place_of(task)):
                    candidates[name] = self.schedules.tried_first(task.canonical())
        return {name: candidates[name] for name in tasks if name in candidates}

    def machine_code(self, store: Store) -> MachineCode:
        """What compiles kernels, and keeps them in `store`."""
        return MachineCode(self.target, self.prefix, self.threads, store, partial(self.stages.progress, "codegen"))

    @property
    def given(self) -> Mapping[str, Candidate]:
        """What is not open any more, by the Task's hash: what is compiled, was chosen before, or a database says."""
        recorded = self.recorded.candidates if self.recorded is not None else {}
        return {**recorded, **self.tasks, **{key: one.candidate for key, one in self.done.items()}}

    def schedule(self, key: str, task: Task, verify: bool = True) -> Chosen:
        """What a Task is lowered from, which its Nest's verifier accepts, or has accepted before."""
        canonical, given = task.canonical(), self.given.get(key)
        if given is not None:
            with self.blaming_given(task):
                return self.schedules.accepted(canonical, given, verify)
        if not verify:
            return self.schedules.accepted(canonical, self.schedules.tried_first(canonical), verify)
        return self.schedules.chosen(canonical)

    def blaming_given(self, task: Task) -> AbstractContextManager[None]:
        """Where the Candidate of `task` was not made here, what fails is its fault."""
        place = f"the task {task.name} ({task.hash})"
        if self.recorded is not None and task.hash in self.recorded.candidates:
            return blaming_choices(place, True, f"{self.recorded.database.path} says", "with --no-database")
        return blaming_choices(place, task.hash in self.tasks)

    def spec(self, programs: Programs, compiled: Mapping[str, Compiled], expose: bool = False) -> PackageSpec:
        """Everything that the package is made of."""
        parameters = Parameters(self.within.opened)
        checked, states = self.config.check_addresses, self.config.inputs.states
        with blaming_choices("tasks and layouts", bool(self.tasks)):
            plans = tuple(
                plan_program(program, compiled, parameters, checked, expose, {} if expose else states, self.free)
                for program in programs.rounded
            )
        tasks = {key: one.candidate for key, one in compiled.items()}
        constants = tuple(FixedInput.of(name, array) for name, array in self.constants.items())
        config = replace(self.config, params="opened" if self.within.opened else "stored")
        made_for = (__version__, self.digest, self.target, self.shapes, constants, config)
        cut = (occurrences(programs.rounded), programs.kept, programs.layouts)
        origin, left_out = kept_origin(read_outline(self.model))
        chosen = Choices(*made_for, tasks, *cut, self.recipe, self.imported.real, self.opened)
        return PackageSpec(
            name=self.model.stem,
            target=PackageTarget(self.target.name, self.target.triple, self.target.features),
            variants=plans,
            objects={one.kernel.symbol: self.object_of(one.kernel) for one in compiled.values()},
            params=tuple(parameters.arrays),
            made=tuple(parameters.made),
            matrices=tuple(parameters.matrices),
            choices=chosen.to_json(),
            versions={"modelc": __version__, **{tool: installed_version(tool) for tool in TOOLS}},
            flush_denormals=self.config.flush_denormals,
            check_addresses=self.config.check_addresses,
            notes=(
                *(self.recipe.notes if self.recipe is not None else ()),
                *dict.fromkeys(note for program in programs.rounded for note in program.notes),
                *left_out,
            ),
            origin=origin,
            constants=constants,
            bounds=self.config.inputs.bounds,
            form=Form() if expose else self.form,
            file_bytes=bytes_with_files_beside(self.float_model or self.model),
        )

    def object_of(self, kernel: Kernel) -> bytes:
        if kernel.object is not None:
            return kernel.object
        assert kernel.source is not None
        return compile_kernel(self.toolchain, kernel.source)

    def blueprints(self, programs: Programs, compiled: Mapping[str, Compiled] | None = None) -> tuple[Blueprint, ...]:
        """What the kernels of each variant are judged by; of Tasks that are not `compiled`, by the schedules chosen."""
        scheduled: dict[str, Scheduled] = {}
        for bound in (bound for program in programs.rounded for bound in program.kernels):
            key = bound.task.hash
            if key not in scheduled:
                known = None if compiled is None else compiled[key]
                if known is None:
                    chosen = self.schedule(key, bound.task)
                    scheduled[key] = Scheduled.of(bound.task.canonical(), chosen.candidate, chosen.task, chosen.nest)
                else:
                    scheduled[key] = Scheduled.of(known.task, known.candidate, known.derived, known.nest)
        pairs = zip(self.imported.originals, programs.rounded, strict=True)
        return tuple(Blueprint(graph, program, scheduled) for graph, program in pairs)

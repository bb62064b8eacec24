"""The stages from schedule to verify: a Compilation goes on, a verified package comes out (DESIGN section 2)."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from importlib.metadata import version as installed_version
from pathlib import Path

from modelc import __version__
from modelc.cache.store import Store
from modelc.codegen.kernel import Kernel
from modelc.compile.choices import Choices, blaming_choices, occurrences
from modelc.compile.compilation import Compilation
from modelc.compile.machine_code import MachineCode
from modelc.compile.pass_lists import check_executable, notes_of, scheduling
from modelc.compile.precision import Added, Arrays, errors_added, ways
from modelc.compile.programs import Programs, parameter_bytes
from modelc.compile.publish import Comparison, WrongByFiltering, offering_no_verify, publish
from modelc.compile.result import CompileResult
from modelc.compile.stages import Stopped
from modelc.database.record import place_of as place_of_constants
from modelc.errors import ConfigError, TargetError, VerificationError, blaming
from modelc.forks import shared
from modelc.frontend.load.beside import bytes_with_files_beside
from modelc.frontend.load.origin import kept_origin
from modelc.frontend.load.outline import read_outline
from modelc.ir.block import Block, Task
from modelc.ir.candidate import Candidate
from modelc.ir.program import Program
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
from modelc.package.spec import made_bytes
from modelc.partition.narrow_products import narrowing, require
from modelc.partition.precision import contracting_tasks, with_roundings
from modelc.plan.parameters import Parameters
from modelc.plan.program import Compiled, plan_program
from modelc.space.carry import Carried, carried
from modelc.space.choose import Chosen, Schedule
from modelc.space.constants import Within, kept_within, model_bytes
from modelc.space.passes.listed import scheduled
from modelc.space.shared_packing import SharedPacking, shared_packing_of
from modelc.target.family import priced_as_another
from modelc.verify.check import drawn
from modelc.verify.kernels.blueprint import Blueprint, Scheduled
from modelc.verify.report import Report

NAMED = 4  # nodes of a task that an error names
QUANTIZING = ("QuantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul")
TOOLS = ("apache-tvm", "numpy", "onnx")


def place_of(task: Task) -> str:
    """The task and the nodes that it covers, for an error."""
    more = f" and {len(task.nodes) - NAMED} more" if len(task.nodes) > NAMED else ""
    return f"task {task.name} ({', '.join(map(repr, task.nodes[:NAMED]))}{more})"


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
class Run(Compilation):
    """The stages behind, and what is remembered of what was computed. A stage gives what the next one takes."""

    done: dict[str, Compiled] = field(default_factory=dict)  # kernels that there are, by the Task's hash
    by_passes: dict[str, Candidate] = field(default_factory=dict)  # of the target's list, by the Task's hash
    rejected: int = 0  # schedules that the Nest's verifier refused
    shared_packing: SharedPacking = field(default_factory=SharedPacking)  # of what was scheduled last
    within: Within = field(default_factory=Within)  # how constants were kept within limits
    carried: Carried = field(default_factory=Carried)  # what records of the target's family say

    def compile(self, output: Path, verify: bool, keep_unverified: bool) -> CompileResult:
        if self.stages.reach("package"):  # what would fail at the end, before any work
            check_place(output)
        require(self.target, self.config.policy.precision)  # what no tool mends, before tools are asked for
        if self.stages.reach("codegen"):
            check_executable(self.config, self.target)
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
            carried=run.carried_of(compiled),
            database=self.recorded.database.path if self.recorded else None,
            other_records=sum(self.recorded.others.values()) if self.recorded else 0,
            shared_packing=run.shared_packing,
            constants=run.within,
            notes=(
                *spec.notes,
                *run.notes,
                *run.carried.notes,
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
            self.run_block_passes(tasks)
            given = self.given
            self.schedules.prepare([task for key, task in tasks.items() if key not in given], True)
            if together:
                open_tasks = tasks.keys() - given.keys()
                carried = self.carry([tasks[key].canonical() for key in open_tasks], parameter_bytes(programs))
                packing = shared_packing_of(programs, self.schedules, given, carried) if open_tasks else SharedPacking()
                preferred, room = {**carried, **packing.schedules}, self.room(model_bytes(programs))
                self.within = kept_within(programs, self.schedules, given, preferred, room)
                self.shared_packing = packing
                self.schedules.prefer({**preferred, **self.within.schedules})
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

    def carry(self, tasks: Sequence[Task], constant_bytes: int) -> Mapping[str, Schedule]:
        """What canonical Tasks get by the records of the target's family, by their hash, in a network whose parameters
        take so many bytes."""
        if self.config.policy.records:
            place = partial(place_of_constants, target=self.target, cold_bytes=constant_bytes)
            families, threads = self.target.family_records, self.run_threads
            self.carried = self.carried.then(carried(tasks, self.schedules, families, threads, place))
        return self.carried.offers

    def run_block_passes(self, tasks: Mapping[str, Task]) -> None:
        """Makes the Candidates of Tasks, by their hashes, for which the target lists passes over Blocks."""
        passes = scheduling(self.config, self.target)
        for key, task in tasks.items() if passes.passes else ():
            if key not in self.tasks:
                try:
                    with blaming(place_of(task)):
                        self.by_passes[key] = scheduled(task.canonical(), passes.passes, self.target)
                except TargetError as wrong:
                    raise TargetError(f"passes {passes.whose}, {place_of(task)}: {wrong}") from None

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
        return {**recorded, **self.by_passes, **self.tasks, **{key: one.candidate for key, one in self.done.items()}}

    def schedule(self, key: str, task: Task, verify: bool = True) -> Chosen:
        """What a Task is lowered from, which its Nest's verifier accepts, or has accepted before."""
        canonical, given = task.canonical(), self.given.get(key)
        if given is not None:
            with self.blaming_given(task):
                return self.schedules.accepted(canonical, given, verify)
        if not verify:
            return self.schedules.accepted(canonical, self.schedules.tried_first(canonical), verify)
        return self.schedules.chosen(canonical)

    def carried_of(self, compiled: Mapping[str, Compiled]) -> int:
        """How many of these kernels are scheduled as records of the target's family say."""
        offers = self.carried.offers
        return sum(key in offers and offers[key].candidate == kernel.candidate for key, kernel in compiled.items())

    def blaming_given(self, task: Task) -> AbstractContextManager[None]:
        """Where the Candidate of `task` was not made here, what fails is its fault."""
        place = f"the task {task.name} ({task.hash})"
        if self.recorded is not None and task.hash in self.recorded.candidates and task.hash not in self.by_passes:
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
                *notes_of(self.config, self.target),
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

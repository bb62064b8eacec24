"""The stages, in order: a model and a target go in, a verified package comes out (DESIGN section 2)."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from modelc import __version__
from modelc.choices import Choices, Shapes, check_choices, parse_choices, read_choices_file
from modelc.codegen.kernels import Kernel, compile_nest
from modelc.codegen.pack import pack_constant
from modelc.codegen.plan import Compiled, Parameters, plan_program
from modelc.config import Config, check_precision, load_config
from modelc.errors import ConfigError, InvalidIR, ModelError, ToolchainError, VerificationError
from modelc.frontend.onnx import import_model
from modelc.ir.block import Task
from modelc.ir.candidate import Candidate
from modelc.ir.graph import Graph
from modelc.ir.graph_text import show_graph
from modelc.ir.nest import Nest
from modelc.ir.program import Program
from modelc.package import (
    Package,
    PackageSpec,
    PackageTarget,
    Plan,
    check_place,
    find_toolchain,
    read_choices,
    read_package,
    write_package,
)
from modelc.passes import run_passes
from modelc.passes.convert import LayoutChoice
from modelc.passes.layout_choice import LayoutPolicy
from modelc.passes.partition import choose_layouts, partition
from modelc.passes.precision import (
    contracting_tasks,
    multiplies_bfloat16,
    require_bfloat16,
    rounded_values,
    to_bfloat16,
    with_roundings,
)
from modelc.space.choose import accepted, chosen
from modelc.space.default import default_candidate
from modelc.space.rule import DoesNotApply
from modelc.space.seconds import costed
from modelc.target import Target, load_target
from modelc.verify import Probe, Report, compare_layers
from modelc.verify.check import drawn
from modelc.verify.check import verify as verify_outputs
from modelc.verify.compare import BF16, Rounded
from modelc.verify.engine import EngineError
from modelc.verify.precision import Kept, error, kept_in_turn, results

STAGES = ("import", "simplify", "partition", "schedule", "codegen", "package", "verify")
MOST_THREADS = 4
DOUBT = 0.15  # of the estimated seconds of a Task, where they decide a layout against the rule
SHOWN_ELEMENTS = 16  # constants of more elements are dumped by their hash
TOOLS = ("apache-tvm", "numpy", "onnx")
# What becomes of data that is a Candidate by its schema, and of no such Task, in rules and in building a Nest.
MALFORMED = (InvalidIR, DoesNotApply, LookupError, TypeError, ValueError, AssertionError, StopIteration)
C_FLAGS = ("-std=c11", "-O2", "-fPIC", "-ffp-contract=off", "-fvisibility=hidden", "-ffunction-sections")

Progress = Callable[[str, str], None]


@dataclass(frozen=True)
class CompileResult:
    """`path` is None where the package was not written (`stop_after`); `seconds` are per stage; `kernels` counts
    distinct ones, `steps` their calls in the first variant; sizes are in bytes. `rejected` counts the schedules that
    were built for kernels and found invalid before anything was lowered; the next best was taken."""

    path: Path | None
    target: str
    seconds: Mapping[str, float]
    threads: int
    kernels: int = 0
    steps: int = 0
    arena_bytes: int = 0
    params_bytes: int = 0
    library_bytes: int = 0
    rejected: int = 0
    notes: tuple[str, ...] = ()
    report: Report | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "path": None if self.path is None else str(self.path),
            "target": self.target,
            "seconds": {stage: round(s, 3) for stage, s in self.seconds.items()},
            "total_seconds": round(sum(self.seconds.values()), 3),
            "threads": self.threads,
            "kernels": self.kernels,
            "steps": self.steps,
            "arena_bytes": self.arena_bytes,
            "params_bytes": self.params_bytes,
            "library_bytes": self.library_bytes,
            "rejected_candidates": self.rejected,
            "notes": list(self.notes),
            "verification": None if self.report is None else self.report.to_json()["summary"],
        }


def compile(
    model: str | Path,
    target: str | Path | Target | None = None,
    output: str | Path | None = None,
    shapes: Sequence[Shapes] = (),
    config: str | Path | Config | None = None,
    threads: int | None = None,
    verify: bool = True,
    keep_unverified: bool = False,
    stop_after: str | None = None,
    dump_dir: str | Path | None = None,
    choices: str | Path | None = None,
    precision: str | None = None,
    progress: Progress | None = None,
) -> CompileResult:
    """Compiles an ONNX model to a package at `output` (MODEL.modelc in the working folder).

    `target` is a name, a .yaml file or a Target (native); each of `shapes` makes a variant; `threads` compile kernels;
    `precision` (f32, bf16, auto) is said in place of the configuration's.
    `choices` is the choices.json of an earlier package: target, shapes and config are taken from it where they are not
    given, nothing is scheduled, and the package is the same byte for byte. Raises ModelcError; VerificationError where
    the package is wrong, and then there is none unless `keep_unverified`.
    """
    if stop_after is not None and stop_after not in STAGES:
        raise ConfigError(f"there is no stage {stop_after!r}; the stages are {', '.join(STAGES)}")
    path = Path(model)
    given = None if target is None else target if isinstance(target, Target) else load_target(target)
    settings = None if config is None else config if isinstance(config, Config) else load_config(config)
    locked = None
    digest = _sha256(path)
    if choices is not None:
        locked = read_choices_file(choices)
        check_choices(locked, __version__, digest, given, str(choices))
        given, settings, shapes = locked.target, settings or locked.config, tuple(shapes) or locked.shapes
    settings = settings if settings is not None else load_config()
    if precision is not None:
        settings = replace(settings, precision=check_precision(precision, "precision"))
    run = Run(
        model=path,
        digest=digest,
        target=given if given is not None else load_target("native"),
        config=settings,
        shapes=tuple(shapes) or ({},),
        threads=threads or min(_cores(), MOST_THREADS),
        locked=locked,
        stop_after=stop_after or STAGES[-1],
        dump_dir=None if dump_dir is None else Path(dump_dir),
        progress=progress or (lambda stage, text: None),
    )
    return run.compile(Path(output) if output is not None else Path(f"{path.stem}.modelc"), verify, keep_unverified)


class _Stopped(Exception):
    """The stage that was to be the last is over."""


@dataclass
class Run:
    """One compilation: what it was asked for, and how long the stages took."""

    model: Path
    digest: str
    target: Target
    config: Config
    shapes: tuple[Shapes, ...]
    threads: int
    locked: Choices | None = None
    stop_after: str = STAGES[-1]
    dump_dir: Path | None = None
    progress: Progress = lambda stage, text: None
    seconds: dict[str, float] = field(default_factory=dict)
    done: dict[str, Compiled] = field(default_factory=dict)  # by the Task's hash
    rejected: int = 0  # schedules that the Nest's verifier refused
    layouts: tuple[LayoutChoice, ...] = ()  # for each of `shapes`, since partition

    def compile(self, output: Path, verify: bool, keep_unverified: bool) -> CompileResult:
        if self.stop_after in STAGES[STAGES.index("package") :]:  # what would fail at the end, before any work
            check_place(output)
            find_toolchain(self.target.triple)
        if self.config.precision == "bf16":
            require_bfloat16(self.target)
        verify = verify and self.stop_after == "verify"
        try:
            spec, compiled, package, report = self.built(output, verify, keep_unverified)
        except _Stopped:
            return CompileResult(None, self.target.name, self.seconds, self.threads)
        files = package.manifest.files
        return CompileResult(
            path=output,
            target=self.target.name,
            seconds=self.seconds,
            threads=self.threads,
            kernels=len(compiled),
            steps=len(spec.variants[0].steps),
            arena_bytes=max(plan.arena_bytes for plan in spec.variants),
            params_bytes=spec.params_bytes,
            library_bytes=files["libmodel.so"].bytes,
            rejected=self.rejected,
            notes=spec.notes,
            report=report,
        )

    def built(
        self, output: Path, verify: bool, keep_unverified: bool
    ) -> tuple[PackageSpec, dict[str, Compiled], Package, Report | None]:
        """Every stage. With precision auto, a package that is too far off is made again with Tasks in float32."""
        wide, programs = self.programs()
        searched = self.config.precision == "auto" and self.narrowing and self.locked is None
        if searched and not verify and self.stop_after in STAGES[STAGES.index("package") :]:
            raise ConfigError("precision auto is decided by verification: verify, or say --precision bf16 or f32")
        ways = [self.kept]
        while True:
            compiled = self.kernels(programs)
            spec = self.spec(programs, compiled, ways[0])
            last = len(ways) == 1 and not searched
            try:
                package, report = self.write(spec, output, verify, keep_unverified and last)
                return spec, compiled, package, report
            except VerificationError:
                if last:
                    raise
            if searched:
                ways, searched = [ways[0], *kept_in_turn(self.added(wide), self.config.verify.bf16.rms)], False
            ways = ways[1:]
            self.progress("partition", f"{sum(map(len, ways[0]))} tasks stay in float32")
            programs = [self.rounded(program, names) for program, names in zip(wide, ways[0], strict=True)]

    # --- precision ------------------------------------------------------------------------------------------------

    @property
    def narrowing(self) -> bool:
        return self.config.precision != "f32" and multiplies_bfloat16(self.target)

    @property
    def kept(self) -> Kept:
        """The Tasks that stay in float32 as far as that is known."""
        return ((),) * len(self.shapes) if self.locked is None else self.locked.float32

    def rounded(self, program: Program, kept: tuple[str, ...]) -> Program:
        """`program` in the precision that is asked for, with a note of what became of it."""
        if self.config.precision == "f32":
            return program
        every = contracting_tasks(program)
        if not self.narrowing:
            note = f"precision auto: all in float32, for the target {self.target.name} cannot multiply bfloat16"
            return replace(program, notes=(*program.notes, note))
        if unknown := sorted(set(kept) - set(every)):
            raise ConfigError(f"the choices keep {unknown[0]} in float32, which is no contraction of this model")
        program = to_bfloat16(program, kept)
        note = f"precision {self.config.precision}: {len(every) - len(kept)} of {len(every)} contractions in bfloat16"
        note += f"; in float32: {', '.join(kept)}" if kept else ""
        return replace(program, notes=(*program.notes, note))

    def added(self, wide: Sequence[Program]) -> list[dict[str, float]]:
        """The error that each contraction by itself would add to the outputs in bfloat16, by the Task's name, for each
        set of shapes, on one drawn input."""
        every = [{name: with_roundings(program, name) for name in contracting_tasks(program)} for program in wide]
        self.kernels([*wide, *(one for some in every for one in some.values())])
        with tempfile.TemporaryDirectory(prefix="modelc-precision-") as folder:
            path = Path(folder) / "one.modelc"

            def package(program: Program) -> Package:
                return write_package(self.spec([program], self.kernels([program]), self.kept), path)

            found = []
            for program, some in zip(wide, every, strict=True):
                feed = drawn(package(program), self.model, self.config.verify.seed, 1)[0]
                wanted, errors = results(path, feed), dict[str, float]()
                for name, one in some.items():
                    self.progress("verify", f"what {name} adds in bfloat16")
                    errors[name] = error(results(package(one).path, feed), wanted)
                found.append(errors)
        return found

    # --- stages ---------------------------------------------------------------------------------------------------

    @contextmanager
    def stage(self, name: str, text: str = "") -> Iterator[Callable[[str], None]]:
        """Times a stage; yields what takes the text of the IR after it."""
        self.progress(name, text)
        dumped: list[str] = []
        start = time.perf_counter()
        yield dumped.append
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
        if self.dump_dir is not None and dumped:
            self._dump(name, "\n".join(dumped))
        if name == self.stop_after and name in STAGES[: STAGES.index("package")]:
            raise _Stopped

    def _dump(self, name: str, text: str) -> None:
        assert self.dump_dir is not None
        try:
            self.dump_dir.mkdir(parents=True, exist_ok=True)
            (self.dump_dir / f"{STAGES.index(name) + 1:02}-{name}.txt").write_text(text.rstrip() + "\n")
        except OSError as error:
            raise ConfigError(f"cannot write to the dump folder {self.dump_dir}: {error.strerror}") from None

    @property
    def dumping(self) -> bool:
        return self.dump_dir is not None

    def programs(self) -> tuple[list[Program], list[Program]]:
        """import, simplify, partition: one Program for each set of shapes, as the model says it, and in the precision
        that is asked for."""
        with self.stage("import", str(self.model)) as dump:
            graphs = [import_model(self.model, shapes) for shapes in self.shapes]
            for graph in graphs if self.dumping else ():
                dump(show_graph(graph, SHOWN_ELEMENTS))
        with self.stage("simplify", f"{sum(len(g.nodes) for g in graphs)} nodes") as dump:
            graphs = [run_passes(graph, self.config.simplify, self._on_pass) for graph in graphs]
            for graph in graphs if self.dumping else ():
                dump(show_graph(graph, SHOWN_ELEMENTS))
        with self.stage("partition", f"{sum(len(g.nodes) for g in graphs)} nodes") as dump:
            self.layouts = self.chosen_layouts(graphs)
            wide = [
                partition(graph, self.attention_bytes, choice)
                for graph, choice in zip(graphs, self.layouts, strict=True)
            ]
            programs = [self.rounded(program, kept) for program, kept in zip(wide, self.kept, strict=True)]
            for program in programs if self.dumping else ():
                dump(str(program))
        return wide, programs

    def chosen_layouts(self, graphs: Sequence[Graph]) -> tuple[LayoutChoice, ...]:
        """How the values of every graph are stored. What a Task costs is estimated for its default schedule without
        intrinsics: what a layout adds are copies around the arithmetic, which are the same."""
        if self.locked is not None:
            return self.locked.layouts
        winograd, layout = self.config.winograd, self.config.layout
        cost = costed(lambda task: default_candidate(task, self.target, winograd, tensorize=False), self.target)
        lanes = self.target.lanes("float32") if layout.blocked else 0
        policy = LayoutPolicy(cost, layout.search, layout.propagate, lanes, DOUBT)
        return tuple(choose_layouts(graph, policy, self.attention_bytes) for graph in graphs)

    @property
    def attention_bytes(self) -> int:
        """What attention's rows may take of the second-level cache; 0: attention is not one Task."""
        caches = self.target.caches
        return caches[min(1, len(caches) - 1)].bytes // 2 if self.config.attention else 0

    def _on_pass(self, name: str, graph: Graph) -> None:
        self.progress("simplify", f"{name}: {len(graph.nodes)} nodes")

    def kernels(self, programs: Sequence[Program]) -> dict[str, Compiled]:
        """schedule, codegen: every distinct Task once, by its hash."""
        every: dict[str, Task] = {}
        for program in programs:
            for bound in program.tasks:
                every.setdefault(bound.task.hash, bound.task)
        tasks = {key: task for key, task in every.items() if key not in self.done}
        with self.stage("schedule", f"{len(tasks)} distinct tasks") as dump:
            scheduled = {}
            for key, task in tasks.items():
                scheduled[key] = one = self.schedule(key, task)
                if self.dumping:
                    dump(f"{key} {task.name}\n{one[1]}\n{one[3]}\n")
        with self.stage("codegen", f"{len(tasks)} kernels, {self.threads} threads") as dump:
            kernels = self.compile_all({key: nest for key, (_, _, _, nest) in scheduled.items()})
            if self.dumping:
                dump("\n".join(str(step) for kernel in kernels.values() for step in kernel.steps))
        self.done |= {key: Compiled(*scheduled[key], kernels[key]) for key in scheduled}
        return {key: self.done[key] for key in every}

    def schedule(self, key: str, task: Task) -> tuple[Task, Candidate, Task, Nest]:
        """The canonical task, its Candidate, the task after the Candidate's stages, and the Nest of both."""
        canonical = task.canonical()
        if self.locked is None:
            found = chosen(canonical, self.target, self.config.winograd, self.config.tensorize)
            self.rejected += len(found.rejected)
        elif key in self.locked.tasks:
            try:
                found = accepted(canonical, self.locked.tasks[key])
            except MALFORMED as wrong:
                raise ConfigError(
                    f"what the choices say of the task {task.name} ({key}) is no schedule of it: {wrong}; compile "
                    "without --choices"
                ) from None
        else:
            raise ConfigError(f"the choices say nothing of the task {task.name} ({key}): compile without --choices")
        return canonical, found.candidate, found.task, found.nest

    def compile_all(self, nests: Mapping[str, Nest]) -> dict[str, Kernel]:
        """Machine code in parallel: LLVM releases the interpreter."""
        done = 0

        def one(key: str) -> Kernel:
            nonlocal done
            kernel = compile_nest(nests[key], f"k_{key}", self.target)
            done += 1
            self.progress("codegen", f"{done} of {len(nests)} kernels, {self.threads} threads")
            return kernel

        pool = ThreadPoolExecutor(self.threads)
        try:
            return dict(zip(nests, pool.map(one, nests), strict=True))
        finally:
            pool.shutdown(cancel_futures=True)

    def spec(
        self, programs: Sequence[Program], compiled: Mapping[str, Compiled], kept: Kept, expose: bool = False
    ) -> PackageSpec:
        """Everything that the package is made of."""
        parameters = Parameters()
        plans = tuple(plan_program(program, compiled, parameters, pack_constant, expose) for program in programs)
        tasks = {key: one.candidate for key, one in compiled.items()}
        chosen = Choices(__version__, self.digest, self.target, self.shapes, self.config, tasks, kept, self.layouts)
        return PackageSpec(
            name=self.model.stem,
            target=PackageTarget(self.target.name, self.target.triple, self.target.features),
            variants=plans,
            objects={one.kernel.symbol: self._object(one.kernel) for one in compiled.values()},
            params=tuple(parameters.arrays),
            choices=chosen.to_json(),
            versions={"modelc": __version__, **{tool: installed_version(tool) for tool in TOOLS}},
            flush_denormals=self.config.flush_denormals,
            notes=tuple(dict.fromkeys(note for program in programs for note in program.notes)),
        )

    def _object(self, kernel: Kernel) -> bytes:
        if kernel.object is not None:
            return kernel.object
        assert kernel.source is not None
        with tempfile.TemporaryDirectory(prefix="modelc-kernel-") as folder:
            (Path(folder) / "kernel.c").write_text(kernel.source)
            toolchain = find_toolchain(self.target.triple)
            toolchain.compile([*C_FLAGS, "-c", "kernel.c", "-o", "kernel.o"], Path(folder))
            return (Path(folder) / "kernel.o").read_bytes()

    def write(
        self, spec: PackageSpec, output: Path, verify: bool, keep_unverified: bool
    ) -> tuple[Package, Report | None]:
        """package, verify: the package takes its place when it has been found right."""
        report: Report | None = None

        def check(folder: Path) -> Mapping[str, Any]:
            nonlocal report
            self.seconds["package"] = time.perf_counter() - start
            with self.stage("verify", f"{self.config.verify.samples} sample(s) against ONNX Runtime"):
                report = self.check(folder)
            if not report.passed and not keep_unverified:
                raise VerificationError(f"{output} was not written, for it is wrong: it {report.sentence()}")
            return report.to_json()

        self.progress("package", str(output))
        start = time.perf_counter()
        try:
            package = write_package(spec, output, check if verify else None)
        except (ToolchainError, EngineError) as error:
            if "package" not in self.seconds:  # not while verifying
                raise
            raise type(error)(f"{error}; to have the package unverified, compile with --no-verify") from None
        self.seconds.setdefault("package", time.perf_counter() - start)
        return package, report

    def check(self, folder: Path) -> Report:
        v = self.config.verify
        return verify_outputs(folder, self.model, seed=v.seed, samples=v.samples, rtol=v.rtol, atol=v.atol, bf16=v.bf16)


def verify(
    package: str | Path,
    model: str | Path,
    inputs: Mapping[str, NDArray[Any]] | None = None,
    seed: int = 0,
    samples: int = 1,
    rtol: float = 1e-3,
    atol: float = 1e-4,
    per_layer: bool = False,
    bf16: Rounded = BF16,
) -> Report:
    """Compares a package with ONNX Runtime on `inputs`, or on `samples` drawn ones for each variant; what is computed
    through bfloat16 has to be as near as `bf16` says, everything else as `rtol` and `atol` say. `per_layer` also builds
    the package again from its choices with every kernel's result as an output, and compares these."""
    report = verify_outputs(Path(package), Path(model), inputs, seed, samples, rtol, atol, bf16)
    if not per_layer:
        return report
    read = read_package(package)
    source = str(read.path / "choices.json")
    chosen = parse_choices(read_choices(read), source)
    digest = _sha256(Path(model))
    check_choices(chosen, __version__, digest, None, source)
    feed = dict(inputs) if inputs is not None else drawn(read, model, seed, 1)[0]
    number = next(k for k, plan in enumerate(read.manifest.variants) if _takes(plan, feed))
    only = slice(number, number + 1)
    one = replace(chosen, shapes=chosen.shapes[only], float32=chosen.float32[only], layouts=chosen.layouts[only])
    run = Run(Path(model), digest, chosen.target, chosen.config, one.shapes, min(_cores(), MOST_THREADS), one)
    with tempfile.TemporaryDirectory(prefix="modelc-layers-") as folder:
        _, programs = run.programs()
        spec = run.spec(programs, run.kernels(programs), one.float32, expose=True)
        exposed = write_package(spec, Path(folder) / "exposed.modelc")
        layers = compare_layers(exposed.path, _probes(programs[0], exposed), model, feed, rtol, atol, bf16)
    return replace(report, layers=layers)


def _takes(plan: Plan, feed: Mapping[str, NDArray[Any]]) -> bool:
    return {t.name: t.shape for t in plan.inputs} == {name: array.shape for name, array in feed.items()}


def _probes(program: Program, exposed: Package) -> tuple[Probe, ...]:
    """What the tasks write, in order of execution."""
    there = {tensor.name for tensor in exposed.manifest.variants[0].outputs}
    found, rounded = [], rounded_values(program)
    for bound in program.tasks:
        for value in (program.values[name] for name in bound.outputs):
            if value.root in there:
                place = (value.dtype, value.shape, value.layout, value.strides, value.root, value.offset)
                found.append(Probe(bound.task.name, bound.task.nodes, value.name, *place, value.name in rounded))
    return tuple(found)


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            digest = hashlib.sha256()
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    except OSError as error:
        raise ModelError(f"the model {path} cannot be read: {error.strerror}") from None
    return digest.hexdigest()


def _cores() -> int:
    """CPUs that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

"""Tuning models: their Tasks' Candidates are searched by measuring on this machine, and each package is written from
what was found if that is faster than without, timed as wholes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from modelc.compile.choices import digest_of
from modelc.compile.config import Config
from modelc.compile.fixed import Inputs
from modelc.compile.inputs import applied, data_of, divided
from modelc.compile.open_sizes import check_one_variant
from modelc.compile.opened import Open
from modelc.compile.opening import decides_by_error, open_ranges, open_run
from modelc.compile.pass_lists import check_searched
from modelc.compile.pipeline import Run
from modelc.compile.request import default_place, named_target
from modelc.compile.stages import Stages
from modelc.database import Conditions, Database, code_version, database_for
from modelc.errors import ConfigError, TargetError, blaming
from modelc.frontend.load.given import UNNAMED, model_file
from modelc.ir.block import Task
from modelc.measure import Cluster, Measurer, Setting, Where
from modelc.measure.bench import beside
from modelc.package import check_place, emulator, find_toolchain, lacking, machine_of
from modelc.package.toolchain import native_machine
from modelc.package.write import folder_for_packages
from modelc.partition.narrow_products import require
from modelc.space.sketch import Floats
from modelc.target import Target, load_target
from modelc.tune.alternatives import Alternative
from modelc.tune.any_size import TuningAtSizes
from modelc.tune.end_to_end import Times, compared
from modelc.tune.joint import JointSearch
from modelc.tune.networks import Network
from modelc.tune.request import EXPLORER, TuneRequest
from modelc.tune.search.explorers import explorer_class
from modelc.tune.search.objectives import Aim, Objective, Weights
from modelc.tune.search.resume import Memory
from modelc.tune.search.tune import Budget, Tuned
from modelc.tune.selection import made
from modelc.verb import Progress, asked_by
from modelc.verify.report import Report


@dataclass(frozen=True)
class TuneResult:
    """What became of the model of that name. `path` is its package; `tuned` says whether it is made of what was found,
    `changed` of how many of its Tasks tuning chose otherwise, and `alternative` what of layouts and cuts. `times` are
    of both packages and of ONNX Runtime, by turns. `search` is that of all models that were tuned together, with
    predictions of this one alone. `earlier_records` were in `database` before; `notes` say what else was noteworthy."""

    model: str
    path: Path
    tuned: bool
    changed: int
    tasks: int
    search: Tuned
    times: Times
    report: Report | None
    alternative: str = ""
    database: Path | None = None
    earlier_records: int = 0
    notes: tuple[str, ...] = ()

    @property
    def speedup(self) -> float:
        """The untuned package's time over the tuned one's."""
        return self.times.untuned_ms / self.times.tuned_ms if self.times.tuned_ms else 1.0

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "path": str(self.path),
            "tuned": self.tuned,
            "tasks": self.tasks,
            "changed_tasks": self.changed,
            "alternative": self.alternative,
            "ended": self.search.ended,
            "measurements": self.search.trials,
            "database": None if self.database is None else str(self.database),
            "known_records": self.earlier_records,
            "notes": list(self.notes),
            "seconds": round(self.search.seconds, 3),
            "preparing_seconds": round(self.search.preparing, 3),
            "search_seconds": round(self.search.searching, 3),
            "measurements_per_second": round(self.search.rate, 3),
            "search_share": round(self.search.share, 4),
            "untuned_ms": self.times.untuned_ms,
            "tuned_ms": self.times.tuned_ms,
            "loops_ms": self.times.loops_ms,
            "ort_ms": self.times.ort_ms,
            "speedup": self.speedup,
            "log": [moment.to_json() for moment in self.search.log],
            "verification": None if self.report is None else self.report.to_json()["summary"],
        }


def tune_request(request: TuneRequest) -> tuple[TuneResult, ...]:
    """Tunes models as a TuneRequest says, and gives a result for each. Ctrl-C ends measuring, and what is timed at the
    end, and packages are made of the best so far; a package that tuning does not make faster is the untuned one.
    Raises ModelcError."""
    output = None if request.output is None else Path(request.output)
    with _places(request.paths, output, request.target) as places:
        return _tune(request, places)


@contextmanager
def _places(models: Sequence[Path], output: Path | None, target: str | Path | Target | None) -> Iterator[list[Path]]:
    """Where the packages go: of one model to `output`, of several into that folder, which is made if need be."""
    names = [path.stem for path in models]
    if not names:
        raise ConfigError("there is no model to tune")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"two models are called {twice[0]}: their packages would have one name; rename one")
    if len(names) == 1:
        yield [output if output is not None else default_place(models[0], target)]
        return
    folder = output if output is not None else Path()
    with folder_for_packages(folder):
        yield [folder / f"{name}.modelc" for name in names]


def _tune(request: TuneRequest, places: Sequence[Path]) -> tuple[TuneResult, ...]:
    models = request.paths
    budget = request.budget if isinstance(request.budget, Budget) else Budget.parse(request.budget)
    explorer_class(request.explorer)
    digests = [digest_of(path) for path in models]
    objective = (request.aim or Aim()).of([path.stem for path in models])
    where = Where.parse(request.runner)
    if request.target is None and where.board is not None:
        raise ConfigError(f"kernels run on {where.text}: name the target that it is by --target")
    target = named_target(request.target) or load_target("native")
    check_tunable(target, where)
    settings = request.settings()
    check_searched(settings, target)
    require(target, settings.policy.precision)
    if len(models) == 1:
        wanted, ranges = request.fixed.over(settings.inputs), dict[str, Open]()
        with blaming(f"model {models[0]}"):
            wanted, ranges = open_ranges(models[0], wanted, settings, request.inputs, target)
        if ranges:
            _check_tuned_at_sizes(request, wanted, ranges, decides_by_error(settings, target), where)
            asked = (models[0], digests[0], target, settings.fixing(request.fixed))
            return (_at_sizes(request, asked, wanted, ranges, budget, places[0]),)
    runs = []
    each = zip(models, digests, divided(request.fixed, models), data_of(request.inputs, models), strict=True)
    for path, digest, fixed, feed in each:
        with blaming(f"model {path}"):
            steering = applied(fixed.over(settings.inputs), path, feed)
            own = settings.fixing(fixed).naming(path)
        stages = Stages(progress=_naming(request.say, path.stem) if len(models) > 1 else request.say)
        asked_for = (path, digest, target, own, steering.shapes)
        run = Run(*asked_for, constants=steering.constants, inputs=feed, stages=stages, store=request.store)
        runs.append(replace(run, run_threads=request.threads))
    for place in places:
        check_place(place)
    find_toolchain(target.triple)
    emulator(target.triple, target.features)  # for verification
    database, note = database_for(request.database, write=True)
    with database or nullcontext():
        networks = []
        for path, run, place in zip(models, runs, places, strict=True):
            with blaming(f"model {path}"):
                networks.append(Network.of(path.stem, run, place))
        results = _tuned(networks, budget, objective, where, database, request)
    noteworthy = tuple(filter(None, (note, database.note if database else "")))
    return tuple(replace(result, notes=(*noteworthy, *result.notes)) for result in results)


def _at_sizes(
    request: TuneRequest,
    asked: tuple[Path, str, Target, Config],
    wanted: Inputs,
    ranges: Mapping[str, Open],
    budget: Budget,
    place: Path,
) -> TuneResult:
    """The tuning of one package for every size in `ranges`."""
    model, _, target, _ = asked
    check_place(place)
    find_toolchain(target.triple)
    with blaming(f"model {model}"):
        stages = Stages(progress=request.say)
        run = open_run(asked, wanted, ranges, stages=stages, store=request.store, given_inputs=request.inputs)
        if request.inputs is not None:
            run.compared()  # what does not fit is said before any work
        made = TuningAtSizes(run, request.threads, budget).made(place)
    tuned = (made.changed > 0, made.changed, made.tasks, made.search, made.times, made.report)
    return TuneResult(model.stem, place, *tuned, notes=made.notes)


def _check_tuned_at_sizes(
    request: TuneRequest, wanted: Inputs, ranges: Mapping[str, Open], by_error: bool, where: Where
) -> None:
    """Raises ConfigError for what does not go with a package for any size."""
    fixed = " ".join(f"--dim {name}=N" for name in ranges)
    has = {
        f"--runner {where.text} (fix {fixed} for that)": not where.here,
        f"--explorer {request.explorer} (fix {fixed} for that)": request.explorer != EXPLORER,
        f"an objective (fix {fixed} for that)": request.aim is not None and request.aim != Aim(),
        "precision auto, which is decided at one size (say f32 or bf16)": by_error,
    }
    check_one_variant(request, wanted, ranges, has)


def _naming(say: Progress, name: str) -> Progress:
    return lambda stage, text: say(stage, f"{name}: {text}")


def _is_target(target: Target, where: Where) -> bool:
    """Whether packages are timed here as wholes: kernels ran here, or on a machine of the same key."""
    return where.here or (where.elsewhere and load_target("native").key == target.key)


def check_tunable(target: Target, where: Where) -> None:
    """Raises TargetError where kernels for a target are not measured there, or packages not verified here."""
    native = machine_of(target.triple) == native_machine()
    if where.here and not native:
        raise TargetError(
            f"the target {target.name} is {target.triple}: tuning measures, and this machine cannot; say through "
            "which --runner"
        )
    missing = lacking(target.features) if native else []
    if missing and (where.here or not emulator(target.triple, target.features)):
        why = "measures" if where.here else "ends with verifying the package here"
        raise TargetError(
            f"the target {target.name} has features that this machine lacks ({', '.join(missing[:5])}): tuning {why}, "
            "so it needs a target that this machine runs, such as native"
        )


def _tuned(
    networks: Sequence[Network],
    budget: Budget,
    objective: Callable[[Weights, Floats], Objective],
    where: Where,
    database: Database | None,
    request: TuneRequest,
) -> list[TuneResult]:
    threads, run, memory = request.threads, networks[0].run, None
    timed = _is_target(run.target, where)
    beside_ort = [_beside_ort(network, threads) for network in networks] if timed and request.watch else []
    if database is not None:
        version, policy = code_version(run.target), run.config.policy

        def conditions(task: Task, cold_bytes: int) -> Conditions:
            return Conditions.of(task, run.target, version, threads, cold_bytes, policy, where.command)

        memory = Memory(database, conditions)
    joint = JointSearch(
        networks,
        request.explorer,
        request.seed,
        threads,
        budget,
        objective,
        memory,
        request.say,
        request.watch,
        beside_ort,
    )
    joint.prepare()
    ended: tuple[Tuned, tuple[Alternative, ...]] | None = None
    try:
        with _measurer(run, where, request) as measurer, beside(measurer.measuring):
            ended = joint.run(measurer)
    except KeyboardInterrupt:
        if ended is None:  # else it comes as the measurer ends, and nothing is lost
            raise
    search, leading = ended
    notes = [joint.learned.says] if explorer_class(request.explorer).learns else []
    if search.left:
        notes.append(search.left)
    if search.trouble:
        notes.append(f"measuring has ended early, and the package is made of what was measured: {search.trouble}")
    known_to_compile = None if where.command or search.trouble else database
    results = []
    for number, (network, alternative) in enumerate(zip(networks, leading, strict=True)):
        with blaming(f"model {network.run.model}"):
            package = made(network, alternative, search.subjects, known_to_compile, threads, timed)
        timed = timed and not package.interrupted
        results.append(
            TuneResult(
                model=network.name,
                path=network.output,
                tuned=package.changed > 0 or bool(package.alternative),
                changed=package.changed,
                tasks=len(network.compiled),
                search=search.of(number),
                times=package.times,
                report=package.report,
                alternative=package.alternative,
                database=None if database is None else database.path,
                earlier_records=joint.earlier_records,
                notes=(*notes, *joint.alternatives[number].notes, *package.notes),
            )
        )
    return results


def _beside_ort(network: Network, threads: int) -> float:
    """ONNX Runtime's time over the untuned package's; 0 where it does not run the model."""
    with blaming(f"model {network.run.model}"):
        times = compared(network.run, {"untuned": network.spec}, threads, brief=True)
    return times.ort_ms / times.untuned_ms


def _measurer(run: Run, where: Where, request: TuneRequest) -> Measurer | Cluster:
    setting, say = Setting(request.threads, run.config.flush_denormals, request.seed), partial(request.say, "board")
    if where.cluster:
        return Cluster(run.target, where.cluster, code_version, setting, say=say)
    return Measurer(run.target, setting, where=where, say=say)


@asked_by(TuneRequest)
def tune(request: TuneRequest) -> tuple[TuneResult, ...]:
    """Compiles models with schedules that are measured to be fast on this machine.

    Every measurement is added to the database at once, and what that knows of just this target and version of modelc on
    so many threads is not measured again: the same call again goes on. Ctrl-C ends measuring, and packages are made of
    the best so far. The tuned package is timed beside the untuned one, and the faster is written. What precision auto
    keeps in float32 is decided before anything is measured.

    Returns:
        A TuneResult for each model: its package, the times before and after in milliseconds, what was measured.

    Raises:
        ModelError: As of modelc.compile, like InputError, ConfigError, PackageError and ToolchainError.
        TargetError: This machine cannot measure, or verify, what is made for the target.
        MeasureError: Nothing can be measured: a board or a cluster that is not there.
        DatabaseError: The database cannot be read or written.

    Example:
        >>> shapes = {"x": (1, 3, 20, 24)}
        >>> (result,) = modelc.tune("net.onnx", budget="4", output="t.modelc", shapes=shapes, database="measured.db")
        >>> result.path.name, result.search.trials
        ('t.modelc', 4)
    """
    one = UNNAMED if request.output is None else Path(request.output).stem or UNNAMED
    name = one if len(request.several) == 1 else UNNAMED
    with ExitStack() as stack:
        models = [stack.enter_context(model_file(model, name)) for model in request.several]
        return tune_request(replace(request, models=models))

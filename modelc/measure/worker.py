"""What a worker of a cluster does for a tuner: it builds, and it measures, on a Bench of its own.

Only these functions are called there, by name; what they are given and give are the data below. A worker's Bench stays
from call to call: it is closed by close(), or when another tuner asks for something and it was idle for IDLE seconds.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace

import numpy as np

from modelc.errors import MeasureError, TargetError, ToolchainError, Unmeasurable
from modelc.ir.block import Task
from modelc.ir.candidate import Candidate
from modelc.measure.bench import Bench
from modelc.measure.builder import BuiltFiles, input_file
from modelc.measure.measurement import Effort, Measurement, Setting
from modelc.measure.pool import Builder
from modelc.package import machine_of
from modelc.package.toolchain import native_machine
from modelc.target import Target

IDLE = 600.0  # seconds

VersionOf = Callable[[Target], str]


@dataclass(frozen=True)
class Setup:
    """What a tuner asks of every worker: the version of the code, as `version_of` says it, has to be `version`."""

    session: str
    version_of: VersionOf
    version: str
    target: Target
    setting: Setting


@dataclass(frozen=True)
class Product:
    """A candidate that was built, as it goes from one worker to another: what BuiltFiles describes, and the contents.
    Where it could not be built `failed` says why."""

    name: str
    candidate: Candidate
    failed: Measurement | None = None
    built: BuiltFiles | None = None
    library: bytes = b""
    constants: dict[str, bytes] = field(default_factory=dict)


def version_here(version_of: VersionOf, target: Target) -> str:
    """Of all that has to be alike: the code, and what draws the data."""
    return f"{version_of(target)} with numpy {np.__version__}"


def build_there(setup: Setup, task: Task, cold_bytes: int, name: str, candidate: Candidate, verify: bool) -> Product:
    with _used(setup) as place:
        begin = time.monotonic()
        with place.builder() as builder:
            outcome, answer = place.bench.build(name, place.bench.subject(task, cold_bytes), candidate, builder, verify)
        spent = time.monotonic() - begin
        try:
            if outcome != "done":
                return Product(name, candidate, failed=Measurement(outcome, answer, build_seconds=spent))
            folder = place.bench.folder
            constants = {n: (folder / input_file(name, task, n)).read_bytes() for n in sorted(task.constants)}
            library = (folder / f"{name}.so").read_bytes()
            return Product(name, candidate, None, replace(answer, seconds=spent), library, constants)
        finally:
            place.bench.drop(name, task)


def measure_there(
    setup: Setup, task: Task, cold_bytes: int, product: Product, reference: Product | None, best: float, effort: Effort
) -> Measurement:
    """Measures a product by turns with `reference`, the first good one of its Task; `best` is the least time over that
    one's that anybody knows."""
    if product.failed is not None:
        return product.failed
    with _used(setup) as place, _measuring:
        if machine_of(setup.target.triple) != native_machine():
            raise TargetError(f"a worker for {setup.target.name} runs on a machine that is not {setup.target.triple}")
        bench = place.bench
        subject = bench.subject(task, cold_bytes)
        with place.builder() as builder:
            outcome, why = bench.prepare(subject, builder)
        if outcome != "done":
            return Measurement(outcome, why)
        if subject.reference is None and reference is not None and reference.built is not None:
            _write(bench, task, reference)
            subject.reference = bench.part(reference.name, subject, reference.built)
            subject.reference_key = reference.candidate.key
        subject.best = min(subject.best, best)
        assert product.built is not None
        if subject.reference is None or subject.reference.library != f"{product.name}.so":  # else it is done again
            _write(bench, task, product)
        begin = time.monotonic()
        measurement = bench.run(product.name, subject, product.candidate, product.built, effort)
        return replace(measurement, build_seconds=product.built.seconds, run_seconds=time.monotonic() - begin)


def close(session: str) -> None:
    """Ends what a tuner has left here."""
    with _opening:
        place = _places.pop(session, None)
    if place is not None:
        place.bench.close()


# --- the benches of this process ------------------------------------------------------------------------------------


@dataclass
class _Place:
    session: str
    bench: Bench
    builders: queue.Queue[Builder]
    users: int = 0
    since: float = 0.0  # when it was last used

    @contextmanager
    def builder(self) -> Iterator[Builder]:
        builder = self.builders.get()
        try:
            yield builder
        finally:
            self.builders.put(builder)


_places: dict[str, _Place] = {}
_opening = threading.Lock()
_measuring = threading.Lock()  # one at a time, whoever asks


@contextmanager
def _used(setup: Setup) -> Iterator[_Place]:
    """The place of a tuner, in use until the context ends. Raises Unmeasurable where this is other code."""
    with _opening:
        place = _places.get(setup.session)
        if place is None:
            here = version_here(setup.version_of, setup.target)
            if here != setup.version:
                raise Unmeasurable(other_version("a worker", here, setup.version))
            _close_idle()
            place = _places[setup.session] = _opened(setup)
        place.users += 1
    try:
        yield place
    except MeasureError:  # the next call has a new one
        close(setup.session)
        raise
    finally:
        with _opening:
            place.users -= 1
            place.since = time.monotonic()


def other_version(who: str, version: str, wanted: str) -> str:
    return (
        f"{who} has modelc {version}, and this is {wanted}: install the same version there, with the same derivation "
        "rules and intrinsics, or leave that worker out"
    )


def _opened(setup: Setup) -> _Place:
    try:
        bench = Bench(setup.target, setup.setting, measures=False)
    except ToolchainError as error:
        raise Unmeasurable(f"a worker cannot build for {setup.target.name}: {error}") from None
    place = _Place(setup.session, bench, queue.Queue())
    for builder in bench.builders:
        place.builders.put(builder)
    return place


def _close_idle() -> None:
    now = time.monotonic()
    for session, place in list(_places.items()):
        if not place.users and now - place.since > IDLE:
            with suppress(OSError):
                _places.pop(session).bench.close()


def _write(bench: Bench, task: Task, product: Product) -> None:
    (bench.folder / f"{product.name}.so").write_bytes(product.library)
    for name, data in product.constants.items():
        (bench.folder / input_file(product.name, task, name)).write_bytes(data)

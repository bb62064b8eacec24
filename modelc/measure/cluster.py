"""Candidates in, measurements out, on the workers of a Dask cluster: any of them builds, those with the resource
`board-KEY` measure, one candidate at a time; KEY is the target's.

The scheduler of the cluster is Dask's: work of a worker that is gone is done again by another. Nothing is written
there: what is measured comes back to the tuner.
"""

from __future__ import annotations

import math
import queue
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from modelc.errors import MeasureError, ModelcError, Unmeasurable
from modelc.ir.block import Task
from modelc.ir.candidate import Candidate
from modelc.measure import dask_client
from modelc.measure.dask_client import DaskClient
from modelc.measure.measurement import Effort, Measurement, Setting
from modelc.measure.measurer import FAILURES
from modelc.measure.worker import (
    Setup,
    VersionOf,
    build_there,
    close,
    measure_there,
    other_version,
    version_here,
)
from modelc.target import Target

WAITED = 300.0  # seconds for a worker that measures, where the last one has gone
LOOKING = 2.0  # seconds without an answer, after which is looked who is there
LEAD = 2  # candidates on their way, for each worker, below which there should be more


def resource_of(target: Target) -> str:
    """What a worker has one of that measures for `target`."""
    return f"board-{target.key}"


@dataclass(eq=False)
class ClusterSubject:
    """A Task that candidates are measured of. Until one is good, one at a time is measured, and others wait."""

    task: Task
    cold_bytes: int
    reference: Any = None  # the future of what was built of the first good candidate
    best: float = math.inf  # over the reference's seconds
    first: int | None = None  # the number of the one that may become the reference
    waiting: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class _Order:
    subject: ClusterSubject
    effort: Effort
    product: Any  # the future of what is built
    measured: list[Any] = field(default_factory=list)  # the future of its measurement


class Cluster(DaskClient):
    """What a Measurer is, with a cluster at `address` until the context ends. `version_of` says which code a worker
    has, which is to be this one; `say` is told when nobody measures. Raises Unmeasurable where it cannot be used."""

    def __init__(
        self,
        target: Target,
        address: str,
        version_of: VersionOf,
        setting: Setting = Setting(),  # noqa: B008 (frozen)
        effort: Effort = Effort(),  # noqa: B008 (frozen)
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.target, self.effort = target, effort
        super().__init__(address, "modelc")
        self._say = say
        version = version_here(version_of, target)
        self._setup = Setup(secrets.token_hex(8), version_of, version, target, setting)
        self._subjects: dict[tuple[str, int], ClusterSubject] = {}
        self._orders: dict[int, _Order] = {}  # that are outstanding
        self._done: queue.Queue[int] = queue.Queue()
        self._numbers = 0
        self._failures = 0
        self._nobody_since: float | None = None

    # --- what programs call, as of a Measurer ---------------------------------------------------------------------

    def subject(self, task: Task, cold_bytes: int = 0) -> ClusterSubject:
        return self._subjects.setdefault((str(task), cold_bytes), ClusterSubject(task, cold_bytes))

    def submit(
        self, subject: ClusterSubject, candidate: Candidate, effort: Effort | None = None, verify: bool = True
    ) -> int:
        self._numbers += 1
        number = self._numbers
        arguments = self._setup, subject.task, subject.cold_bytes, f"c{number}", candidate, verify
        product = self._client.submit(build_there, *arguments, key=self._key("build", number), pure=False)
        self._orders[number] = _Order(subject, effort or self.effort, product)
        if subject.reference is None and subject.first is not None:
            subject.waiting.append(number)
        else:
            self._measure(number)
        return number

    @property
    def lead(self) -> int:
        return LEAD * len(self._client.scheduler_info(n_workers=-1)["workers"])

    @property
    def measuring(self) -> Sequence[int]:
        return ()

    def results(self) -> Iterator[tuple[int, Measurement]]:
        while self._orders:
            try:
                number = self._done.get(timeout=LOOKING)
            except queue.Empty:
                self._look()
                continue
            self._nobody_since = None
            yield number, self._taken(number)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        super().__exit__(kind, error, at)
        self._orders.clear()
        self._subjects.clear()

    def _leave(self) -> None:
        with suppress(Exception):  # it may be gone
            if self._connected():
                futures = [future for order in self._orders.values() for future in (order.product, *order.measured)]
                self._client.cancel(futures, force=True)
                self._client.run(close, self._setup.session, on_error="ignore")
        super()._leave()

    # --- the cluster ----------------------------------------------------------------------------------------------

    def _key(self, what: str, number: int) -> str:
        return f"modelc-{what}-{self._setup.session}-{number}"

    def _measure(self, number: int) -> None:
        order = self._orders[number]
        subject = order.subject
        if subject.reference is None:
            subject.first = number
        future = self._client.submit(
            measure_there,
            *(self._setup, subject.task, subject.cold_bytes, order.product, subject.reference, subject.best),
            order.effort,
            key=self._key("measure", number),
            resources={resource_of(self.target): 1},
            priority=1,
            pure=False,
        )
        order.measured.append(future)
        future.add_done_callback(lambda _: self._done.put(number))

    def _taken(self, number: int) -> Measurement:
        """What came back; others of its subject are begun where they waited for it."""
        order = self._orders.pop(number)
        subject = order.subject
        measurement = self._result(order.measured[0])
        if measurement.ok:
            subject.best = min(subject.best, measurement.relative)
        if subject.first == number and subject.reference is None:
            subject.first = None
            waiting, subject.waiting = subject.waiting, []
            if measurement.ok:
                subject.reference = order.product
                for other in waiting:
                    self._measure(other)
            elif waiting:
                subject.waiting = waiting[1:]
                self._measure(waiting[0])
        return measurement

    def _result(self, future: Any) -> Measurement:
        from distributed import KilledWorker

        try:
            measurement: Measurement = future.result(timeout=dask_client.CONNECTING)
        except KilledWorker as error:
            return Measurement("crashed", f"{error.allowed_failures + 1} workers have ended while they worked on it")
        except Unmeasurable as error:
            raise Unmeasurable(f"the cluster at {self._address} cannot be used: {error}") from None
        except MeasureError as error:
            self._failures += 1
            if self._failures == FAILURES:
                raise
            return Measurement("crashed", str(error))
        except ModelcError:
            raise
        except Exception as error:
            raise self._lost(error) from None
        self._failures = 0
        return measurement

    def _lost(self, error: BaseException) -> Unmeasurable:
        what = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        return Unmeasurable(
            f"the cluster at {self._address} does no work any more ({what}); what was measured is in the database, if "
            "there is one: the same command goes on from it"
        )

    def _workers(self) -> dict[str, dict[str, Any]]:
        """Those that are there. Raises Unmeasurable where the scheduler is not."""
        until = time.monotonic() + dask_client.CONNECTING
        while not self._connected():  # it tries to be
            if time.monotonic() >= until or self._client.status == "closed":
                raise self._lost(ConnectionError("the scheduler is gone"))
            time.sleep(0.1)
        try:
            workers: dict[str, dict[str, Any]] = self._client.scheduler_info(n_workers=-1)["workers"]
            return workers
        except Exception as error:
            raise self._lost(error) from None

    def _connected(self) -> bool:
        return bool(self._client.status == "running")

    def _boards(self) -> list[str]:
        wanted = resource_of(self.target)
        return [
            address for address, worker in self._workers().items() if worker.get("resources", {}).get(wanted, 0) >= 1
        ]

    def _check_workers(self) -> None:
        if not self._boards():
            raise Unmeasurable(
                f"none of the {len(self._workers())} workers at {self._address} measures for {self.target.name}; start "
                f'one on each such machine by: dask worker {self._address} --resources "{resource_of(self.target)}=1"'
            )
        version = self._setup.version
        versions = self._client.run(version_here, self._setup.version_of, self.target, on_error="return")
        for address, reported in versions.items():
            if isinstance(reported, BaseException):
                what = f"{type(reported).__name__}: {reported}".splitlines()[0][:300]
                raise Unmeasurable(f"the worker {address} has not this modelc ({what}): install {version} there")
            if reported != version:
                raise Unmeasurable(other_version(f"the worker {address}", reported, version))

    def _look(self) -> None:
        """Nothing has come for a while: whether somebody measures at all."""
        if self._boards():
            self._nobody_since = None
            return
        now = time.monotonic()
        since = self._nobody_since = now if self._nobody_since is None else self._nobody_since
        if now - since >= WAITED:
            raise Unmeasurable(
                f"nobody at {self._address} has {resource_of(self.target)} since {WAITED:g} s; what was measured is in "
                "the database, if there is one: the same command goes on from it"
            )
        self._say(
            f"no worker measures ({resource_of(self.target)}); one is waited for, {WAITED - now + since:.0f} s at most"
        )

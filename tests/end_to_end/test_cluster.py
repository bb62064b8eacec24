"""A Dask cluster of processes on this machine: a scheduler, a worker that builds, and workers that measure."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import tuning_runs
from dask_processes import Processes
from measured_tasks import CONV, QUICK, TASKS, several
from three_ways import host_target, started

from modelc.cli import main
from modelc.database import Database, code_version
from modelc.errors import ConfigError, MeasureError, Unmeasurable
from modelc.ir.block import Task
from modelc.ir.candidate import Candidate
from modelc.measure import Cluster, Measurement, Where, cluster, dask_client
from modelc.target import Target, load_target
from modelc.tune import command

pytest.importorskip("distributed", reason="distributed is not installed: pip install 'modelc-compiler[cluster]'")


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Processes]:
    monkeypatch.setattr(dask_client, "CONNECTING", 30.0)  # this machine may be busy
    (tmp_path / "dask").mkdir()
    found = Processes(tmp_path / "dask")
    try:
        yield found
    finally:
        found.end()


@pytest.mark.slow  # a build loses no worker's cells either, in test_build.py, and this cluster measures below
def test_a_killed_worker_loses_nothing(processes: Processes, tmp_path: Path, monkeypatch, capsys) -> None:
    """The only worker is killed; another one comes and does what it had not done."""
    monkeypatch.setattr(command, "_is_target", lambda *_: False)  # nothing is timed at the end
    target = load_target("native")
    measuring = processes.worker(target)
    processes.there(1)
    add, added = Database.add, list[object]()

    def adding(self: Database, *what: object) -> int:
        added.append(what)
        if len(added) == 3:
            measuring.kill()
            processes.worker(target)
        return add(self, *what)

    monkeypatch.setattr(Database, "add", adding)
    path = tuning_runs.network(tmp_path)
    said = ["--explorer", "random", "--database", str(tmp_path / "d"), "--runner", processes.runner]
    with pytest.raises(SystemExit) as stop:
        main(["tune", str(path), "--budget", "12", *said, "--json", "-o", str(tmp_path / "t.modelc")])
    said_last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert not stop.value.code, said_last
    assert measuring.wait(60) == -9 and said_last["verification"]["passed"] and said_last["measurements"] == 12
    records = tuning_runs.stored(tmp_path)
    assert [one.measurement.outcome for one in records] == ["ok"] * 12 and len({one.key for one in records}) == 12
    assert {one.conditions.target for one in records} == {target.key}
    assert len({one.measurement.reference for one in records}) == 1, "all were measured by turns with the same one"


def measured(found: Cluster, task: Task, candidates: Sequence[Candidate]) -> list[Measurement]:
    numbers = [found.submit(found.subject(task, 1 << 18), candidate) for candidate in candidates]
    measurements = dict(found.results())
    return [measurements[number] for number in numbers]


def version_of_today(target: Target) -> str:
    """Another one in each process."""
    return f"of process {os.getpid()}"


def test_what_a_cluster_lacks_is_a_sentence(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    target = host_target()

    def used(
        version_of: Callable[[Target], str] = code_version, say: Callable[[str], None] = lambda text: None
    ) -> Cluster:
        return Cluster(target, processes.address, version_of, effort=QUICK, say=say)

    processes.worker()
    processes.there(1)
    sentence = f'none of the 1 workers at {processes.address} measures for .*: dask worker .* --resources "board-'
    with pytest.raises(Unmeasurable, match=sentence), used():
        pass
    worker = processes.worker(target)
    processes.there(2)
    with (
        pytest.raises(
            Unmeasurable, match=r"the worker tcp://.* has modelc of process \d+ with numpy .*, and this is of"
        ),
        used(version_of_today),
    ):
        pass
    said: list[str] = []
    monkeypatch.setattr(cluster, "LOOKING", 0.1)
    monkeypatch.setattr(cluster, "WAITED", 0.5)
    with used(say=said.append) as found:
        for task in (CONV, TASKS["softmax"], TASKS["opaque"]):
            some = measured(found, task, [started(task, target)] * 3)
            assert all(one.ok and one.seconds > 0 for one in some), some
            assert some[0].relative == 1 and all(1e-3 < one.relative < 1e3 for one in some)
        worker.kill()
        with pytest.raises(Unmeasurable, match=r"nobody at tcp://.* has board-.* since 0.5 s"):
            measured(found, CONV, several(2))
        assert "no worker measures" in said[0]
        monkeypatch.setattr(dask_client, "CONNECTING", 0.5)
        processes.all[0].kill()
        with pytest.raises(MeasureError, match="does no work any more"):
            list(found.results())
    monkeypatch.setattr(dask_client, "CONNECTING", 0.5)
    with (
        pytest.raises(Unmeasurable, match=f"there is no Dask scheduler at {processes.address}: .*; start one by"),
        used(),
    ):
        pass


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("dask://here:8786", "tcp://here:8786"),
        ("dask://[::1]:8786/", "tcp://[::1]:8786"),
        ("dask://here", ""),
        ("dask://here:0", ""),
        ("dask://here:99999", ""),
        ("dask://me@here:8786", ""),
        ("dask://", ""),
    ],
)
def test_how_clusters_are_named(text: str, address: str) -> None:
    if address:
        assert Where.parse(text).cluster == address
    else:
        with pytest.raises(ConfigError, match="expected dask://HOST:PORT, the address of a scheduler"):
            Where.parse(text)

"""Building and running candidates in processes of their own, so that a crash, a hang or a hog costs one candidate.

measurement.py  what is known of one candidate: its seconds and their noise, or what became of it; limits, settings
data.py         what a Task is run on, how buffers store it, and whether outputs are right
build.py        (Task, Candidate, Target) to a shared library and its packed constants
builder.py      the process that builds
zygote.py       the process that builders are forked from
pool.py         starting builders, asking them, killing them
job.py          what a runner is told, and its answer
runner.py       starting a runner and asking it
ssh.py          a runner on another machine
where.py        which of them runs kernels
runner.c        the runner: a server; runner_job.c reads what a job says, runner_run.c is what its process does with
                kernels that runner_load.c loads and, in places of runner_places.c, times
subject.py      a Task that candidates are measured of
bench.py        a folder, builders and a runner: one machine's
measurer.py     candidates in, measurements out: some build while one runs
worker.py       what a worker of a cluster does
dask_client.py  a client of a Dask cluster
cluster.py      a Measurer on a Dask cluster

What measures is imported when it is first used: who reads measurements does without.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from modelc.measure.measurement import Effort, Limits, Measurement, Setting

if TYPE_CHECKING:
    from modelc.measure.cluster import Cluster
    from modelc.measure.measurer import Measurer
    from modelc.measure.subject import Subject
    from modelc.measure.where import Where

_HOMES = {"Cluster": "cluster", "Measurer": "measurer", "Subject": "subject", "Where": "where"}
__all__ = ["Cluster", "Effort", "Limits", "Measurement", "Measurer", "Setting", "Subject", "Where"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'modelc.measure' has no attribute {name!r}")
    return getattr(import_module(f"modelc.measure.{_HOMES[name]}"), name)

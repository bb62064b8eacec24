"""Building and running candidates in processes of their own, so that a crash, a hang or a hog costs one candidate.

measurement.py  what is known of one candidate: its seconds and their noise, or what became of it
data.py         what a Task is run on, how buffers store it, and whether outputs are right
sizes.py        what a Nest would take, before it is lowered
build.py        (Task, Candidate, Target) -> a shared library and its packed constants
builder.py      a process that builds      zygote.py  what it is forked from      pool.py  asking it, killing it
job.py          what a runner is told      runner.c   the runner                  runner.py  asking it
subject.py      a Task that candidates are measured of
measurer.py     candidates in, measurements out: some build while one runs
"""

from modelc.measure.measurement import Effort, Limits, Measurement
from modelc.measure.measurer import Measurer
from modelc.measure.subject import Subject

__all__ = ["Effort", "Limits", "Measurement", "Measurer", "Subject"]

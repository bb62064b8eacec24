"""What a runner is told (runner.c): the text of a job, and the answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from modelc.ir.block import Task
from modelc.ir.expr import DTYPES
from modelc.measure.data import stored_bytes
from modelc.measure.measurement import Effort, Outcome

if TYPE_CHECKING:
    from modelc.codegen.kernel import Kernel

LINE = 64  # bytes: what the runtime places begins at a cache line


@dataclass(frozen=True)
class Region:
    """`bytes` of memory filled with copies of `file`, where constants lie cold, or with other values of this `kind`."""

    bytes: int
    kind: str
    file: str


@dataclass(frozen=True)
class Part:
    """A kernel in the files of a runner's folder: its library, and the contents of each buffer that has some. `cold`
    says of constants which region calls that are timed read them from."""

    kernel: Kernel
    library: str
    contents: Mapping[str, str]
    sizes: Mapping[str, int]  # bytes of the contents
    cold: Mapping[str, int]
    serial: Sequence[bool]  # steps that are not worth sharing among threads

    def renamed(self, names: Mapping[str, str]) -> Part:
        contents = {buffer: names[file] for buffer, file in self.contents.items()}
        return replace(self, library=names[self.library], contents=contents)


@dataclass(frozen=True)
class Way:
    """How a kernel is run whose outputs are looked at: its buffers right after an unmapped page (low), right before one
    (high) or one element later than low (odd); what is in memory that it may not read; how many ranges its parallel
    loops are divided into, of which the last runs first."""

    place: str = "low"
    poison: int = 0xFF
    cuts: int = 1


@dataclass(frozen=True)
class Timing:
    """How a job is timed: runner.c's line `time`."""

    effort: Effort
    stop: float = 0.0  # seconds
    near: float = 0.0  # seconds

    def __str__(self) -> str:
        e = self.effort
        return f"time {e.sample_seconds!r} {e.least} {e.most} {e.noise!r} {e.seconds!r} {self.stop!r} {self.near!r}"


@dataclass(frozen=True)
class Job:
    """A candidate of `task`, run once in the way `way`, and timed as `timing` says: by turns with `reference`, by
    `threads`, with subnormals as zero or not (`flush`). Its process ends after `seconds`, and has `bytes` of memory
    beyond what is said here. The outputs that come back are the Task's."""

    task: Task
    candidate: Part
    reference: Part | None = None
    way: Way = Way()
    timing: Timing | None = None
    threads: int = 1
    flush: bool = False
    regions: Sequence[Region] = ()
    seconds: float = 10.0
    bytes: int = 1 << 30

    def text(self) -> str:
        buffers = [self._shared(name) for name in self._boundary]
        numbers = {name: k for k, name in enumerate(self._boundary)}
        kernels = []
        for part in (self.candidate, *([self.reference] if self.reference else [])):
            own = {name: len(buffers) + k for k, name in enumerate(self._own(part))}
            buffers += self._own(part).values()
            kernels += [f"kernel {part.library}", *_steps(part, numbers | own)]
        lines = [
            f"threads {self.threads}",
            f"flush {int(self.flush)}",
            f"limit {self.seconds!r} {self._bytes()}",
            f"place {self.way.place}",
            f"poison {self.way.poison}",
            f"cuts {self.way.cuts}",
            *(f"region {region.bytes} {region.kind} {region.file}" for region in self.regions),
            *buffers,
            *kernels,
            *(f"output {numbers[name]}" for name in self.task.outputs),
            *([str(self.timing)] if self.timing else []),
        ]
        return "\n".join(lines) + "\n"

    @property
    def files(self) -> tuple[str, ...]:
        """The names of the files that the runner reads."""
        parts = (self.candidate, *([self.reference] if self.reference else []))
        named = [file for part in parts for file in (part.library, *part.contents.values())]
        return tuple(dict.fromkeys((*named, *(region.file for region in self.regions))))

    def renamed(self, names: Mapping[str, str]) -> Job:
        """The same job with files that are called otherwise."""
        return replace(
            self,
            candidate=self.candidate.renamed(names),
            reference=None if self.reference is None else self.reference.renamed(names),
            regions=tuple(replace(region, file=names[region.file]) for region in self.regions),
        )

    def sentence(self, answer: Answer) -> str:
        """What a runner's answer says of a kernel."""
        if answer.buffer < 0:
            return answer.message
        names = [*self._boundary, *self._own(self.candidate)]
        name = names[answer.buffer] if answer.buffer < len(names) else "its scratch"
        return f"{answer.message} {name}"

    @property
    def _boundary(self) -> list[str]:
        """The buffers that both kernels share."""
        return [name for name in (*self.task.inputs, *self.task.outputs) if name not in self.task.constants]

    def _shared(self, name: str) -> str:
        buffer = self.task.buffer(name)
        source = f"file {self.candidate.contents[name]}" if name in self.task.inputs else "poison"
        return f"buffer {stored_bytes(buffer)} {DTYPES[buffer.dtype].itemsize} {source}"

    def _own(self, part: Part) -> dict[str, str]:
        """Lines of the buffers that each kernel has of its own."""
        lines = {}
        for name in sorted(self.task.constants):
            file = part.contents[name]
            source = f"cold {file} {part.cold[name]}" if name in part.cold else f"file {file}"
            lines[name] = f"buffer {part.sizes[name]} {DTYPES[self.task.buffer(name).dtype].itemsize} {source}"
        for name, size in part.kernel.temporaries:
            lines[name] = f"buffer {-(-size // LINE) * LINE} {LINE} poison"
        return lines

    def _bytes(self) -> int:
        """All buffers, twice: between pages of their own, where small ones take more, and where they are timed."""
        taken = sum(stored_bytes(self.task.buffer(name)) for name in self._boundary)
        for part in (self.candidate, *([self.reference] if self.reference else [])):
            taken += sum(part.sizes[n] for n in self.task.constants) + sum(size for _, size in part.kernel.temporaries)
            taken += (self.threads + 1) * sum(step.scratch_bytes for step in part.kernel.steps)
        return self.bytes + 2 * taken


def _steps(part: Part, numbers: Mapping[str, int]) -> Iterator[str]:
    for step, serial in zip(part.kernel.steps, part.serial, strict=True):
        arguments = " ".join(str(numbers[name]) for name in step.args)
        yield f"step {step.symbol} {step.extent} {step.scratch_bytes} {int(serial)} {arguments}"


@dataclass(frozen=True)
class Answer:
    """What a runner says of a job; `output` is the bytes of the Task's outputs, one after the other."""

    outcome: Outcome
    message: str
    buffer: int  # that it is about, or -1
    seconds: float
    reference_seconds: float
    noise: float
    repeats: int
    output: bytes

    @property
    def relative(self) -> float:
        """The time over the reference's, of a job that has one."""
        return self.seconds / self.reference_seconds

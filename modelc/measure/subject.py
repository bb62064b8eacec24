"""A Task that candidates are measured of: what they are measured by, and whether their outputs are right."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median

import numpy as np

from modelc.ir.block import Task
from modelc.ir.expr import DTYPES
from modelc.measure.builder import BuiltFiles, input_file
from modelc.measure.data import (
    Arrays,
    between,
    coarseness,
    difference,
    from_storage,
    slack_of,
    stored_bytes,
    surely_close,
    to_storage,
)
from modelc.measure.job import Part, Region

RECENT, KNOWN = 15, 3  # times of the reference that are remembered; fewer than that say nothing
DISTURBED = 1.15  # times their median
POISON = 0xA5  # of bytes that belong to no element


@dataclass
class Subject:
    """`cold_bytes` of memory are filled with copies of the Task's constants, of which each timed call reads the next:
    what a network's parameters take, so that they are as cold as they are there. Constants of whole numbers of more
    than a byte, which may be indices, stay where they are."""

    key: str
    task: Task
    cold_bytes: int
    lock: threading.Lock = field(default_factory=threading.Lock)  # while it is prepared
    begun: bool = False  # a candidate was submitted
    prepared: bool = False
    sizes: Mapping[str, int] = field(default_factory=dict)  # bytes of the files of its inputs
    wanted: Arrays = field(default_factory=dict)
    reference: Part | None = None  # the first good candidate
    reference_key: str = ""  # of that Candidate
    reference_seconds: float = 0.0  # of late
    best: float = math.inf  # over the reference's seconds
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))  # seconds of the reference

    def disturbed(self, reference_seconds: float) -> bool:
        """Whether the reference took much longer than it does: then something else kept the machine busy, by which
        kernels suffer unequally."""
        return len(self.recent) >= KNOWN and reference_seconds > DISTURBED * median(self.recent)

    @cached_property
    def alike(self) -> list[list[str]]:
        """The constants that may lie cold, by dtype: those of one lie in one region, whose contents are like theirs."""
        kinds: dict[str, list[str]] = {}
        for name in sorted(self.task.constants):
            kind = DTYPES[self.task.buffer(name).dtype]
            if kind.kind not in "iub" or (kind.itemsize == 1 and kind.kind != "b"):
                kinds.setdefault(kind.name, []).append(name)
        return list(kinds.values())

    def regions(self) -> list[Region]:
        """Each dtype has its share of the bytes, and whole numbers of copies."""
        if not self.cold_bytes:
            return []
        own = [sum(self.sizes[name] for name in names) for names in self.alike]
        largest = [max(names, key=lambda name: self.sizes[name]) for names in self.alike]
        copies = math.ceil(self.cold_bytes / max(1, sum(own)))
        files = [input_file(self.key, self.task, name) for name in largest]
        kinds = [self.task.buffer(names[0]).dtype for names in self.alike]
        return [Region(copies * size, kind, file) for size, kind, file in zip(own, kinds, files, strict=True) if size]

    @cached_property
    def _stored(self) -> Arrays:
        return {name: to_storage(data, self.task.buffer(name), POISON) for name, data in self.wanted.items()}

    @cached_property
    def _slack(self) -> dict[str, float]:
        return {name: slack_of(data) for name, data in self.wanted.items() if data.dtype.kind == "f"}

    def wrong(self, output: bytes, built: BuiltFiles) -> str:
        """What is wrong with a candidate's outputs (their storage, one after the other), or nothing."""
        coarser = coarseness(built.dtypes)
        at = 0
        for name in self.task.outputs:
            buffer = self.task.buffer(name)
            raw = np.frombuffer(output, np.uint8, stored_bytes(buffer), at)
            at += raw.size
            kind = DTYPES[buffer.dtype]
            here, there = raw.view(kind), self._stored[name].view(kind)
            alike = surely_close(here, there, self._slack.get(name, 0.0))
            alike = alike or not difference(here, there, coarser, built.filtered)
            if alike and raw.size == buffer.bytes:  # the storage is full of elements
                continue
            if wrong := difference(from_storage(raw, buffer), self.wanted[name], coarser, built.filtered):
                return f"of {name}, {wrong}"
            if (between(raw, buffer) != POISON).any():
                return f"it writes between the elements of {name}"
        return ""

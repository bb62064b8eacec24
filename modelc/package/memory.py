"""What a package takes where it runs: RAM for each handle, and the memory that it lies in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from modelc.package.foreign import instruction_bytes
from modelc.package.manifest import Manifest
from modelc.package.spec import ALIGNMENT, aligned, made_bytes
from modelc.package.toolchain import machine_of

COUNTER = 16  # bytes of mc_counter


@dataclass(frozen=True)
class Memory:
    """RAM of a handle: the `arena`, `scratch` of each thread, `states` that it keeps, the `handle` with its
    tables, and constants that are `made` of the parameters, once in a process.
    Flash, or the page cache: `code`, `constants`, and the `tables` of the plan with the rest of the file. What kernels
    take of the stack is not counted: what is large in them is scratch."""

    arena: int
    scratch: int
    states: int
    handle: int
    made: int
    code: int
    constants: int
    tables: int

    @property
    def ram(self) -> int:
        """Of a handle with one thread."""
        return self.arena + self.scratch + self.states + self.handle + self.made

    @property
    def flash(self) -> int:
        return self.code + self.constants + self.tables


def memory_of(manifest: Manifest, folder: Path) -> Memory:
    """Of a package in a folder."""
    form, pointer = manifest.linked.form, machine_of(manifest.target.triple).pointer_bits // 8
    name = form.file_of(form.emit[0])
    code, file = instruction_bytes((folder / name).read_bytes()), manifest.files[name].bytes
    embedded = manifest.params_bytes if form.embed_params else 0
    plans = manifest.variants
    pieces = [max(len(p.slots) for p in plans) * pointer]  # as modelc_memory.c places them
    for plan in plans:
        counters = len(plan.steps) * COUNTER * (not form.freestanding)
        pieces += [(5 + len(plan.free)) * 8, len(plan.sizes) * 8, counters, pointer]
    return Memory(
        arena=max(plan.arena_bytes for plan in plans),
        scratch=max(plan.scratch_bytes for plan in plans),
        states=sum(state.bytes for plan in plans for state in plan.states),
        handle=sum(map(aligned, pieces)) + 3 * ALIGNMENT,
        made=made_bytes(manifest.made),
        code=code,
        constants=manifest.params_bytes,
        tables=max(0, file - code - embedded),
    )

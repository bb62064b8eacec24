"""The machine code of a Task, as a package takes it and as the cache keeps it."""

from __future__ import annotations

import json
from dataclasses import dataclass

from modelc.ir.expr import Size
from modelc.ir.expr_syntax import parse
from modelc.ir.sizes import sized
from modelc.target import Intrinsic, Target


@dataclass(frozen=True)
class KernelStep:
    """One C function: `void SYMBOL(T* arg..., uint8_t* scratch, int32_t begin, int32_t end)` over [0, extent).
    `written` are those of its arguments that it writes. `intrinsics` are what its loops are made of; without any they
    are plain vectors. `sizes` are numbers that it takes after its arguments, each as wide as an address."""

    symbol: str
    args: tuple[str, ...]
    written: frozenset[str]
    extent: int
    scratch_bytes: int
    intrinsics: tuple[Intrinsic, ...] = ()
    sizes: tuple[Size, ...] = ()


@dataclass(frozen=True)
class Kernel:
    """Machine code of one Task: an object file, or C source for an opaque Block; its steps run in order."""

    symbol: str
    object: bytes | None
    source: str | None
    steps: tuple[KernelStep, ...]
    temporaries: tuple[tuple[str, int], ...]  # name, bytes: arena storage shared by the steps

    def to_bytes(self) -> bytes:
        """A kernel of machine code, for from_bytes()."""
        assert self.object is not None
        steps = [
            {
                **vars(s),
                "written": sorted(s.written),
                "extent": str(s.extent),
                "intrinsics": [i.name for i in s.intrinsics],
                "sizes": [[size.name, size.least, size.most] for size in s.sizes],
            }
            for s in self.steps
        ]
        head = {"symbol": self.symbol, "steps": steps, "temporaries": self.temporaries}
        return json.dumps(head).encode() + b"\n" + self.object

    @staticmethod
    def from_bytes(data: bytes, target: Target) -> Kernel:
        """What to_bytes() gave, of a kernel for `target`."""
        text, _, code = data.partition(b"\n")
        head, by_name = json.loads(text), {i.name: i for i in target.available_intrinsics}
        steps = tuple(
            KernelStep(
                step["symbol"],
                tuple(step["args"]),
                frozenset(step["written"]),
                sized(parse(step["extent"])),
                step["scratch_bytes"],
                tuple(by_name[name] for name in step["intrinsics"]),
                tuple(Size(*size) for size in step["sizes"]),
            )
            for step in head["steps"]
        )
        return Kernel(head["symbol"], code, None, steps, tuple((name, size) for name, size in head["temporaries"]))

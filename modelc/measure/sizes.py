"""What a Nest would take, before it is lowered: statements after unrolling, and memory."""

from __future__ import annotations

from modelc.errors import InvalidIR
from modelc.ir.nest import Alloc, Nest
from modelc.measure.measurement import Limits
from modelc.space.check import unrolled


def check_sizes(nest: Nest, limits: Limits) -> None:
    """Raises InvalidIR for a Nest that is larger than `limits` say."""
    count = statements(nest)
    if count > limits.statements:
        raise InvalidIR(f"it unrolls to {count} statements, and may have {limits.statements}")
    taken = memory(nest)
    if taken > limits.buffer_bytes:
        raise InvalidIR(f"it takes {taken} bytes of memory, and may take {limits.buffer_bytes}")


def statements(nest: Nest) -> int:
    """Statements of the innermost bodies, when what is to be unrolled has been."""
    return sum(map(unrolled, nest.phases))


def memory(nest: Nest) -> int:
    """Bytes of everything that the Nest reads, writes and keeps for itself."""
    own = sum(s.region.bytes for s in nest.statements() if isinstance(s, Alloc))
    return own + sum(r.bytes for r in (*nest.params, *nest.temporaries))

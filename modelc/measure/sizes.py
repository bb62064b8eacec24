"""What a Nest would take, before it is lowered: statements after unrolling, and memory."""

from __future__ import annotations

from collections.abc import Iterable

from modelc.errors import InvalidIR
from modelc.ir.nest import Alloc, Branch, Loop, Nest, Stmt
from modelc.measure.measurement import Limits

LANES = 16  # of a vector loop, at most so many become one statement


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
    return sum(_statements(phase) for phase in nest.phases)


def _statements(body: Iterable[Stmt]) -> int:
    count = 0
    for stmt in body:
        if isinstance(stmt, Loop):
            copies = {"unroll": stmt.extent, "vector": -(-stmt.extent // LANES)}.get(stmt.tag, 1)
            count += copies * _statements(stmt.body)
        elif isinstance(stmt, Branch):
            count += _statements(stmt.then) + _statements(stmt.otherwise)
        else:
            count += not isinstance(stmt, Alloc)
    return count


def memory(nest: Nest) -> int:
    """Bytes of everything that the Nest reads, writes and keeps for itself."""
    own = sum(s.region.bytes for s in nest.statements() if isinstance(s, Alloc))
    return own + sum(r.bytes for r in (*nest.params, *nest.temporaries))

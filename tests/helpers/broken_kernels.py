"""A compiler whose kernels are wrong, for what has to notice."""

from __future__ import annotations

from dataclasses import replace

from modelc.cache.store import Store
from modelc.compile import request
from modelc.ir.expr import Const, op
from modelc.space.choose import Schedules


def broken(monkeypatch) -> None:
    """Every kernel from now on is compiled for a Nest whose maps give 1 more, and kept nowhere."""
    monkeypatch.setattr(request, "user_store", lambda: Store(None))
    accept = Schedules.accepted

    def spoil(statement):
        if hasattr(statement, "part") and statement.part == "assign":
            return replace(statement, body=tuple(op("add", e, Const(1.0, "float32")) for e in statement.body))
        if hasattr(statement, "otherwise"):
            changes = {key: tuple(map(spoil, getattr(statement, key))) for key in ("then", "otherwise")}
            return replace(statement, **changes)
        return replace(statement, body=tuple(map(spoil, statement.body))) if hasattr(statement, "extent") else statement

    def spoiled(nest):
        return replace(nest, phases=tuple(tuple(map(spoil, phase)) for phase in nest.phases))

    def wrong(found):
        return replace(found, nest=spoiled(found.nest))

    monkeypatch.setattr(Schedules, "accepted", lambda *arguments: wrong(accept(*arguments)))

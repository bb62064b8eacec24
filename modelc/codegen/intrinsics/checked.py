"""Intrinsics are compiled in processes of their own, for LLVM ends the process where it cannot select an instruction;
those that a user's files bring before anything is compiled with them."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from threading import Lock

from modelc.codegen.agreed import asked, is_agreed, remember
from modelc.errors import TargetError
from modelc.target import Intrinsic, Target, shipped_intrinsics

SECONDS = 120  # to compile and run one
RIGHT, WRONG, NOT_RUN = "right", "wrong", "not run"
KIND = "intrinsic"
_asking = Lock()


@dataclass(frozen=True)
class Outcome:
    """What came of checking one intrinsic: `right`, `wrong` or `not run`, and why, or how."""

    name: str
    status: str
    reason: str


def require_checked(target: Target) -> None:
    """Raises TargetError where an intrinsic of the target that is not shipped fails the check of `targets check`."""
    if target.intrinsics is None:
        return
    with _asking:  # kernels are compiled in threads
        wrong = _failure(target.intrinsics)
    if wrong is not None:
        raise TargetError(
            f"target {target.name}: nothing is compiled with the intrinsic {wrong.name}, for it fails the check of "
            f"modelc targets check: {wrong.reason}"
        )


@lru_cache
def _failure(intrinsics: tuple[Intrinsic, ...]) -> Outcome | None:
    """The first of a user's that fails; None where all were found right, now or before."""
    implemented = (x for x in intrinsics if x.implementation is not None)
    unshipped = {x.name: (x, question) for x in implemented if (question := _question(x)) not in _shipped()}
    unasked = [intrinsic for intrinsic, question in unshipped.values() if not is_agreed(KIND, question)]
    for outcome in check_intrinsics(unasked):
        if outcome.status == WRONG:
            return outcome
        remember(KIND, unshipped[outcome.name][1])
    return None


@cache
def _shipped() -> frozenset[str]:
    return frozenset(map(_question, shipped_intrinsics()))


def _question(intrinsic: Intrinsic) -> str:
    """All of an intrinsic that the check depends on."""
    return repr(replace(intrinsic, file=None, throughput=1.0, latency=1, temporaries=0))


def check_intrinsics(intrinsics: Sequence[Intrinsic]) -> Iterator[Outcome]:
    """Checks intrinsics in processes of their own; those without an implementation are not run."""
    left = [x for x in intrinsics if x.implementation is not None]
    for intrinsic in (x for x in intrinsics if x.implementation is None):
        yield Outcome(intrinsic.name, NOT_RUN, "it has no implementation: only the interpreter of Nests executes it")
    while left:
        said, words = _asked(left)
        for outcome in said:
            yield outcome
            left.pop(0)
        if left:
            yield Outcome(left.pop(0).name, WRONG, f"LLVM cannot compile it: {words}")


def _asked(intrinsics: Sequence[Intrinsic]) -> tuple[list[Outcome], str]:
    """What a process says of intrinsics until it ends, and why it ended before it was done."""
    seconds = SECONDS * len(intrinsics)
    said, _, words = asked("modelc.codegen.intrinsics.check", pickle.dumps(list(intrinsics)), seconds)
    return [Outcome(**json.loads(line)) for line in said.splitlines() if line.endswith(b"}")], words

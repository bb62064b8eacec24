"""Loops in a plan: what the steps of one ONNX node repeat becomes a loop.

A recurrent node is a Task for each of its steps, a Loop or a Scan its body for each iteration (modelc/frontend); equal
Tasks are the same kernels, and an iteration differs from the one before in where its arguments lie alone. Where each
argument moves by as many bytes from every iteration to the next, the steps of one iteration stand for all, with these
strides, and the runtime runs them as often as there are iterations. Slices of inputs and outputs move by themselves;
what is carried from an iteration to the next is written and read in turns in two places of the arena, as plan_memory
has placed it, and then an iteration of the loop is two of the node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from modelc.package.spec import Argument, Rolled, Step

LEAST_COUNT = 4  # iterations for which a loop is made
MOST_LENGTH = 64  # steps of an iteration


def rolled(given: Sequence[Step]) -> tuple[tuple[Step, ...], tuple[Rolled, ...]]:
    """Steps and loops that run the same kernels on the same data in the same order."""
    steps: list[Step] = []
    loops: list[Rolled] = []
    for _, group in groupby(given, key=lambda step: step.nodes):
        same = tuple(group)
        keys = [_key(step, k) for k, step in enumerate(same)]
        at = 0
        while at < len(same):
            length, count = _longest(same, keys, at)
            if count < LEAST_COUNT:
                steps.append(same[at])
                at += 1
                continue
            loops.append(Rolled(len(steps), length, count))
            steps += [_moving(same[at + k], same[at + k + length]) for k in range(length)]
            at += length * count
    return tuple(steps), tuple(loops)


def _key(step: Step, number: int) -> object:
    """What has to be equal in two steps for them to be iterations of one; what is checked before it runs is no other's
    equal."""
    if step.checks:
        return number
    places = tuple((argument.space, argument.index) for argument in step.arguments)
    return (places, replace(step, name="", arguments=()))


def _longest(steps: Sequence[Step], keys: Sequence[object], at: int) -> tuple[int, int]:
    """(length, count) of the loop from step `at` on that covers most steps, the shortest of these."""
    best = (1, 1)
    for length in range(1, min(MOST_LENGTH, (len(steps) - at) // LEAST_COUNT) + 1):
        if keys[at] != keys[at + length]:
            continue
        moves = [_moves(steps[at + k], steps[at + k + length]) for k in range(length)]
        end = at + length
        while end < len(steps):
            before = end - length
            if keys[before] != keys[end] or _moves(steps[before], steps[end]) != moves[(end - at) % length]:
                break
            end += 1
        count = (end - at) // length
        if length * count > best[0] * best[1]:
            best = (length, count)
    return best


def _moves(step: Step, after: Step) -> tuple[int, ...]:
    """By how many bytes each argument moves."""
    return tuple(b.offset - a.offset for a, b in zip(step.arguments, after.arguments, strict=False))


def _moving(step: Step, after: Step) -> Step:
    moved = zip(step.arguments, _moves(step, after), strict=True)
    return replace(step, arguments=tuple(Argument(a.space, a.index, a.offset, by) for a, by in moved))

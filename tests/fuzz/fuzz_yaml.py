"""Mutated targets, intrinsics, configurations and choices, each read and used as `modelc compile` does.

    python tests/fuzz yaml --cases 500                          # the shipped YAML files
    python tests/fuzz yaml --cases 500 --kinds choices          # the choices.json of a small network
    python tests/fuzz yaml --seed 7 --json found.json

What is accepted is used: a network of a few operators is compiled for the target, by the configuration or from the
choices, up to its kernels. Every case runs in a forked child with limits (forked.py); one that fails is made
smaller by leaving out edits. Exit code 1 where a case ends by a signal, a hang, an exception or for lack of memory.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import yaml
from forked import Case, Limits, run_case, run_cases
from fuzzing import Report
from onnx import TensorProto, helper, numpy_helper
from repository import ROOT

import modelc
from modelc.compile import command as command  # before any child, for all of them
from modelc.compile.config import load_config
from modelc.compile.minimise import minimised
from modelc.target import load_target, read_intrinsics

KINDS = ("target", "intrinsics", "config", "choices")
YAML_KINDS = KINDS[:3]
MOST_EDITS = 4
BYTES = 0.25  # of the cases are edited as bytes, the others as trees
WHOLE = 0.04  # of the cases are one of the bombs below
LONG = 20_000  # characters
DEEP = 1_100  # levels
HUGE = 10**6  # digits
MANY = 5_000  # keys

Tree = Any
Edit = tuple[str, int]  # what is done, and the seed of its choices
Mutation = Callable[[random.Random, Any], Any]


@dataclass(frozen=True)
class Mutated:
    """A file and what is done to it: `edits` to its bytes or to its tree."""

    kind: str
    file: str
    original: bytes
    on_bytes: bool
    edits: tuple[Edit, ...]

    def text(self) -> bytes:
        if self.on_bytes:
            data = self.original
            for name, seed in self.edits:
                data = ON_BYTES[name](random.Random(seed), data)
            return data
        tree = json.loads(self.original) if self.kind == "choices" else yaml.safe_load(self.original)
        for name, seed in self.edits:
            tree = ON_TREES[name](random.Random(seed), copy.deepcopy(tree))
        dumped = json.dumps(tree) if self.kind == "choices" else yaml.safe_dump(tree, sort_keys=False)
        return dumped.encode("utf-8", "surrogatepass")

    def about(self) -> dict[str, Any]:
        return {"kind": self.kind, "file": self.file, "on_bytes": self.on_bytes, "edits": list(self.edits)}


# --- bytes ----------------------------------------------------------------------------------------------------------

TOKENS = (
    *(
        b"\x00",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"\t",
        b"\n---\n",
        b"...\n",
        b"&a ",
        b"*a",
        b"<<: *a\n",
        b"!!python/name:os ",
    ),
    *(
        b"!!binary ",
        b"!!set ",
        b"? ",
        b"- ",
        b": ",
        b"{",
        b"}",
        b"[",
        b"]",
        b"|\n",
        b">-\n",
        b"'",
        b'"',
        b"%YAML 9.9\n",
    ),
    *(b"-1", b"0", b"1e999", b".nan", b".inf", b"0x", b"99999999999999999999", b"1:30:45", b"null", b"true", b"NaN"),
)


def flip(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) or 1)
    return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]


def cut(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) or 1)
    return data[:at] + (b"" if rng.random() < 0.3 else data[at + rng.randrange(1, 60) :])


def insert(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice(TOKENS) + data[at:]


def repeat(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) or 1)
    part = data[at : at + rng.randrange(1, 80)]
    return data[:at] + part * rng.choice((2, 2, 3, 100)) + data[at:]


def swap_lines(rng: random.Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[a], lines[b] = lines[b], lines[a]
    return b"\n".join(lines)


def bomb(rng: random.Random, data: bytes) -> bytes:
    return rng.choice(bombs(data))


def bombs(data: bytes) -> tuple[bytes, ...]:
    """Files that are small and mean much, or are deep, or large."""
    aliases = b"a0: &a0 [x, x]" + b"".join(b"\na%d: &a%d [*a%d, *a%d]" % (k, k, k - 1, k - 1) for k in range(1, 60))
    merges = aliases.replace(b"[x, x]", b"{x: 1}").replace(b"[", b"{<<: [").replace(b"]", b"]}")
    return (
        *(b"[" * DEEP, b"{" * DEEP, b"[" * DEEP + b"]" * DEEP, b'{"a":' * DEEP + b"1" + b"}" * DEEP, b"- " * DEEP),
        *(b"a: " + b"9" * HUGE, b'{"tasks": ' + b"9" * HUGE + b"}", b"a: 1" + b":59" * 30_000, b"? " * DEEP),
        *(aliases, aliases + b"\n" + data, merges + b"\n" + data, b"&a [*a]", b"a: &a {b: *a}", b"", b"\x00" * 100),
        *(b"\n".join(b"k%d: 1" % k for k in range(MANY)), b"x" * 3_000_000, data + b"\n---\n" + data),
    )


ON_BYTES: dict[str, Mutation] = {f.__name__: f for f in (flip, cut, insert, repeat, swap_lines, bomb)}

# --- trees ----------------------------------------------------------------------------------------------------------


def places(tree: Tree) -> list[tuple[Any, Any]]:
    """Every (container, key) below `tree`."""
    found: list[tuple[Any, Any]] = []
    waiting = [tree]
    while waiting:
        one = waiting.pop()
        keys = list(one) if isinstance(one, dict) else range(len(one)) if isinstance(one, list) else ()
        for key in keys:
            found.append((one, key))
            waiting.append(one[key])
    return found


def hostile(rng: random.Random) -> Tree:
    """A value that nobody expects."""
    deep: Tree = 1
    for _ in range(rng.choice((5, 60))):
        deep = [deep]
    values: tuple[Tree, ...] = (
        *(None, True, False, 0, -1, 1, 2, 7, 255, 1 << 31, 1 << 40, 1 << 63, -(1 << 63), 10**30, 10**400),
        *(0.5, 1e-300, 1e300, float("inf"), float("-inf"), float("nan"), -0.0),
        *("", "x", "\x00", "a b", "-", "0", "root", "row-major", "vector", "unroll", "x" * LONG, "\ud800", "é", "../x"),
        *([], {}, [[]], [None], {"": None}, deep, ["x"] * 1000, {f"k{k}": k for k in range(500)}),
    )
    return rng.choice(values)


def replace(rng: random.Random, tree: Tree) -> Tree:
    return on_place(rng, tree, lambda at, key: at.__setitem__(key, hostile(rng)))


def remove(rng: random.Random, tree: Tree) -> Tree:
    return on_place(rng, tree, lambda at, key: at.__delitem__(key))


def duplicate(rng: random.Random, tree: Tree) -> Tree:
    def double(at: Any, key: Any) -> None:
        if isinstance(at, list):
            at.insert(key, copy.deepcopy(at[key]))
        else:
            at[f"{key}{rng.choice(('0', '1', '_', ' '))}"] = copy.deepcopy(at[key])

    return on_place(rng, tree, double)


def rename(rng: random.Random, tree: Tree) -> Tree:
    def renamed(at: Any, key: Any) -> None:
        value = at[key]
        del at[key]
        if isinstance(at, list):
            at.append(value)
        else:
            at[rng.choice((str(key)[::-1], "", "x", "constructor", str(key).upper()))] = value

    return on_place(rng, tree, renamed)


def exchange(rng: random.Random, tree: Tree) -> Tree:
    def swapped(at: Any, key: Any) -> None:
        other, second = rng.choice(places(tree))
        at[key] = copy.deepcopy(other[second])

    return on_place(rng, tree, swapped)


def alike(rng: random.Random, tree: Tree) -> Tree:
    """A leaf that takes the place of another of its type, such as a tag or a size."""

    def taken(at: Any, key: Any) -> None:
        kind = type(at[key])
        other, second = rng.choice([(a, k) for a, k in leaves(tree) if type(a[k]) is kind])
        at[key] = other[second]

    return on_place(rng, tree, taken, leaves(tree))


def nudge(rng: random.Random, tree: Tree) -> Tree:
    """Another number, or a text that is edited: what is nearly right goes deepest."""

    def nudged(at: Any, key: Any) -> None:
        value = at[key]
        if isinstance(value, bool) or value is None or isinstance(value, list | dict):
            at[key] = not value
        elif isinstance(value, int | float):
            at[key] = rng.choice((value + 1, value - 1, value * 2, value * 3, -value, value * 1000, value // 2))
        else:
            edit = rng.choice((flip, cut, insert, repeat))
            at[key] = edit(rng, value.encode("utf-8", "surrogatepass")).decode("utf-8", "replace").replace("\x00", "0")

    return on_place(rng, tree, nudged, leaves(tree))


def leaves(tree: Tree) -> list[tuple[Any, Any]]:
    return [(at, key) for at, key in places(tree) if not isinstance(at[key], list | dict)]


def on_place(
    rng: random.Random, tree: Tree, edit: Callable[[Any, Any], None], among: list[tuple[Any, Any]] | None = None
) -> Tree:
    found = places(tree) if among is None else among
    if not found:
        return hostile(rng)
    edit(*rng.choice(found))
    return tree


ON_TREES: dict[str, Mutation] = {f.__name__: f for f in (replace, remove, duplicate, rename, exchange, alike, nudge)}
OFTEN = ("nudge", "alike", "alike") * 3  # these come through the readers

# --- cases ----------------------------------------------------------------------------------------------------------


def network(path: Path) -> Path:
    """A convolution, a pool, a product and a softmax: Tasks of every kind."""
    rng = np.random.default_rng(0)
    weights = {"w": (8, 3, 3, 3), "b": (8,), "m": (32, 10)}
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[4, 4], strides=[4, 4]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "m"], ["l"]),
        helper.make_node("Softmax", ["l"], ["y"]),
    ]
    arrays = [numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), n) for n, s in weights.items()]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [1, 3, 8, 8]), ("y", [1, 10])))
    graph = helper.make_graph(nodes, "small", [x], [y], arrays)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def originals(kinds: list[str], folder: Path) -> list[tuple[str, str, bytes]]:
    """Kind, name and bytes of what there is to mutate."""
    places = {"target": "targets/*.yaml", "intrinsics": "targets/intrinsics/*.yaml", "config": "configs/*.yaml"}
    found = [
        (kind, str(path.relative_to(ROOT)), path.read_bytes())
        for kind in kinds
        if kind != "choices"
        for path in sorted(ROOT.glob(places[kind]))
    ]
    if "choices" in kinds:
        modelc.compile(folder / "small.onnx", target="x86-64-v3", output=folder / "small.modelc", verify=False)
        found.append(("choices", "choices.json", (folder / "small.modelc/choices.json").read_bytes()))
    return found


def mutations(kinds: list[str], seed: int, count: int, folder: Path) -> Iterator[Mutated]:
    """Kinds by turns, files at random."""
    rng, every = random.Random(seed), originals(kinds, folder)
    for k in range(count):
        kind = kinds[k % len(kinds)]
        _, file, data = rng.choice([one for one in every if one[0] == kind])
        on_bytes = rng.random() < BYTES
        names = [name for name in ON_BYTES if name != "bomb"] if on_bytes else [*ON_TREES, *OFTEN]
        edits = [(rng.choice(names), rng.randrange(1 << 32)) for _ in range(rng.choice((1, 1, 1, 2, MOST_EDITS)))]
        if rng.random() < WHOLE:
            on_bytes, edits = True, [("bomb", rng.randrange(1 << 32))]
        yield Mutated(kind, file, data, on_bytes, tuple(edits))


def case_of(mutated: Mutated, folder: Path) -> Case:
    return Case(f"{mutated.kind} {mutated.file} {mutated.edits}", partial(use, mutated, folder), mutated.about())


def use(mutated: Mutated, folder: Path) -> str:
    """Reads the file, and compiles with what it says; in the child."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        place = Path(name)
        path = place / ("choices.json" if mutated.kind == "choices" else "mutated.yaml")
        path.write_bytes(mutated.text())
        given: dict[str, Any]
        if mutated.kind == "intrinsics":
            return f"{len(read_intrinsics(path))} intrinsics"
        if mutated.kind == "target":
            given = {"target": load_target(path)}
        elif mutated.kind == "config":
            given = {"target": "x86-64-v3", "config": load_config(path)}
        else:
            given = {"choices": path}
        modelc.compile(
            folder / "small.onnx", output=place / "p", stop_after="codegen", verify=False, threads=1, **given
        )
        return "compiled"


def fuzz(kinds: list[str], seed: int, count: int, limits: Limits, jobs: int = 1, small: bool = True) -> Report:
    """Runs `count` cases of `kinds`; with `small`, failures are made smaller."""
    report = Report(seed)
    with tempfile.TemporaryDirectory(prefix="modelc-fuzz-") as name:
        folder = Path(name)
        network(folder / "small.onnx")
        made: dict[str, Mutated] = {}

        def cases() -> Iterator[Case]:
            for mutated in mutations(kinds, seed, count, folder):
                case = case_of(mutated, folder)
                made[case.name] = mutated
                yield case

        for case, outcome in run_cases(cases(), limits, jobs):
            mutated = made.pop(case.name, None)
            if report.add(case, outcome) and small and mutated is not None and outcome.kind != "hang":

                def fails(edits: Any, mutated: Mutated = mutated, outcome: Any = outcome) -> bool:
                    found = run_case(case_of(with_edits(mutated, edits), folder), limits)
                    return (found.kind, found.signature) == (outcome.kind, outcome.signature)

                report.replace(outcome, case_of(with_edits(mutated, minimised(mutated.edits, fails)), folder))
    return report


def with_edits(mutated: Mutated, edits: Any) -> Mutated:
    return Mutated(mutated.kind, mutated.file, mutated.original, mutated.on_bytes, tuple(edits))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--kinds", default=",".join(YAML_KINDS), help=f"of {', '.join(KINDS)} (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each case")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=Path, help="where to write what was found")
    arguments = parser.parse_args()
    kinds = arguments.kinds.split(",")
    if unknown := set(kinds) - set(KINDS):
        parser.error(f"unknown kinds {', '.join(sorted(unknown))}; known are {', '.join(KINDS)}")
    report = fuzz(kinds, arguments.seed, arguments.cases, Limits(seconds=arguments.seconds), arguments.jobs)
    return report.finish(arguments.json)

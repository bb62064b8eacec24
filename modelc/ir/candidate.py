"""The Candidate: a Sketch with every knob filled, as plain data (DESIGN section 1).

    {"stages": [{"rule": "pad", "block": "conv", "buffer": "x0"}],
     "layouts": {"x1": "pad(0, 0, 24).split(0, 32).reorder(0, 3, 4, 2, 1)"},
     "blocks": {"conv": {"at": "root", "scope": "register",
                         "tiles": {"o": [32, 16], "w": [14]},
                         "order": ["h0", "o0", "w0", "c0", "r0", "s0", "w1", "o1", "o2"],
                         "tags": {"h0": "parallel", "w1": "unroll", "o1": "unroll", "o2": "vector"},
                         "padded": ["o"]},
                "pad_x0": {"at": "conv.h0", "scope": "local", ...}}}

`stages` are the derivation rules that rewrote the Task, in order; `layouts` store constants and locals otherwise than
row-major. A Block's iterator x with tiles [a, b] has loops x0 (over tiles of a), x1 (over tiles of b within a) and x2
(within b). `order` lists its loops from the outermost; an iterator that is not listed there is bound by what the Block
is placed in (`at`: "root", or a loop "BLOCK.LOOP"). Loops and places are texts in JSON alone, and values everywhere
else (loop.py). The JSON schema is candidate.schema.json beside this file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelc.ir.expr_syntax import parse
from modelc.ir.layout import Layout
from modelc.ir.loop import ROOT, Inside, Loop, Root, place_of
from modelc.ir.remembering import Remembering
from modelc.ir.sizes import MOST_TEXT, DependsOnSize, is_sized, sized

if TYPE_CHECKING:
    import jsonschema


@dataclass(frozen=True)
class Stage:
    """One derivation rule applied to a Task: its name and arguments (strings and whole numbers)."""

    rule: str
    args: Mapping[str, str | int] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash((self.rule, frozenset(self.args.items())))


@dataclass(frozen=True)
class BlockSchedule:
    """Where one Block runs and how its loops are tiled; see the module's example."""

    at: Inside | Root = ROOT
    scope: str = "arena"
    tiles: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    order: tuple[Loop, ...] = ()
    tags: Mapping[Loop, str] = field(default_factory=dict)
    padded: tuple[str, ...] = ()  # iterators whose vector loop runs over whole vectors at the boundary too
    # operand -> the loop whose next part is fetched, or ROOT: what the whole Block leads to where it is placed
    prefetch: Mapping[str, Loop | Root] = field(default_factory=dict)

    def __hash__(self) -> int:
        knobs = (frozenset(knob.items()) for knob in (self.tiles, self.tags, self.prefetch))
        return hash((self.at, self.scope, self.order, self.padded, *knobs))


@dataclass(frozen=True)
class Candidate(Remembering):
    """The schedule of one Task."""

    blocks: Mapping[str, BlockSchedule]
    stages: tuple[Stage, ...] = ()
    layouts: Mapping[str, Layout] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash((frozenset(self.blocks.items()), self.stages, frozenset(self.layouts.items())))

    @cached_property
    def key(self) -> str:
        """Equal Candidates have equal keys, from process to process, and others have others: that of to_json()."""
        return key_of(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Plain data, valid against candidate.schema.json."""
        return {
            "stages": [{"rule": s.rule, **{k: _written(v) for k, v in s.args.items()}} for s in self.stages],
            "layouts": {name: str(layout) for name, layout in self.layouts.items()},
            "blocks": {
                name: {
                    "at": str(b.at),
                    "scope": b.scope,
                    "tiles": {i: list(t) for i, t in b.tiles.items()},
                    "order": list(map(str, b.order)),
                    "tags": {str(loop): tag for loop, tag in b.tags.items()},
                    "padded": list(b.padded),
                    **({"prefetch": {name: str(x) for name, x in b.prefetch.items()}} if b.prefetch else {}),
                }
                for name, b in self.blocks.items()
            },
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Candidate:
        """Reads what to_json() gives. Raises ValueError where it does not fit candidate.schema.json."""
        validate_candidate(data)
        return Candidate.parsed(data)

    @staticmethod
    def parsed(data: Mapping[str, Any]) -> Candidate:
        """The same of data that to_json() gave, to this modelc."""
        blocks = {
            name: BlockSchedule(
                place_of(b["at"]),
                b["scope"],
                {i: tuple(map(int, t)) for i, t in b["tiles"].items()},
                tuple(map(Loop.parse, b["order"])),
                {Loop.parse(loop): tag for loop, tag in b["tags"].items()},
                tuple(b["padded"]),
                {n: ROOT if x == str(ROOT) else Loop.parse(x) for n, x in b.get("prefetch", {}).items()},
            )
            for name, b in data["blocks"].items()
        }
        stages = tuple(Stage(s["rule"], {k: _read(v) for k, v in s.items() if k != "rule"}) for s in data["stages"])
        return Candidate(blocks, stages, {k: Layout.parse(v) for k, v in data["layouts"].items()})

    def __str__(self) -> str:
        return json.dumps(self.to_json(), indent=1)


def _written(argument: str | int) -> str | int:
    """A stage's argument in JSON: a number that depends on sizes as `=` and its expression."""
    return f"={argument}" if is_sized(argument) else argument


def _read(argument: str | int) -> str | int:
    if not isinstance(argument, str) or not argument.startswith("="):
        return argument
    if len(argument) > MOST_TEXT:
        raise ValueError(f"a number of {len(argument)} characters; at most {MOST_TEXT} are read")
    try:
        return sized(parse(argument[1:]))
    except DependsOnSize as wrong:
        raise ValueError(f"{argument!r} is no whole number of sizes: {wrong}") from None


def key_of(data: object) -> str:
    """The key of plain data: hexadecimal digits of its canonical JSON's sha256."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@cache
def _validator() -> jsonschema.Draft202012Validator:
    import jsonschema  # it takes long, and what is constructed here is not validated

    return jsonschema.Draft202012Validator(json.loads(Path(__file__).with_name("candidate.schema.json").read_text()))


def validate_candidate(data: object) -> None:
    """Checks plain data against candidate.schema.json, and its layouts. Raises ValueError with a sentence that names
    the place; whether the candidate fits a Task is for space/ to say."""
    from jsonschema.exceptions import best_match

    error = best_match(_validator().iter_errors(data))
    if error is not None:
        place = ".".join(map(str, error.absolute_path)) or "the candidate"
        raise ValueError(f"{place} does not fit candidate.schema.json: {error.message}")
    for name, layout in data["layouts"].items():  # type: ignore[index]
        try:
            Layout.parse(layout)
        except ValueError as wrong:
            raise ValueError(f"layouts.{name}: {wrong}") from None

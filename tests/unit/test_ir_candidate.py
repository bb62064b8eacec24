"""Candidates as plain data: the published schema accepts what is written and refuses what is broken."""

import copy
import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from schedules import loops, tagged

import modelc.ir.candidate
from modelc.ir.candidate import BlockSchedule, Candidate, Stage, validate_candidate
from modelc.ir.layout import Layout
from modelc.ir.loop import ROOT, Inside, Loop, place_of

CANDIDATE = Candidate(
    {
        "conv": BlockSchedule(
            ROOT,
            "register",
            {"o": (32, 16), "w": (14,)},
            loops("h0 o0 w0 c0 w1 o1 o2"),
            tagged(h0="parallel", w1="unroll", o2="vector"),
            ("o",),
        ),
        "pad_x0": BlockSchedule(Inside("conv", Loop("h", 0)), "local"),
    },
    (
        Stage("pad", {"block": "conv", "buffer": "x0"}),
        Stage("rfactor", {"block": "sum", "iter": "j", "size": 16, "parts": "inner"}),
    ),
    {"x1": Layout.parse("pad(0, 0, 24).split(0, 32)"), "t": Layout()},
)


def test_round_trip_through_json():
    data = json.loads(str(CANDIDATE))
    validate_candidate(data)
    assert Candidate.from_json(data) == CANDIDATE
    assert hash(Candidate.from_json(data)) == hash(CANDIDATE)


def test_loops_and_places_are_written_as_they_always_were():
    conv, pad = (CANDIDATE.to_json()["blocks"][name] for name in ("conv", "pad_x0"))
    assert (conv["at"], pad["at"]) == ("root", "conv.h0")
    assert conv["order"] == ["h0", "o0", "w0", "c0", "w1", "o1", "o2"]
    assert conv["tags"] == {"h0": "parallel", "w1": "unroll", "o2": "vector"}
    prefetch = {"w": Loop("h", 0), "y": ROOT}
    data = other(prefetch=prefetch).to_json()
    assert data["blocks"]["conv"]["prefetch"] == {"w": "h0", "y": "root"}
    assert Candidate.from_json(data).blocks["conv"].prefetch == prefetch


@pytest.mark.parametrize("place", [ROOT, Inside("conv", Loop("h", 0)), Inside("s0_parts", Loop("w_1", 2))], ids=str)
def test_places_are_read_as_they_are_written(place):
    assert place_of(str(place)) == place


@pytest.mark.parametrize("text", ["", "h", "0", "h-", "conv."])
def test_what_is_no_loop(text):
    with pytest.raises(ValueError, match="is no loop: expected an iterator and a level, such as h0"):
        Loop.parse(text)


def test_the_schema_is_a_schema():
    schema = json.loads(Path(modelc.ir.candidate.__file__).with_name("candidate.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)


def broken(change):
    data = copy.deepcopy(CANDIDATE.to_json())
    change(data)
    return data


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda d: d.pop("stages"),
            "the candidate does not fit candidate.schema.json: 'stages' is a required property",
        ),
        (lambda d: d.update(more=1), "'more' was unexpected"),
        (lambda d: d["stages"].append({"block": "x"}), "stages.2 does not fit .*: 'rule' is a required property"),
        (lambda d: d["stages"][0].update(block=[1]), r"stages.0.block does not fit"),
        (lambda d: d["layouts"].update(x="sideways"), "layouts.x does not fit"),
        (lambda d: d["layouts"].update(x="split(0)"), "layouts.x: .*split takes at least 2 numbers"),
        (lambda d: d["blocks"]["conv"].pop("order"), "blocks.conv does not fit .*: 'order' is a required property"),
        (lambda d: d["blocks"]["conv"].update(at="conv"), "blocks.conv.at does not fit"),
        (lambda d: d["blocks"]["conv"].update(scope="heap"), "blocks.conv.scope does not fit .*'heap' is not one of"),
        (lambda d: d["blocks"]["conv"]["tiles"].update(o=[0]), "blocks.conv.tiles.o.0 does not fit"),
        (lambda d: d["blocks"]["conv"]["tiles"].update(o=8), "blocks.conv.tiles.o does not fit"),
        (lambda d: d["blocks"]["conv"]["tags"].update(h0="gpu"), "blocks.conv.tags.h0 does not fit"),
        (lambda d: d["blocks"]["conv"]["tags"].update(h="for"), "blocks.conv.tags does not fit"),
        (lambda d: d["blocks"]["conv"]["order"].append("h0"), "blocks.conv.order does not fit .* non-unique"),
    ],
)
def test_broken_candidates_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Candidate.from_json(broken(change))


@pytest.mark.parametrize("data", [None, [], "conv", {"blocks": 1, "stages": [], "layouts": {}}])
def test_what_is_no_candidate_at_all(data):
    with pytest.raises(ValueError, match=r"does not fit candidate\.schema\.json"):
        validate_candidate(data)


def other(**knobs):
    return replace(CANDIDATE, blocks={**CANDIDATE.blocks, "conv": replace(CANDIDATE.blocks["conv"], **knobs)})


OTHERS = (
    other(at=Inside("pad_x0", Loop("h", 0))),
    other(scope="local"),
    other(tiles={"o": (16, 16), "w": (14,)}),
    other(tags=tagged(h0="parallel")),
    other(padded=()),
    other(prefetch={"w": Loop("h", 0)}),
    replace(CANDIDATE, stages=CANDIDATE.stages[:1]),
    replace(CANDIDATE, layouts={}),
)


def test_hashes_and_keys_tell_every_knob():
    assert len({hash(c) for c in (CANDIDATE, *OTHERS)}) == len({c.key for c in (CANDIDATE, *OTHERS)}) == 9
    reversed_ = replace(CANDIDATE, blocks=dict(reversed(CANDIDATE.blocks.items())))
    assert (reversed_, hash(reversed_), reversed_.key) == (CANDIDATE, hash(CANDIDATE), CANDIDATE.key)
    assert CANDIDATE.key == Candidate.from_json(json.loads(str(CANDIDATE))).key and int(CANDIDATE.key, 16)

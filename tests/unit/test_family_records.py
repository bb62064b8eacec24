"""Records of a family of machines: what is read of a file, which Tasks get them, and what is shipped."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from records_of_families import (
    FAR,
    NONE,
    OTHER,
    PRODUCT,
    TALLER,
    TARGET,
    WIDER,
    changed,
    family,
    others_of,
    read_back,
    record_of,
    schedules,
    untuned_of,
    written,
)
from three_ways import task_of

from modelc.errors import TargetError
from modelc.ir.block import Task
from modelc.policy import Policy
from modelc.space.carry import LEAST_GAIN, carried, distance, kind_of, named
from modelc.space.choose import Schedules
from modelc.target import Target, load_target
from modelc.target.records import MOST_BYTES, FamilyRecords, parse_records, shipped_records
from modelc.target.section import targets_folder

# --- the file -------------------------------------------------------------------------------------------------------


@cache
def records() -> FamilyRecords:
    return family(record_of(PRODUCT), record_of(WIDER, 0.75))


def test_what_is_written_is_read_back() -> None:
    again = read_back(records())
    assert again.records == records().records and again.machine == TARGET.machine and again.threads == 1
    assert again.lines() == records().lines()


def put(**values: Any) -> Callable[[dict[str, Any]], object]:
    return lambda tree: tree.update(values)


POINT = {"sketch": "vectors", "knobs": {}}
WRONG: dict[str, tuple[int, Callable[[dict[str, Any]], object], str]] = {
    "a later format": (0, put(modelc_family_records=2), "line 1: modelc_family_records is 2; expected 1: this modelc"),
    "no machine": (0, lambda tree: tree.pop("machine"), "line 1 lacks the key 'machine'"),
    "a machine of words": (0, put(machine="zen4"), "line 1: machine is 'zen4'; expected a mapping"),
    "caches of words": (0, lambda t: t["machine"].update(caches=["L1"]), "machine.caches is ['L1']; expected a list"),
    "half a core": (0, lambda tree: tree["machine"].update(cores=0.5), "machine.cores is 0.5; expected a whole"),
    "no threads": (0, put(threads=0), "line 1: threads is 0; expected a whole number from 1"),
    "more": (0, put(more=1), "line 1 has an unknown key 'more'"),
    "no task": (1, put(task=7), "line 2: task is 7; expected the text of a task"),
    "half a task": (1, put(task="task t(b0) -> (b1)"), "line 2: task is 'task t(b0) -> (b1)'; expected the text"),
    "another's names": (1, put(task=str(PRODUCT).replace("b0", "x0")), "expected the text of a canonical task"),
    "a long task": (1, put(task="x" * 20_001), "expected the text of a task, of at most 20000 characters"),
    "slower": (1, put(relative=1.0), "line 2: relative is 1.0; expected a number below 1"),
    "never": (1, put(relative=0), "line 2: relative is 0; expected a positive number"),
    "no cache": (1, put(constants=""), "line 2: constants is ''; expected the name of a cache"),
    "a point of words": (1, put(faster="vectors"), "line 2: faster is 'vectors'; expected a mapping"),
    "knobs of lists": (1, put(faster=POINT | {"knobs": {"a": [1]}}), "faster.knobs is"),
    "a true knob": (1, put(faster=POINT | {"knobs": {"a": True}}), "faster.knobs is"),
    "a huge knob": (1, put(faster=POINT | {"knobs": {"a": 1 << 40}}), "faster.knobs is"),
    "many knobs": (1, put(faster=POINT | {"knobs": dict.fromkeys(map(str, range(101)), 1)}), "at most 100 names"),
    "no Sketch": (1, put(untuned=POINT | {"sketch": 3}), "line 2: untuned.sketch is 3; expected the name"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_a_file_cannot_say(what: str) -> None:
    line, change, sentence = WRONG[what]
    with pytest.raises(TargetError) as error:
        parse_records(changed(records(), line, change), "r.jsonl")
    assert str(error.value).startswith("r.jsonl, line ") and sentence in str(error.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "r.jsonl is empty"),
        ("records", "r.jsonl, line 1 is not JSON"),
        ("[" * 200_000, "r.jsonl, line 1 is not JSON"),
        ('{"threads": NaN}', "r.jsonl, line 1 is not JSON: NaN is no number of JSON"),
        ("7", "the file is 7; expected a mapping"),
        ("\n" * (MOST_BYTES + 1), f"expected records of a family of machines, which has at most {MOST_BYTES}"),
    ],
)
def test_what_is_no_file_of_records(text: str, sentence: str) -> None:
    with pytest.raises(TargetError) as error:
        parse_records(text, "r.jsonl")
    assert sentence in str(error.value)


def target_beside(folder: Path, name: object) -> Target:
    tree = {**yaml.safe_load(TARGET.to_yaml()), "records": name}
    (folder / "mine.yaml").write_text(yaml.safe_dump(tree))
    return load_target(folder / "mine.yaml")


def test_a_target_names_its_records(tmp_path: Path) -> None:
    written(tmp_path / "mine.jsonl", records())
    target = target_beside(tmp_path, "mine.jsonl")
    (own,) = target.family_records
    assert own.records == records().records
    assert target == TARGET and "records" not in target.to_yaml(), "choices keep what was taken, not the file"


def test_which_files_a_target_cannot_name(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    written(tmp_path / "elsewhere.jsonl", records())
    (folder / "away.jsonl").symlink_to("../elsewhere.jsonl")
    other = replace(TARGET, cores=TARGET.cores + 1)
    written(folder / "others.jsonl", family(target=other))
    sentences = {
        "../elsewhere.jsonl": "expected a path that stays in the folder of this file",
        "away.jsonl": "expected a path that stays in the folder of this file",
        "none.jsonl": "none.jsonl cannot be read as records of a family of machines: No such file",
        "others.jsonl": f"records is 'others.jsonl, of cores {other.cores}'; expected records of a machine whose cores",
    }
    for name, sentence in sentences.items():
        with pytest.raises(TargetError) as error:
            target_beside(folder, name)
        assert sentence in str(error.value)
    with pytest.raises(TargetError, match="records is 7; expected a path"):
        target_beside(folder, 7)


# --- which Tasks get them -------------------------------------------------------------------------------------------


def offers(*tasks: Task, by: FamilyRecords, place: str = NONE, threads: int = 1) -> list[str]:
    """The Tasks that get another schedule, by their hash."""
    return sorted(carried(tasks, schedules(), [by], threads, lambda task: place).offers)


def test_an_equal_task_and_a_near_one_get_what_was_faster() -> None:
    by = family(record_of(PRODUCT))
    near = PRODUCT, TALLER, WIDER
    assert offers(*near, FAR, OTHER, by=by) == sorted(task.hash for task in near)
    offer = carried([PRODUCT], schedules(), [by], 1, lambda task: NONE).offers[PRODUCT.hash]
    sketch = schedules().families(PRODUCT)[offer.family][offer.number]
    assert (sketch.name, sketch.recorded(offer.point)) == (by.records[0].faster.sketch, by.records[0].faster.knobs)


def test_other_conditions_get_nothing() -> None:
    by = family(record_of(PRODUCT))
    assert not offers(PRODUCT, by=by, place="L2") and not offers(PRODUCT, by=by, threads=2)
    assert not offers(PRODUCT, by=family(record_of(PRODUCT), threads=2))


def test_the_price_has_a_say() -> None:
    """Near by a distance d the price's error counts to the power of 1 - d: what gains little where it was measured, and
    is priced higher, is not taken elsewhere."""
    faster, factor = max(others_of(PRODUCT, schedules()), key=lambda pair: pair[1])
    assert factor > 1.05
    record = replace(record_of(PRODUCT), faster=faster, relative=0.97)
    assert offers(PRODUCT, WIDER, by=family(record)) == [PRODUCT.hash]
    assert not offers(PRODUCT, by=family(replace(record, relative=1 - LEAST_GAIN / 2))), "too little"


def test_the_nearest_record_counts() -> None:
    best, second = [point for point, _ in others_of(PRODUCT, schedules())][:2]
    near = replace(record_of(PRODUCT), faster=best, relative=0.9)
    far = replace(record_of(WIDER), faster=second, relative=0.4)
    for order in ((near, far), (far, near)):
        offer = carried([PRODUCT], schedules(), [family(*order)], 1, lambda task: NONE).offers[PRODUCT.hash]
        sketch = schedules().families(PRODUCT)[0][offer.number]
        assert sketch.recorded(offer.point) == best.knobs


def test_a_record_says_nothing_of_another_untuned_schedule() -> None:
    """What was compared with a schedule that is 5 % slower by the price may be slower than what compile chooses now."""
    slow, factor = max(others_of(PRODUCT, schedules()), key=lambda pair: pair[1])
    assert factor > 1.05
    record = replace(record_of(PRODUCT), untuned=slow)
    assert record.faster != record.untuned and not offers(PRODUCT, by=family(record))
    assert not offers(
        PRODUCT,
        by=family(replace(record, untuned=untuned_of(PRODUCT, schedules()), faster=untuned_of(PRODUCT, schedules()))),
    )


def test_stale_records_are_left_alone_and_told() -> None:
    good = record_of(PRODUCT)
    stale = {
        "there is no Sketch 'yesterday'": replace(good.faster, sketch="yesterday"),
        "the knobs of": replace(good.faster, knobs={**good.faster.knobs, "gone": 1}),
    }
    for sentence, point in stale.items():
        found = carried([PRODUCT], schedules(), [family(replace(good, faster=point))], 1, lambda task: NONE)
        assert not found.offers
        assert len(found.notes) == 1 and sentence in found.notes[0], found.notes


@given(st.lists(st.integers(8, 40), min_size=3, max_size=3), st.lists(st.integers(8, 40), min_size=3, max_size=3))
def test_kinds_are_texts_without_sizes(own: list[int], other: list[int]) -> None:
    one, another = (task_of("MatMul", {}, [(m, k), (k, n)]).canonical() for m, k, n in (own, other))
    assert kind_of(one) == kind_of(another)
    far = distance(one, another)
    factors = [max(a / b, b / a) for a, b in zip(own, other, strict=True)]
    assert 2**far == pytest.approx(max(factors)) and far == pytest.approx(distance(another, one))


def test_strides_windows_and_small_sizes_tell_kinds_apart() -> None:
    shapes = {"strides": (2, 1), "kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}
    base = task_of("Conv", shapes, [(1, 16, 20, 20), (32, 16, 3, 3)], (1,)).canonical()
    for attrs, inputs in (
        (shapes | {"strides": (1, 1)}, [(1, 16, 20, 20), (32, 16, 3, 3)]),
        (shapes | {"kernel_shape": (5, 5)}, [(1, 16, 20, 20), (32, 16, 5, 5)]),
        (shapes, [(2, 16, 20, 20), (32, 16, 3, 3)]),
        (shapes, [(1, 4, 20, 20), (32, 4, 3, 3)]),
    ):
        assert kind_of(task_of("Conv", attrs, inputs, (1,)).canonical()) != kind_of(base)
    larger = task_of("Conv", shapes, [(1, 24, 28, 20), (48, 24, 3, 3)], (1,)).canonical()
    assert kind_of(larger) == kind_of(base)


# --- what is shipped ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted((targets_folder() / "records").glob("*.jsonl")), ids=lambda path: path.stem)
def test_shipped_records_are_of_today_s_space(path: Path) -> None:
    """Every record names points of Sketches that there are, on a machine of its family. What is stale has to be
    measured again: `modelc tune`, `modelc database best`."""
    assert path.stat().st_size <= MOST_BYTES
    (shipped,) = [records for records in shipped_records() if records.source == str(path)]
    own = Schedules(_machine(shipped), Policy())
    stale = []
    for number, record in enumerate(shipped.records, 2):
        sketches = own.families(record.task)[0]
        try:
            points = [named(sketches, point) for point in (record.untuned, record.faster)]
            assert all(point.sketch.candidate(point.point) for point in points)
        except ValueError as wrong:
            stale.append(f"line {number}: {wrong}")
    assert not stale, "\n".join(stale)
    assert len({json.dumps(record.to_json()) for record in shipped.records}) == len(shipped)


def _machine(shipped: FamilyRecords) -> Target:
    """A target of the family."""
    base, machine = load_target("x86-64-v4"), shipped.machine
    private = [
        replace(cache, bytes=size)
        for cache, size in zip(base.caches, machine["caches"], strict=False)
        if not cache.shared
    ]
    caches = (*private, *(cache for cache in base.caches if cache.shared))
    target = replace(base, cores=machine["cores"], fma_ports=machine["fma_ports"], caches=caches, intrinsics=None)
    assert target.machine == machine
    return target


def test_another_family_gets_none() -> None:
    for shipped in shipped_records():
        target = _machine(shipped)
        assert shipped in target.family_records
        for other in (
            replace(target, cores=target.cores + 1),
            replace(target, fma_ports=target.fma_ports + 1),
            replace(target, caches=target.caches[1:]),
            load_target("x86-64-v3"),
            load_target("cortex-a72"),
        ):
            assert shipped not in other.family_records

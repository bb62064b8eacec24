"""The cache keeps what it was given, and never gives anything else."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelc.cache import code
from modelc.cache.store import Kind, Store
from modelc.target.section import targets_folder


def fresh(folder: Path, **more) -> Store:
    folder.mkdir(mode=0o700, exist_ok=True)
    return Store(folder / "kept.sqlite", **more)


ROWS = st.dictionaries(st.binary(min_size=1, max_size=40), st.binary(max_size=200), max_size=20)


@given(first=ROWS, second=ROWS)
def test_what_was_put_is_there_for_other_processes(tmp_path_factory, first, second) -> None:
    folder = tmp_path_factory.mktemp("cache")
    writing = fresh(folder)
    writing.put("a", first)
    writing.put("a", second)
    writing.put("b", {key: b"other" for key in first})
    for store in (writing, fresh(folder)):
        assert store.get("a", [*first, *second, b"\0" * 41]) == first | second
        assert store.get("b", first) == dict.fromkeys(first, b"other")


def test_without_a_file_a_process_keeps_it_alone() -> None:
    store = Store(None)
    store.put("a", {b"k": b"data"})
    assert store.get("a", [b"k", b"l"]) == {b"k": b"data"}
    assert store.kinds() == [] and not store.trouble


@pytest.mark.parametrize("column", ["key", "data", "digest", "kind"])
def test_a_row_that_was_written_over_is_none(tmp_path, column) -> None:
    fresh(tmp_path).put("a", {b"k": b"data", b"l": b"more"})
    with sqlite3.connect(tmp_path / "kept.sqlite") as connection:
        connection.execute(f"UPDATE kept SET {column} = ? WHERE key = ?", ("b" if column == "kind" else b"x", b"k"))
    store = fresh(tmp_path)
    assert store.get("a", [b"k", b"l", b"x"]) == {b"l": b"more"}
    assert store.get("b", [b"k"]) == {}
    assert not store.trouble


@pytest.mark.parametrize("damage", ["cut", "garbage", "empty", "other schema", "folder"])
def test_a_damaged_file_is_not_used_and_said(tmp_path, damage) -> None:
    place = tmp_path / "kept.sqlite"
    fresh(tmp_path).put("a", {bytes([k]): b"data" * 500 for k in range(200)})
    whole = place.read_bytes()
    place.unlink()
    if damage == "folder":
        place.mkdir()
    elif damage == "other schema":
        with sqlite3.connect(place) as connection:
            connection.execute("CREATE TABLE kept (something TEXT)")
    else:
        place.write_bytes({"cut": whole[: len(whole) // 2], "garbage": b"no database" * 1000, "empty": b""}[damage])
    store = fresh(tmp_path)
    rows = store.get("a", [bytes([k]) for k in range(200)])
    assert set(rows.values()) <= {b"data" * 500}
    if damage != "empty":
        assert "modelc cache clear" in store.trouble
        store.put("a", {b"k": b"data"})  # which does nothing
    else:
        store.put("a", {b"k": b"data"})
        assert fresh(tmp_path).get("a", [b"k"]) == {b"k": b"data"} or store.trouble


def test_a_folder_that_others_can_write_in_is_not_used(tmp_path) -> None:
    fresh(tmp_path).put("a", {b"k": b"data"})
    tmp_path.chmod(0o777)
    store = Store(tmp_path / "kept.sqlite")
    assert store.get("a", [b"k"]) == {} and "others can write" in store.trouble


def test_the_file_stays_bounded_and_what_was_used_last_stays(tmp_path) -> None:
    most = 1 << 18
    store = fresh(tmp_path, most_bytes=most)
    for k in range(100):
        fresh(tmp_path, most_bytes=most).put("a", {bytes([k]): bytes([k]) * 10_000})
        assert (tmp_path / "kept.sqlite").stat().st_size <= most + 40_000
    kept = fresh(tmp_path).get("a", [bytes([k]) for k in range(100)])
    assert bytes([99]) in kept and bytes([0]) not in kept and len(kept) > 10
    assert store.kinds() == [Kind("a", len(kept), 10_000 * len(kept))]


def test_several_write_at_once(tmp_path) -> None:
    def write(number: int) -> None:
        for k in range(20):
            fresh(tmp_path).put("a", {bytes([number, k]): bytes([number, k]) * 100})

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    keys = [bytes([n, k]) for n in range(4) for k in range(20)]
    assert fresh(tmp_path).get("a", keys) == {key: key * 100 for key in keys}


def test_clearing_leaves_nothing(tmp_path) -> None:
    store = fresh(tmp_path)
    store.put("a", {b"k": b"data"})
    store.clear()
    assert not (tmp_path / "kept.sqlite").exists() and fresh(tmp_path).get("a", [b"k"]) == {}
    store.clear()


def test_the_version_of_code_is_its_text(monkeypatch, tmp_path) -> None:
    """Of all sources, and of the intrinsics that are shipped beside them."""
    before = code.own_digest()
    house = tmp_path / "modelc"
    shutil.copytree(code.HOUSE, house, ignore=shutil.ignore_patterns("__pycache__"))
    targets = tmp_path / "targets"
    shutil.copytree(targets_folder(), targets)
    shutil.copytree(targets_folder().parent / "configs", tmp_path / "configs")
    monkeypatch.setattr(code, "HOUSE", house)
    monkeypatch.setattr(code, "targets_folder", lambda: targets)
    digests = [before]
    for path in (None, house / "space/choose.py", next(targets.glob("intrinsics/*.yaml"))):
        if path is not None:
            path.write_text(path.read_text() + "\n# changed\n")
        code.own_digest.cache_clear()
        digests.append(code.own_digest())
    code.own_digest.cache_clear()
    assert digests[0] == digests[1] and len({*digests}) == 3


def test_keys_tell_their_parts_apart() -> None:
    assert code.content_key("ab", "c") != code.content_key("a", "bc")

"""Nothing of the user's is lost where a package is written, and nothing outside of one is read where it is opened."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from tiny_package import NATIVE_TRIPLE, check_outputs, inputs_of, skip_without_tools, spec_of

from modelc.compile.arrays import write_npz
from modelc.errors import InputError, PackageError
from modelc.package import check_described, read_package, run_emulated, write_package
from modelc.package.schema import Mismatch, compiled
from modelc.runtime import ModelError, load


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


# --- writing ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("a web application", "is not replaced, for it is no whole package"),
        ("a file beside", r"holds more than a package \(thesis.tex\)"),
        ("a folder beside", r"holds more than a package \(.git\)"),
        ("a folder for a file", r"holds more than a package \(params.bin\)"),
        ("a damaged manifest", "is not replaced, for it is no whole package"),
        ("more than loader.py's cache", r"holds more than a package \(__pycache__\)"),
    ],
)
def test_what_is_more_than_a_package_is_not_replaced(copy: Path, name: str, sentence: str) -> None:
    if name == "a web application":
        (copy / "manifest.json").write_text(json.dumps({"name": "app", "icons": []}))
    elif name == "a file beside":
        (copy / "thesis.tex").write_text("years of work")
    elif name == "a folder beside":
        (copy / ".git").mkdir()
        (copy / ".git/HEAD").write_text("years of work")
    elif name == "a folder for a file":
        (copy / "params.bin").unlink()
        (copy / "params.bin").mkdir()
        (copy / "params.bin/thesis.tex").write_text("years of work")
    elif name == "a damaged manifest":
        (copy / "manifest.json").write_text((copy / "manifest.json").read_text()[:-9])
    else:
        (copy / "__pycache__").mkdir()
        (copy / "__pycache__/mine.py").write_text("years of work")
    before = contents(copy)
    with pytest.raises(PackageError, match=sentence):
        write_package(spec_of(name="other"), copy)
    assert contents(copy) == before and list(copy.parent.iterdir()) == [copy]


def test_what_python_leaves_of_the_loader_is_no_reason(copy: Path) -> None:
    (copy / "__pycache__").mkdir()
    (copy / "__pycache__/loader.cpython-311.pyc").write_bytes(b"")
    assert write_package(spec_of(name="other"), copy).manifest.name == "other"


def test_what_is_added_while_it_is_compiled_is_not_lost(copy: Path) -> None:
    def add(folder: Path) -> None:
        (copy / "thesis.tex").write_text("years of work")

    before = contents(copy)
    with pytest.raises(PackageError, match=r"thesis\.tex"):
        write_package(spec_of(name="other"), copy, verify=add)
    assert contents(copy) == {**before, "thesis.tex": b"years of work"} and list(copy.parent.iterdir()) == [copy]


@pytest.mark.parametrize("exchange", [True, False])
def test_the_old_package_stays_where_it_cannot_be_replaced(
    copy: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool
) -> None:
    if not exchange:
        monkeypatch.setattr("modelc.package.write._exchange", lambda one, other: False)
    before, rename = contents(copy), os.rename

    def fails(source: object, target: object) -> None:
        if target == copy and "partial" in str(source):
            raise OSError(28, os.strerror(28))
        rename(source, target)

    def no_exchange(*_: object) -> bool:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "rename", fails)
    if exchange:
        monkeypatch.setattr("modelc.package.write._exchange", no_exchange)
    with pytest.raises(PackageError, match=r"cannot write the package .*: No space left"):
        write_package(spec_of(name="other"), copy)
    assert contents(copy) == before and list(copy.parent.iterdir()) == [copy]


def test_an_open_package_keeps_its_parameters_when_it_is_replaced(copy: Path) -> None:
    with load(copy) as model:
        write_package(spec_of(params=((64, np.zeros(64, np.float32)),)), copy)
        check_outputs(model.run(inputs_of()), inputs_of())


@pytest.mark.parametrize("path", ["loop/p", "loop", "a\0b"])
def test_places_that_cannot_be(tmp_path: Path, path: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(PackageError, match="cannot write"):
        write_package(spec_of(), f"{tmp_path}/{path}")


# --- arrays -------------------------------------------------------------------------------------------------------


def test_outputs_of_any_name_are_kept(tmp_path: Path) -> None:
    names = ("allow_pickle", "file", "args", "a/b", "../x", "", "ü", "a.npy", "x" * 300)
    arrays = {name: np.full((2, k), k, np.float16) for k, name in enumerate(names)}
    write_npz(tmp_path / "out.npz", arrays)
    with np.load(tmp_path / "out.npz", allow_pickle=False) as found:
        assert set(found.files) == set(names)
        assert all((found[name] == array).all() and found[name].shape == array.shape for name, array in arrays.items())
    assert os.listdir(tmp_path) == ["out.npz"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_outputs_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, arrays = tmp_path / "out.npz", {"y": np.ones(100000)}
    place.write_text("old")
    place.chmod(0o640)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, os.strerror(28))

    with monkeypatch.context() as patched:
        patched.setattr(np.lib.format, "write_array", full)
        with pytest.raises(InputError, match=r"out.npz cannot be written: No space left"):
            write_npz(place, arrays)
    assert place.read_text() == "old" and os.listdir(tmp_path) == ["out.npz"]
    with pytest.raises(InputError, match=r"/dev/full cannot be written: No space left"):
        write_npz(Path("/dev/full"), arrays)
    (tmp_path / "link").symlink_to("out.npz")
    write_npz(tmp_path / "link", arrays)
    assert (tmp_path / "link").is_symlink() and place.stat().st_mode & 0o777 == 0o640
    assert np.load(place)["y"].shape == (100000,)


# --- reading ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [2**31, 2**32, 2**64, -(2**31) - 1, 2**31 - 1, 1025, -1])
def test_absurd_numbers_of_threads(package: Path, threads: int) -> None:
    with pytest.raises(ModelError, match=f"^threads is {threads}; expected a whole number from 0 to 1024"):
        load(package, threads=threads)


def test_a_manifest_that_describes_something_else(copy: Path) -> None:
    data = json.loads((copy / "manifest.json").read_text())
    data["variants"][0]["inputs"][0]["shape"] = [10**6, 10**6]
    (copy / "manifest.json").write_text(json.dumps(data))
    with pytest.raises(ModelError, match="describes other inputs or outputs than libtiny"):
        load(copy)
    with pytest.raises(PackageError, match="describes other inputs or outputs than its library"):
        check_described(read_package(copy))


def test_a_manifest_that_is_right_for_another_machine(tmp_path: Path) -> None:
    for triple in (NATIVE_TRIPLE, "aarch64-linux-gnu"):
        skip_without_tools(triple)
        package = write_package(spec_of(triple), tmp_path / "tiny.modelc").path
        check_described(read_package(package))
    with pytest.raises(InputError, match="variant 2 was asked for"):
        run_emulated(package, inputs_of(), variant=2)


@pytest.mark.parametrize(
    ("path", "value", "place"),
    [
        (("variants", 0, "inputs", 0, "shape"), [2**62, 2**62], "'x' of variant 0"),
        (("variants", 0, "inputs", 0, "shape"), [1] * 65, "variants/0/inputs/0/shape"),
        (("variants", 0, "steps", 0, "arguments", 0, "index"), 9, "input 9 of 2"),
        (("variants", 0, "steps", 0, "arguments", 1, "offset"), 2**40, "offset 1099511627776 of params"),
        (("variants", 0, "arena_bytes"), 2**63, "variants/0/arena_bytes"),
        (("params",), [[64, 2**40]], "at params"),
        (("files", "params.bin", "bytes"), 320.0, "files/params.bin/bytes"),
        (("verification",), {"passed": True, "x": [[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]}, "at verification"),
    ],
)
def test_absurd_numbers_in_a_manifest(copy: Path, path: tuple[str | int, ...], value: object, place: str) -> None:
    data = json.loads((copy / "manifest.json").read_text())
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    (copy / "manifest.json").write_text(json.dumps(data))
    with pytest.raises(PackageError, match=place):
        read_package(copy)


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "integer", "minimum": 0, "maximum": 5}, [0, 5], [-1, 6, 1.0, True, "1", None]),
        ({"type": ["object", "null"]}, [{}, None], [[], 0]),
        ({"const": 1}, [1], [True, 1.0, 2, [1]]),
        ({"enum": ["a", "b"]}, ["a"], ["c", 1, ["a"], {}]),
        ({"type": "string", "pattern": "^[a-z]+$"}, ["ab"], ["aB", "a\n", ""]),
        ({"prefixItems": [{"type": "null"}], "items": {"type": "string"}, "maxItems": 2}, [[None, "a"]], [[None, 1]]),
        ({"items": {}, "minItems": 1, "maxItems": 2}, [[1], "text"], [[], [1, 2, 3]]),
        (
            {"properties": {"a": {"type": "null"}}, "additionalProperties": False},
            [{"a": None}, {}],
            [{"a": 1}, {"b": 0}],
        ),
        ({"propertyNames": {"pattern": "a+"}, "required": ["a"]}, [{"a": 0, "aa": 1}], [{}, {"a": 0, "b": 1}]),
    ],
)
def test_schemas_are_checked(schema: dict[str, object], right: list[object], wrong: list[object]) -> None:
    check = compiled(schema)
    for value in right:
        check(value)
    for value in wrong:
        with pytest.raises(Mismatch):
            check(value)
    with pytest.raises(ValueError, match="unknown keywords"):
        compiled({"oneOf": []})

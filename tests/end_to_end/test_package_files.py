"""Packages as files: in an archive, behind links, as the three files that a program needs."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from collections.abc import Callable, Mapping
from copy import copy as copy_of
from pathlib import Path

import numpy as np
import pytest
from tiny_package import check_outputs, inputs_of, spec_of

from modelc.errors import PackageError
from modelc.package import read_package, write_package, write_verification
from modelc.runtime import ModelError, load

LINK = 0o120777 << 16  # the attributes of an archive's member that is a link


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MODELC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("archive") / "tiny.modelc.zip"
    write_package(spec_of(), place)
    return place


def rewritten(source: Path, place: Path, replaced: Mapping[str, bytes | None], attributes: int = 0) -> Path:
    """A copy of an archive with other bytes in some members, which have these attributes; None leaves a member out."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(place, "w") as new:
        for name in dict.fromkeys([*old.namelist(), *replaced]):
            data = replaced[name] if name in replaced else old.read(name)
            entry = zipfile.ZipInfo(name)
            entry.external_attr = attributes if name in replaced else 0
            if data is not None:
                new.writestr(entry, data)
    return place


def unpacked(cache: Path) -> list[Path]:
    return sorted(cache.glob("*"))


# --- archives -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("genuine_first", [False, True])
def test_an_archive_that_is_looked_at_does_not_poison_another(
    archive: Path, cache: Path, tmp_path: Path, genuine_first: bool
) -> None:
    if genuine_first:
        load(archive).close()
    before = unpacked(cache)
    evil = rewritten(archive, tmp_path / "evil.zip", {"params.bin": bytes(320)})
    for opened in (read_package, load):
        with pytest.raises((PackageError, ModelError), match=r"params\.bin in .*evil\.zip is damaged: its checksum"):
            opened(evil)
    assert unpacked(cache) == before, "nothing is left of it"
    with load(archive) as model:
        check_outputs(model.run(inputs_of()), inputs_of())


def test_only_what_the_manifest_lists_is_unpacked(archive: Path, cache: Path, tmp_path: Path) -> None:
    more = rewritten(archive, tmp_path / "more.zip", {f"extra{k}": b"x" for k in range(1000)})
    package = read_package(more, check=True)
    assert set(os.listdir(package.path)) == {"manifest.json", *package.manifest.files}


@pytest.mark.parametrize("size", [319, 321])
def test_a_member_of_another_size_is_refused(archive: Path, cache: Path, tmp_path: Path, size: int) -> None:
    odd = rewritten(archive, tmp_path / "odd.zip", {"params.bin": bytes(size)})
    with pytest.raises(ModelError, match=rf"params\.bin in .* is damaged: it has {size} bytes instead of 320"):
        load(odd)
    assert not unpacked(cache)


def test_members_that_lie_within_each_other_are_not_unpacked(cache: Path, tmp_path: Path) -> None:
    """A small archive whose members are each other's bytes would fill the disk."""
    with zipfile.ZipFile(tmp_path / "inner.zip", "w") as inner:
        inner.writestr(zipfile.ZipInfo("b"), bytes(100_000))
    outer_bytes = (tmp_path / "inner.zip").read_bytes()
    sizes = {"a": len(outer_bytes), "b": 100_000}
    files = {name: {"bytes": size, "sha256": "0" * 64} for name, size in sizes.items()}
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w") as bomb:
        bomb.writestr("manifest.json", json.dumps({"schema_version": 2, "files": files}))
        bomb.writestr(zipfile.ZipInfo("a"), outer_bytes)
        within = copy_of(inner.getinfo("b"))
        within.header_offset = bomb.getinfo("a").header_offset + len(bomb.getinfo("a").FileHeader())
        bomb.filelist.append(within)
    with pytest.raises(ModelError, match="the files in it are larger than itself"):
        load(tmp_path / "bomb.zip")
    assert not unpacked(cache)


def test_a_link_in_an_archive_is_refused(archive: Path, cache: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(320))
    linked = rewritten(archive, tmp_path / "linked.zip", {"params.bin": os.fsencode(tmp_path / "secret")}, LINK)
    for opened in (read_package, load):
        with pytest.raises((PackageError, ModelError), match=r"'params\.bin' in it is a link"):
            opened(linked)
    assert not unpacked(cache)


def test_what_lacks_in_the_cache_is_unpacked_again(archive: Path, cache: Path) -> None:
    folder = read_package(archive).path
    for damage in (
        lambda: (folder / "params.bin").unlink(),
        lambda: (folder / "params.bin").write_bytes(b""),
        lambda: (folder / "manifest.json").write_text("{}"),
    ):
        damage()
        with load(archive, check=True) as model:
            check_outputs(model.run(inputs_of()), inputs_of())
        assert unpacked(cache) == [folder]


# --- links --------------------------------------------------------------------------------------------------------


def as_hugging_face(package: Path, place: Path) -> None:
    """snapshots/REVISION/NAME -> ../../blobs/CHECKSUM"""
    (place / "blobs").mkdir(parents=True)
    (place / "snapshots/main").mkdir(parents=True)
    for number, file in enumerate(sorted(package.iterdir())):
        shutil.copy(file, place / f"blobs/{number:064x}")
        (place / "snapshots/main" / file.name).symlink_to(f"../../blobs/{number:064x}")


def as_kubernetes(package: Path, place: Path) -> None:
    """NAME -> ..data/NAME, and ..data -> ..2024_01_01"""
    shutil.copytree(package, place / "snapshots/main/..2024_01_01")
    (place / "snapshots/main/..data").symlink_to("..2024_01_01")
    for file in package.iterdir():
        (place / "snapshots/main" / file.name).symlink_to(f"..data/{file.name}")


def as_nix(package: Path, place: Path) -> None:
    """NAME -> /an/absolute/path"""
    (place / "snapshots/main").mkdir(parents=True)
    shutil.copytree(package, place / "store")
    for file in package.iterdir():
        (place / "snapshots/main" / file.name).symlink_to(place / "store" / file.name)


@pytest.mark.parametrize("lay_out", [as_hugging_face, as_kubernetes, as_nix])
def test_files_of_a_package_may_be_links(package: Path, tmp_path: Path, lay_out: Callable[[Path, Path], None]) -> None:
    lay_out(package, tmp_path)
    folder = tmp_path / "snapshots/main"
    read_package(folder, check=True)
    with load(folder, check=True) as model:
        check_outputs(model.run(inputs_of()), inputs_of())
    target = (folder / "params.bin").resolve()
    target.write_bytes(bytes(320))
    with pytest.raises(ModelError, match=r"params\.bin is damaged: its checksum"):
        load(folder, check=True)
    target.write_bytes(b"")
    with pytest.raises(ModelError, match=r"params\.bin is damaged: it has 0 bytes"):
        load(folder)


def test_a_verification_is_added_to_a_package_of_links(package: Path, tmp_path: Path) -> None:
    as_hugging_face(package, tmp_path)
    folder = tmp_path / "snapshots/main"
    write_verification(folder, {"summary": {"passed": True}})
    assert read_package(folder, check=True).manifest.verification == {"passed": True}
    assert not any(file.is_symlink() for file in folder.iterdir())


def test_a_link_leads_to_a_file(copy: Path, tmp_path: Path) -> None:
    for target, sentence in (("params.bin", "Too many levels of symbolic links"), ("/dev/zero", "no regular file")):
        (copy / "params.bin").unlink()
        (copy / "params.bin").symlink_to(target)
        with pytest.raises(ModelError, match=rf"cannot read .*params\.bin: .*{sentence}"):
            load(copy)


# --- the files that a program needs ---------------------------------------------------------------------------------


def test_three_files_are_enough(package: Path, tmp_path: Path) -> None:
    for name in ("libtiny.so", "params.bin", "manifest.json"):
        shutil.copy(package / name, tmp_path)
    with load(tmp_path, check=True) as model:
        check_outputs(model.run(inputs_of()), inputs_of())
    shutil.copy(package / "choices.json", tmp_path)
    (tmp_path / "choices.json").write_bytes(b"{}\n")
    with pytest.raises(ModelError, match=r"choices\.json is damaged"):
        load(tmp_path, check=True)
    (tmp_path / "params.bin").unlink()
    with pytest.raises(ModelError, match=r"cannot read .*params\.bin: No such file"):
        load(tmp_path)


def test_parameters_of_an_archive_are_what_was_compiled(archive: Path, cache: Path, package: Path) -> None:
    assert (read_package(archive).path / "params.bin").read_bytes() == (package / "params.bin").read_bytes()
    assert np.frombuffer((package / "params.bin").read_bytes(), np.uint8).any()

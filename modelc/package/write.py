"""Writing a package: into a folder beside its place, which takes that place in one step at the end."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from modelc import scratch
from modelc.errors import PackageError
from modelc.ir.sizes import text_of
from modelc.package import manifest
from modelc.package.check import check_spec
from modelc.package.glue import plan_source
from modelc.package.link import Code, link_foreign, link_shared, link_static, runtime_sources
from modelc.package.manifest import SCHEMA_VERSION, FileInfo, Linked, Manifest
from modelc.package.read import Package, file_info, read_manifest_of, read_package, unpacked
from modelc.package.spec import PackageSpec
from modelc.package.texts import package_texts
from modelc.package.toolchain import find_toolchain
from modelc.runtime.files import ARCHIVE, PARAMS
from modelc.target.system import LINUX

VERIFICATION = "verification.json"

Verify = Callable[[Path], Mapping[str, Any] | None]


def write_package(spec: PackageSpec, path: str | Path, verify: Verify | None = None) -> Package:
    """Links and writes the package. An earlier package at `path` is replaced when all is done, never by half; whatever
    interrupts, nothing is left. `verify` is called with the finished package's folder before it takes its place: it
    returns a report for `write_verification`, or raises, and then nothing is written. Raises PackageError,
    ToolchainError."""
    check_spec(spec)
    place = _place(path)
    with _folder_beside(place) as folder:
        made = _write_files(spec, folder, place)
        report = verify(folder) if verify else None
        if report is not None:
            made = _add_verification(folder, made, report)
        take_place(folder, place)
    return Package(unpacked(place), made)


@contextmanager
def folder_for_packages(folder: Path, parents: bool = False) -> Iterator[None]:
    """Makes the folder where there is none, also `parents`; where nothing comes of it, it goes. Raises PackageError."""
    is_new = not folder.is_dir()
    try:
        folder.mkdir(parents=parents, exist_ok=True)
    except OSError as error:
        raise PackageError(f"the folder {folder} for the packages cannot be made: {error.strerror}") from None
    try:
        yield
    except BaseException:
        if is_new:
            with suppress(OSError):
                folder.rmdir()
        raise


def check_place(path: str | Path) -> None:
    """Raises PackageError if a package cannot be written to `path`; leaves nothing there."""
    with _folder_beside(_place(path)):
        pass


def _write_files(spec: PackageSpec, folder: Path, place: Path) -> Manifest:
    form = spec.form
    with _os_errors_as_sentences(place):
        params_sha256 = _write_params(spec, folder / PARAMS)
        build_id = _build_id(spec, params_sha256)
        params = folder / PARAMS if form.embed_params and spec.params_bytes else None
        code = Code(plan_source(spec, build_id, SCHEMA_VERSION, params_sha256), spec.objects, params)
        linked = _link(spec, code, folder)
        if form.embed_params:
            (folder / PARAMS).unlink()
        for name, text in package_texts(spec).items():
            (folder / name).write_text(text)
        choices = (json.dumps(spec.choices, indent=1, sort_keys=True) + "\n").encode()
        (folder / "choices.json").write_bytes(choices)
        made = Manifest(
            schema_version=SCHEMA_VERSION,
            build_id=build_id,
            name=spec.name,
            target=spec.target,
            flush_denormals=spec.flush_denormals,
            check_addresses=spec.check_addresses,
            choices_sha256=hashlib.sha256(choices).hexdigest(),
            versions=dict(sorted(spec.versions.items())),
            notes=spec.notes,
            files={
                path.name: FileInfo(spec.params_bytes, params_sha256) if path.name == PARAMS else file_info(path)
                for path in sorted(folder.iterdir())
            },
            params=tuple((offset, array.nbytes) for offset, array in spec.params),
            params_bytes=spec.params_bytes,
            made=spec.made,
            file_bytes=spec.file_bytes,
            linked=linked,
            variants=spec.variants,
            constants=spec.constants,
            bounds=dict(sorted(spec.bounds.items())),
            origin=spec.origin,
        )
        (folder / manifest.NAME).write_text(made.to_json())
    return made


def _link(spec: PackageSpec, code: Code, folder: Path) -> Linked:
    """Writes the files with the code, and says what they are."""
    form = spec.form
    toolchain = find_toolchain(spec.target.triple, form.libc, form.cc, form.ar)
    needed, calls, version = tuple[str, ...](), tuple[str, ...](), ""
    if "so" in form.emit and form.on is not LINUX:
        calls = link_foreign(toolchain, form, code, folder)
    elif "so" in form.emit:
        library = link_shared(toolchain, form, code, folder / form.library)
        needed, version = library.needed, ".".join(map(str, library.glibc))
    if not {"a", "o"}.isdisjoint(form.emit):
        calls = tuple(sorted({*calls, *link_static(toolchain, form, code, folder)}))
    return Linked(
        prefix=form.prefix,
        emit=form.emit,
        embed_params=form.embed_params,
        freestanding=form.freestanding,
        libc=toolchain.libc,
        libc_version=version,
        needed=needed,
        calls=calls,
        compiler=f"{form.cc}: {toolchain.described}" if form.cc else toolchain.described,
        archiver=form.ar or (Path(toolchain.archiver[-1]).name if {"a"} & {*form.emit} else ""),
        on="" if form.on is LINUX else form.system,
    )


def write_verification(path: str | Path, report: Mapping[str, Any]) -> Package:
    """Puts a report, and its 'summary' (an object with 'passed') in the manifest, into a package, in one step."""
    place = _place(path)
    source = read_package(place)
    before = source.manifest
    with _folder_beside(place) as folder:
        with _os_errors_as_sentences(place):
            for name in before.files:
                if name != VERIFICATION:
                    _link_or_copy(source.path / name, folder / name)
        made = _add_verification(folder, before, report)
        take_place(folder, place)
    return Package(unpacked(place), made)


def _add_verification(folder: Path, made: Manifest, report: Mapping[str, Any]) -> Manifest:
    if "summary" not in report:
        raise PackageError("the report of a verification lacks its 'summary'")
    with _os_errors_as_sentences(folder):
        (folder / VERIFICATION).write_text(json.dumps(report, indent=1) + "\n")
        files = {**made.files, VERIFICATION: file_info(folder / VERIFICATION)}
        made = replace(made, files=files, verification=report["summary"])
        (folder / manifest.NAME).write_text(made.to_json())
    return made


def _write_params(spec: PackageSpec, path: Path) -> str:
    """Writes params.bin, with zeros between the arrays, and returns its checksum."""
    computed = hashlib.sha256()
    with path.open("wb") as file:

        def put(data: Any) -> None:
            file.write(data)
            computed.update(data)

        for offset, array in spec.params:
            put(bytes(offset - file.tell()))
            put(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        put(bytes(spec.params_bytes - file.tell()))
    return computed.hexdigest()


def _build_id(spec: PackageSpec, params_sha256: str) -> str:
    """The same for the same inputs of linking: a rebuild gives the same package."""
    form = replace(spec.form, emit=(), cc="", ar="")  # of which the code knows nothing
    parts = [
        json.dumps(
            asdict(replace(spec, objects={}, params=(), choices={}, form=form)), sort_keys=True, default=text_of
        ).encode()
    ]
    parts += [params_sha256.encode(), *runtime_sources()]
    parts += [part for name, data in sorted(spec.objects.items()) for part in (name.encode(), data)]
    whole = hashlib.sha256()
    for part in parts:
        whole.update(len(part).to_bytes(8, "little") + part)
    return whole.hexdigest()[:32]


def _place(path: str | Path) -> Path:
    """Where the package will be: a new place, an empty folder, or a package of which nothing but itself is lost."""
    try:
        place = Path(path).resolve()
        if place.name.endswith(ARCHIVE):
            if place.is_dir():
                raise PackageError(f"{path} is a folder, and a package in one file goes there: give another name")
            if os.path.lexists(place):
                _check_is_package(place, str(path))
            return place
        if os.path.lexists(place) and not place.is_dir():
            raise PackageError(f"{path} is a file: a package is a folder, or a file NAME{ARCHIVE}; give another name")
        if place.is_dir():
            _check_replaceable(place, str(path))
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links; a null character
        reason = error.strerror if isinstance(error, OSError) else error
        raise PackageError(f"cannot write the package {path}: {reason}") from None
    return place


def _check_is_package(place: Path, shown: str) -> None:
    """Raises PackageError for a file that is no package in one file."""
    try:
        with zipfile.ZipFile(place) as archive:
            is_package = manifest.NAME in archive.namelist()
    except (zipfile.BadZipFile, OSError):
        is_package = False
    if not is_package:
        raise PackageError(f"{shown} is a file that is not a package: it is not replaced, give another name")


def _check_replaceable(place: Path, shown: str) -> None:
    """Raises PackageError if a folder holds anything but a package's own files, and what Python makes of loader.py."""
    entries = sorted(entry.name for entry in os.scandir(place))
    if not entries:
        return
    if manifest.NAME not in entries:
        raise PackageError(f"{shown} is a folder that is not a package: it is not replaced, give another name")
    try:
        own = {manifest.NAME, *read_manifest_of(place).files}
    except PackageError as error:
        raise PackageError(f"{shown} is not replaced, for it is no whole package: {error}; give another name") from None
    foreign = [name for name in entries if not (_is_plain(place / name) if name in own else _is_cache(place / name))]
    if foreign:
        names = ", ".join(foreign[:5]) + ", ..." * (len(foreign) > 5)
        raise PackageError(f"{shown} is not replaced, it holds more than a package ({names}): move that elsewhere")


def _is_plain(path: Path) -> bool:
    return path.is_symlink() or path.is_file()


def _is_cache(path: Path) -> bool:
    """What importing loader.py leaves."""
    if path.name != "__pycache__" or path.is_symlink() or not path.is_dir():
        return False
    return all(_is_plain(file) and file.match("loader.*.pyc*") for file in path.iterdir())


@contextmanager
def _folder_beside(place: Path) -> Iterator[Path]:
    """An empty folder on the same file system; gone afterwards, unless it took the place."""
    scratch.put_back(place)
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(scratch.beside(place, folder=True))
        except OSError as error:
            raise PackageError(f"cannot write in {place.parent}: {error.strerror}") from None
        yield folder


@contextmanager
def _os_errors_as_sentences(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PackageError(f"cannot write the package {place}: {error.strerror or error}") from None


def take_place(folder: Path, place: Path) -> None:
    """Renames `folder` to `place`, or what it is in one file; what is there is replaced in one step, if it may be."""
    with _os_errors_as_sentences(place):
        if place.name.endswith(ARCHIVE):
            with scratch.beside(place, folder=False) as file:
                _pack(folder, file)
                os.replace(file, place)
            return
        if not place.exists() or not any(place.iterdir()):
            os.rename(folder, place)
            return
        _check_replaceable(place, str(place))
        if not _exchange(folder, place):
            scratch.replace(folder, place)


def _pack(folder: Path, file: Path) -> None:
    """A package in one file: stored as it is, with the same bytes of the same files."""
    with zipfile.ZipFile(file, "w") as archive:
        for path in sorted(folder.iterdir()):
            entry = zipfile.ZipInfo(path.name)  # of the first date that there is
            entry.external_attr = 0o644 << 16
            with path.open("rb") as source, archive.open(entry, "w", force_zip64=True) as target:
                shutil.copyfileobj(source, target, 1 << 20)


def _exchange(place: Path, other: Path) -> bool:
    """Linux's renameat2 with RENAME_EXCHANGE: there is no moment without a package. False if it cannot be done."""
    at_working_folder, rename_exchange = -100, 2
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(at_working_folder, os.fsencode(place), at_working_folder, os.fsencode(other), rename_exchange) == 0:
        return True
    if ctypes.get_errno() in (errno.EINVAL, errno.ENOSYS):
        return False
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(other))


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source.resolve(), target)  # and no second link, where the file is one
    except OSError:
        shutil.copyfile(source, target)

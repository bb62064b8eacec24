"""manifest.json: what it says, and its JSON form. Untrusted when read: checked against manifest.schema.json."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, is_dataclass
from functools import cache, partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from modelc.errors import PackageError
from modelc.ir.expr import Size
from modelc.ir.origin import Origin
from modelc.ir.sizes import is_sized, number_of, text_of
from modelc.package.check import check_made, check_plans
from modelc.package.form import Form
from modelc.package.schema import Mismatch, compiled
from modelc.package.spec import FixedInput, Made, PackageTarget, Plan, made_bytes
from modelc.runtime.files import MANIFEST as NAME
from modelc.runtime.files import MOST_MANIFEST_BYTES, PARAMS, SCHEMA_VERSION

__all__ = ["NAME", "SCHEMA_VERSION", "FileInfo", "Linked", "Manifest", "built", "parsed", "schema"]

DEEPEST = 16  # objects and lists within each other in `verification`, which is free otherwise


@dataclass(frozen=True)
class FileInfo:
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Linked:
    """What the code of a package is in: a Form's names and files; the C library, and the oldest version of glibc, that
    the shared library runs with; the libraries that it needs; what a program has to bring that is linked with a
    free-standing one; what compiled it."""

    prefix: str
    emit: tuple[str, ...]
    embed_params: bool
    freestanding: bool
    libc: str
    libc_version: str
    needed: tuple[str, ...]
    calls: tuple[str, ...]
    compiler: str
    archiver: str
    on: str = ""  # the system, where it is not Linux

    @property
    def form(self) -> Form:
        return Form(self.prefix, self.emit, self.embed_params, self.freestanding, self.libc, system=self.on or "Linux")


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """`build_id` pairs the manifest with the library; `files` lists every file but manifest.json itself; `verification`
    is the summary of verification.json, None when nothing was compared."""

    schema_version: int
    build_id: str
    name: str
    target: PackageTarget
    flush_denormals: bool
    check_addresses: bool = False
    choices_sha256: str
    versions: Mapping[str, str]
    notes: tuple[str, ...]
    files: Mapping[str, FileInfo]
    params: tuple[tuple[int, int], ...]  # offset and bytes of every array in params.bin
    params_bytes: int
    made: tuple[Made, ...] = ()  # what opening makes of them
    file_bytes: int = 0  # of the model's files
    linked: Linked
    variants: tuple[Plan, ...]
    verification: Mapping[str, Any] | None = None
    constants: tuple[FixedInput, ...] = ()  # inputs of the model that have been fixed
    origin: Origin | None = None  # what the model says of itself
    bounds: Mapping[str, int] = field(default_factory=dict)  # the most that values of the model can be, as a user said

    def to_json(self) -> str:
        """The text of manifest.json. Raises PackageError if it does not conform to the schema: a bug of modelc."""
        data = json.loads(json.dumps(asdict(self, dict_factory=_without_zeros), default=text_of))
        _validate(data, NAME)
        text = json.dumps(data, indent=1) + "\n"
        if len(text) > MOST_MANIFEST_BYTES:
            raise PackageError(
                f"{NAME} would have {len(text)} bytes, and {MOST_MANIFEST_BYTES} are possible: compile fewer shapes"
            )
        return text


_ABSENT = (
    *("stride", "loops", "control", "slots", "states", "sizes", "count", "condition", "go", "refusal"),
    *("bounds", "on", "written", "extents", "takes", "free", "matter", "origin"),
    *("room", "growth", "made", "widened", "file_bytes"),
)
_NUMBERS = frozenset(  # that may depend on sizes
    {"extents", "extent", "offset", "stride", "shape", "strides", "low", "high", "limit", "flops", "bytes", "growth"}
)


def _without_zeros(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    """What hardly any step and plan has is left out."""
    return {name: value for name, value in fields if name not in _ABSENT or is_sized(value) or value}


def _with_numbers(variant: Mapping[str, Any]) -> Mapping[str, Any]:
    """A variant as JSON has it, with what depends on free sizes as numbers. Raises PackageError."""
    named = {size["name"]: Size(size["name"], size["least"], size["most"]) for size in variant.get("free", ())}

    def read(value: Any, key: str = "") -> Any:
        if isinstance(value, str) and key in _NUMBERS:
            try:
                return number_of(value, named)
            except ValueError as wrong:
                raise PackageError(str(wrong)) from None
        if isinstance(value, dict):
            return {name: read(part, name) for name, part in value.items()}
        return [read(part, key) for part in value] if isinstance(value, list) else value

    return read(variant)  # type: ignore[no-any-return]


def parsed(data: Mapping[str, Any], where: str) -> Manifest:
    """The manifest that `data`, an object read from `where`, says. Raises PackageError where it is damaged or newer."""
    version = data.get("schema_version")
    if type(version) is int and version > SCHEMA_VERSION:
        raise PackageError(
            f"{where} is of schema {version}, and this modelc knows up to {SCHEMA_VERSION}: update modelc"
        )
    if type(version) is int and version < SCHEMA_VERSION:
        raise PackageError(
            f"{where} is of schema {version}, of an earlier modelc, and this one knows {SCHEMA_VERSION}: "
            "compile the model again"
        )
    _validate(data, where)
    try:
        manifest = built(Manifest, {**data, "variants": [*map(_with_numbers, data["variants"])]})
        assert isinstance(manifest, Manifest)
        params = manifest.params_bytes
        _check_files(manifest)
        check_made(manifest.made, params)
        check_plans(manifest.variants, params, where, made_bytes(manifest.made))
    except PackageError as error:
        raise PackageError(f"{where} is damaged: {error}") from None
    for constant in manifest.constants:
        try:
            constant.array()
        except ValueError:
            raise PackageError(
                f"{where} is damaged: at constants: the data of {constant.name!r} does not fit"
            ) from None
    if any(offset + size > params for offset, size in manifest.params):
        raise PackageError(f"{where} is damaged: at params: an array lies beyond the {params} bytes of params.bin")
    return manifest


def _check_files(manifest: Manifest) -> None:
    """Raises PackageError where a file is lacking that its form has."""
    form, files = manifest.linked.form, manifest.files
    for name in (form.header, *map(form.file_of, form.emit), *form.beside):
        if name not in files:
            raise PackageError(f"at files: '{name}' is a required property")
    if not form.embed_params and (PARAMS not in files or files[PARAMS].bytes != manifest.params_bytes):
        raise PackageError(f"at files: {PARAMS} of {manifest.params_bytes} bytes is required")


def schema() -> Mapping[str, Any]:
    """The published JSON schema."""
    data: Mapping[str, Any] = json.loads(Path(__file__).with_name("manifest.schema.json").read_text())
    return data


_validator = cache(lambda: compiled(schema()))


def _validate(data: Mapping[str, Any], where: str) -> None:
    try:
        _validator()(data)
    except Mismatch as wrong:
        raise PackageError(f"{where} is damaged: at {wrong.place}: {wrong.reason}") from None
    if not _shallow(data["verification"], DEEPEST):
        raise PackageError(f"{where} is damaged: at verification: more than {DEEPEST} levels in each other")


def _shallow(value: Any, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels > 0 and all(_shallow(value, levels - 1) for value in inner)


def built(kind: Any, data: Any) -> Any:
    """The object of `kind`, a dataclass or what one of its fields holds, that asdict() gave as `data`. Raises TypeError
    where `data` lacks a field, or has one that is unknown."""
    make = _builder(kind)
    return data if make is None else make(data)


@cache
def _builder(kind: Any) -> Callable[[Any], Any] | None:
    """What makes an object of JSON's form; None where that is the object."""
    parts = [part for part in get_args(kind) if part not in (Ellipsis, NoneType)]
    if is_dataclass(kind):
        of_fields: Any = kind
        makers = {name: make for name, hint in get_type_hints(kind).items() if (make := _builder(hint))}
        return lambda data: of_fields(
            **{**data, **{name: makers[name](data[name]) for name in makers.keys() & data.keys()}}
        )
    if get_origin(kind) is UnionType:
        of_parts = [make for part in parts if (make := _builder(part))]
        return partial(_first_that_fits, of_parts) if of_parts else None
    make = _builder(parts[-1]) if parts else None
    if get_origin(kind) is tuple:
        return tuple if make is None else lambda data: tuple(map(make, data))
    return make and (lambda data: {name: make(value) for name, value in data.items()})


def _first_that_fits(makers: Sequence[Callable[[Any], Any]], data: Any) -> Any:
    for make in makers:
        with suppress(TypeError):
            return make(data)
    raise PackageError("it has control flow that is neither a branch nor a loop")

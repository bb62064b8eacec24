"""manifest.json: what it says, and its JSON form. Untrusted when read: checked against manifest.schema.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from modelc.errors import PackageError
from modelc.package.form import Form
from modelc.package.padding import Along, Fill, Padding
from modelc.package.schema import Check, Mismatch, compiled
from modelc.package.spec import (
    ArenaTensor,
    Argument,
    Branch,
    Carried,
    Control,
    Extent,
    FixedInput,
    Moving,
    PackageTarget,
    Plan,
    RangeCheck,
    Repeat,
    Rolled,
    State,
    Step,
    check_plans,
)
from modelc.package.tensor import TensorInfo
from modelc.runtime.files import MANIFEST as NAME
from modelc.runtime.files import MOST_MANIFEST_BYTES, PARAMS, SCHEMA_VERSION

__all__ = ["NAME", "SCHEMA_VERSION", "FileInfo", "Linked", "Manifest", "parsed", "schema"]

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


@dataclass(frozen=True)
class Manifest:
    """`build_id` pairs the manifest with the library; `files` lists every file but manifest.json itself; `verification`
    is the summary of verification.json, None when nothing was compared."""

    schema_version: int
    build_id: str
    name: str
    target: PackageTarget
    flush_denormals: bool
    check_addresses: bool
    choices_sha256: str
    versions: Mapping[str, str]
    notes: tuple[str, ...]
    files: Mapping[str, FileInfo]
    params: tuple[tuple[int, int], ...]  # offset and bytes of every array in params.bin
    params_bytes: int
    linked: Linked
    variants: tuple[Plan, ...]
    verification: Mapping[str, Any] | None = None
    constants: tuple[FixedInput, ...] = ()  # inputs of the model that have been fixed
    padding: Padding | None = None  # along which dimensions inputs may be shorter than a variant's
    bounds: Mapping[str, int] = field(default_factory=dict)  # the most that values of the model can be, as a user said

    def to_json(self) -> str:
        """The text of manifest.json. Raises PackageError if it does not conform to the schema: a bug of modelc."""
        data = json.loads(json.dumps(asdict(self, dict_factory=_without_zeros)))
        _validate(data, NAME)
        text = json.dumps(data, indent=1) + "\n"
        if len(text) > MOST_MANIFEST_BYTES:
            raise PackageError(
                f"{NAME} would have {len(text)} bytes, and {MOST_MANIFEST_BYTES} are possible: compile fewer shapes"
            )
        return text


_ABSENT = (
    *("stride", "loops", "control", "slots", "states", "sizes", "count", "condition", "go", "refusal"),
    *("padding", "fills", "bounds", "on", "written"),
)


def _without_zeros(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    """What hardly any step and plan has is left out."""
    return {name: value for name, value in fields if value or name not in _ABSENT}


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
        manifest = _from_data(data)
        params = manifest.params_bytes
        _check_files(manifest)
        check_plans(manifest.variants, params, where, manifest.padding)
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


@cache
def _validator() -> Check:
    return compiled(schema())


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


def _from_data(data: Mapping[str, Any]) -> Manifest:
    target = data["target"]
    return Manifest(
        **{key: data[key] for key in ("schema_version", "build_id", "name", "flush_denormals", "choices_sha256")},
        check_addresses=data.get("check_addresses", False),
        target=PackageTarget(target["name"], target["triple"], tuple(target["features"])),
        versions=data["versions"],
        notes=tuple(data["notes"]),
        files={name: FileInfo(**entry) for name, entry in data["files"].items()},
        params=tuple((offset, size) for offset, size in data["params"]),
        params_bytes=data["params_bytes"],
        linked=_linked(data["linked"]),
        variants=tuple(_plan(plan) for plan in data["variants"]),
        verification=data["verification"],
        constants=tuple(FixedInput.from_json(constant) for constant in data.get("constants", ())),
        padding=_padding(data["padding"]) if "padding" in data else None,
        bounds=data.get("bounds", {}),
    )


def _linked(data: Mapping[str, Any]) -> Linked:
    return Linked(**{**data, **{name: tuple(data[name]) for name in ("emit", "needed", "calls")}})


def _padding(data: Mapping[str, Any]) -> Padding:
    inputs, outputs = (tuple(Along(**along) for along in data[side]) for side in ("inputs", "outputs"))
    return Padding(tuple(data["dims"]), inputs, outputs, tuple(Fill(**fill) for fill in data.get("fills", ())))


def _plan(data: Mapping[str, Any]) -> Plan:
    return Plan(
        inputs=tuple(_tensor(t) for t in data["inputs"]),
        outputs=tuple(_tensor(t) for t in data["outputs"]),
        steps=tuple(_step(step) for step in data["steps"]),
        arena_bytes=data["arena_bytes"],
        memory=tuple(ArenaTensor(**t) for t in data["memory"]),
        rounded=tuple(data["rounded"]),
        loops=tuple(Rolled(**loop) for loop in data.get("loops", ())),
        control=tuple(_control(control) for control in data.get("control", ())),
        slots=tuple(data.get("slots", ())),
        states=tuple(State(**{**state, "input": _tensor(state["input"])}) for state in data.get("states", ())),
        sizes=tuple(Extent(**extent) for extent in data.get("sizes", ())),
    )


def _control(data: Mapping[str, Any]) -> Control:
    """A branch has a middle. Raises PackageError where something is lacking, or is no branch's or no loop's."""
    at = {name: Argument(**place) for name, place in data.items() if name in _PLACES}
    parts = {name: tuple(kind(**_placed(part)) for part in data[name]) for name, kind in _PARTS.items() if name in data}
    try:
        if "middle" in data:
            return Branch(**{**data, **at})
        return Repeat(**{**dict.fromkeys(("count", "condition", "go")), **data, **at, **parts})
    except TypeError:
        raise PackageError("it has control flow that is neither a branch nor a loop") from None


def _placed(data: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**data, **{name: Argument(**data[name]) for name in ("start", "result", "spare") if name in data}}


_PLACES = ("condition", "count", "number", "go")
_PARTS: Mapping[str, type[Carried | Moving]] = {"carried": Carried, "moving": Moving}


def _tensor(data: Mapping[str, Any]) -> TensorInfo:
    return TensorInfo(data["name"], data["dtype"], tuple(data["shape"]))


def _step(data: Mapping[str, Any]) -> Step:
    arguments = tuple(Argument(**argument) for argument in data["arguments"])
    checks = tuple(_check(check) for check in data.get("checks", ()))
    places = {name: tuple(data.get(name, ())) for name in ("nodes", "written")}
    return Step(**{**data, **places, "arguments": arguments, "checks": checks})


def _check(data: Mapping[str, Any]) -> RangeCheck:
    shape, strides = tuple(data["shape"]), tuple(data["strides"])
    return RangeCheck(**{**data, "argument": Argument(**data["argument"]), "shape": shape, "strides": strides})

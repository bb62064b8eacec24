"""Writing packages, reading them as untrusted data, and running them for other machines."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import jsonschema
import pytest
from tiny_package import NATIVE_TRIPLE, check_outputs, inputs_of, object_for, plan_of, skip_without_tools, spec_of

from modelc.errors import InputError, ModelcError, PackageError, ToolchainError
from modelc.package import (
    emulator,
    find_toolchain,
    read_choices,
    read_package,
    read_verification,
    run_emulated,
    write_package,
    write_verification,
)
from modelc.package.manifest import schema
from modelc.package.write import take_place
from modelc.python_worker import worker_command


def contents(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def edit_manifest(path: Path, **changes: object) -> None:
    file = path / "manifest.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_what_is_written_is_read(package: Path) -> None:
    assert sorted(contents(package)) == [
        "choices.json",
        "example.c",
        "libtiny.so",
        "loader.py",
        "manifest.json",
        "params.bin",
        "tiny.h",
        "tiny.hpp",
        "tiny.pc",
        "tinyConfig.cmake",
    ]
    spec, manifest = spec_of(), read_package(package, check=True).manifest
    assert (manifest.name, manifest.target, manifest.variants) == (spec.name, spec.target, spec.variants)
    assert manifest.params == ((0, 3), (64, 256)) and manifest.verification is None
    assert read_choices(read_package(package)) == spec.choices
    jsonschema.Draft202012Validator.check_schema(schema())
    params = (package / "params.bin").read_bytes()
    assert len(params) == 320 and params[:3] == b"\0\1\2" and params[64:] == spec.params[1][1].tobytes()


def test_a_rebuild_gives_the_same_bytes(package: Path, tmp_path: Path) -> None:
    assert contents(write_package(spec_of(), tmp_path / "again.modelc").path) == contents(package)
    other = write_package(spec_of(notes=("another",)), tmp_path / "other.modelc")
    assert other.manifest.build_id != read_package(package).manifest.build_id


def test_nothing_of_this_machine_is_in_the_library(package: Path) -> None:
    library = (package / "libtiny.so").read_bytes()
    assert str(Path.home()).encode() not in library and b"/tmp" not in library and b"modelc-link" not in library


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), PackageError("no")])
def test_an_interrupted_write_leaves_what_was_there(package: Path, tmp_path: Path, interruption: BaseException) -> None:
    def stop(folder: Path) -> None:
        read_package(folder, check=True)
        raise interruption

    place = tmp_path / "a" / "tiny.modelc"
    place.parent.mkdir()
    with pytest.raises(type(interruption)):
        write_package(spec_of(), place, verify=stop)
    assert not list(place.parent.iterdir())
    shutil.copytree(package, place)
    with pytest.raises(type(interruption)):
        write_package(spec_of(name="other"), place, verify=stop)
    assert contents(place) == contents(package) and list(place.parent.iterdir()) == [place]
    write_package(spec_of(name="other"), place)
    assert read_package(place).manifest.name == "other" and list(place.parent.iterdir()) == [place]


def test_replacing_works_where_folders_cannot_be_exchanged(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modelc.package.write._exchange", lambda one, other: False)
    made = copy.parent / "made"
    made.mkdir()
    take_place(made, copy)
    assert list(copy.parent.iterdir()) == [copy] and not list(copy.iterdir())


def test_only_packages_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.tex").write_text("")
    for name, sentence in [("file", "is a file"), ("folder", "not a package"), ("no/where", "cannot write in")]:
        with pytest.raises(PackageError, match=sentence):
            write_package(spec_of(), tmp_path / name)


def test_the_verification_is_added_in_one_step(copy: Path, tmp_path: Path) -> None:
    report = {"summary": {"passed": True, "worst": 1e-6}, "outputs": [1, 2]}
    assert write_verification(copy, report).manifest.verification == report["summary"]
    package = read_package(copy, check=True)
    assert package.manifest.verification == report["summary"] and read_verification(package) == report
    write_verification(copy, {"summary": {"passed": False}})
    assert read_package(copy, check=True).manifest.verification == {"passed": False}
    assert list(copy.parent.iterdir()) == [copy]
    with pytest.raises(PackageError, match="'passed' is a required property"):
        write_verification(copy, {"summary": {}})
    at_once = write_package(spec_of(), tmp_path / "verified.modelc", verify=lambda folder: report)
    assert read_verification(read_package(at_once.path, check=True)) == report


@pytest.mark.parametrize("name", ["libtiny.so", "params.bin", "tiny.h", "example.c", "loader.py", "choices.json"])
def test_a_damaged_file_is_named(copy: Path, name: str) -> None:
    data = (copy / name).read_bytes()
    (copy / name).write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    read_package(copy)
    with pytest.raises(PackageError, match=f"{name} is damaged: its checksum"):
        read_package(copy, check=True)
    (copy / name).write_bytes(data[:-1])
    with pytest.raises(PackageError, match=f"{name} is damaged: it has {len(data) - 1} bytes instead of {len(data)}"):
        read_package(copy)
    (copy / name).unlink()
    with pytest.raises(PackageError, match=f"cannot read .*{name}"):
        read_package(copy)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"schema_version": 3}, "of schema 3, and this modelc knows up to 2: update"),
        ({"schema_version": 1}, "of schema 1, of an earlier modelc, and this one knows 2: compile the model again"),
        ({"schema_version": "1"}, "at schema_version"),
        ({"files": {}}, "at files"),
        ({"variants": [{}]}, "at variants/0"),
        ({"extra": 1}, "at extra: no such property"),
        ({"schema_version": 2.0}, "at schema_version"),
        ({"schema_version": True}, "at schema_version"),
    ],
)
def test_a_manifest_that_does_not_conform_is_refused(copy: Path, changes: dict[str, object], sentence: str) -> None:
    edit_manifest(copy, **changes)
    with pytest.raises(PackageError, match=sentence):
        read_package(copy)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/b", "..", "."])
def test_file_names_do_not_leave_the_package(copy: Path, name: str) -> None:
    files = json.loads((copy / "manifest.json").read_text())["files"]
    edit_manifest(copy, files={**files, name: {"bytes": 0, "sha256": "0" * 64}})
    with pytest.raises(PackageError, match="at files"):
        read_package(copy)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100000, "\xff"])
def test_a_manifest_that_is_not_one_is_refused(copy: Path, text: str) -> None:
    (copy / "manifest.json").write_text(text, encoding="latin-1")
    with pytest.raises(PackageError, match="damaged"):
        read_package(copy)


def test_a_folder_without_manifest_is_no_package(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match="is not a package"):
        read_package(tmp_path)


@pytest.mark.parametrize(
    "triple", ["x86_64-linux-gnu", "aarch64-linux-gnu", "armv7l-linux-gnueabihf", "riscv64-linux-gnu"]
)
def test_packages_run_on_every_machine(tmp_path: Path, triple: str) -> None:
    skip_without_tools(triple)
    package = write_package(spec_of(triple, flush_denormals=True), tmp_path / "tiny.modelc").path
    for threads, variant, rows in [(1, 0, 40), (3, 1, 7)]:
        inputs = inputs_of(rows)
        run = run_emulated(package, inputs, variant=variant, threads=threads, repeat=2, profile=True)
        check_outputs(run.outputs, inputs)
        assert [(step.name, step.calls) for step in run.steps][1:3] == [('row norm \\ "?', 2), ("normalise", 2)]
    needed = subprocess.run(["readelf", "-d", package / "libtiny.so"], capture_output=True, text=True).stdout
    libraries = {line.split("[")[1].rstrip("]") for line in needed.splitlines() if "(NEEDED)" in line}
    assert all(
        name.split(".")[0] in ("libc", "libm", "libpthread") or name.startswith("ld-linux") for name in libraries
    )


@pytest.mark.parametrize(
    ("triple", "feature", "missing"),
    [
        ("aarch64-linux-gnu", "neon", "quantum"),
        ("armv7l-linux-gnueabihf", "vfp4", "avx2"),
        ("riscv64-linux-gnu", "v", "neon"),
    ],
)
def test_features_are_checked_on_every_machine(tmp_path: Path, triple: str, feature: str, missing: str) -> None:
    skip_without_tools(triple)
    has = write_package(spec_of(triple, (feature,)), tmp_path / "has.modelc").path
    check_outputs(run_emulated(has, inputs_of()).outputs, inputs_of())
    lacks = write_package(spec_of(triple, (missing,)), tmp_path / "lacks.modelc").path
    with pytest.raises(PackageError, match=f"needs the CPU feature '{missing}'"):
        run_emulated(lacks, inputs_of())


def test_emulated_inputs_are_checked(package: Path) -> None:
    inputs = inputs_of()
    with pytest.raises(InputError, match="'mask' is missing"):
        run_emulated(package, {"x": inputs["x"]})
    with pytest.raises(InputError, match=r"'x' is float64 \[40, 64\]; the model takes float32"):
        run_emulated(package, {**inputs, "x": inputs["x"].astype("float64")})


def test_an_object_for_another_machine_is_refused(tmp_path: Path) -> None:
    other = "aarch64-linux-gnu" if "x86" in NATIVE_TRIPLE else "x86_64-linux-gnu"
    skip_without_tools(other)
    with pytest.raises(ToolchainError, match=r"kernel object 'k' is for .* instead of"):
        write_package(spec_of(objects={"k": object_for(other)}), tmp_path / "tiny.modelc")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_linked_is_said(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match=r"failed:\n(.|\n)*scale"):
        write_package(spec_of(objects={}), tmp_path / "tiny.modelc")


def test_missing_tools_say_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("modelc.package.toolchain.importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("modelc.package.toolchain.native_machine", lambda: None)
    monkeypatch.setattr("modelc.package.emulators.native_machine", lambda: None)
    with pytest.raises(ToolchainError, match=r"install Debian's gcc-aarch64-linux-gnu, or ziglang"):
        find_toolchain("aarch64-linux-gnu")
    with pytest.raises(ToolchainError, match="install Debian's qemu-user-static"):
        emulator("aarch64-linux-gnu")
    with pytest.raises(ToolchainError, match="cannot link for 'sparc-sun-solaris'"):
        find_toolchain("sparc-sun-solaris")
    monkeypatch.setattr("modelc.package.toolchain.importlib.util.find_spec", lambda name: object())
    zig = (*worker_command("ziglang", "cc"), "-target", "aarch64-linux-gnu.2.17")
    assert find_toolchain("aarch64-linux-gnu").command == zig


def test_cc_chooses_the_native_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -m64")
    assert find_toolchain(NATIVE_TRIPLE).command == ("no-such-compiler", "-m64")
    with pytest.raises(ModelcError, match="cannot run the C compiler 'no-such-compiler'"):
        write_package(spec_of(), tmp_path / "tiny.modelc")


def test_a_model_without_inputs_parameters_or_steps_is_a_package(tmp_path: Path) -> None:
    variants = (type(plan_of(1))((), (), ()),)
    package = write_package(spec_of(variants=variants, objects={}, params=()), tmp_path / "none.modelc")
    assert run_emulated(package.path, {}).outputs == {}

"""What packages run under, as triples name it: one row for each system that there are packages for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class System:
    """`part` of a triple names it, `environments` may follow (none: an architecture's own). `objects` is the format of
    its code. `shared` is what a shared library of it is called, where PREFIX stands for the model's; empty: packages
    for it have none. `emit` are the forms of a package for it (modelc/package/form.py), `lacking` says why others are
    none. Where it is `hosted` the runtime has threads and files; elsewhere packages are free-standing. `llvm` and `zig`
    are the ends of its triple for these."""

    name: str
    part: str
    environments: tuple[str, ...]
    objects: str
    shared: str
    emit: tuple[str, ...]
    lacking: str
    hosted: bool
    llvm: str
    zig: str


LINUX = System("Linux", "linux", (), "ELF", "libPREFIX.so", ("so", "a", "o"), "", True, "", "")
ANDROID = System(
    *("Android", "linux", ("android",), "ELF", "", ("a", "o")),
    "a shared library is linked with Android's own C library, which comes with its NDK alone",
    *(False, "unknown-linux-android", "linux-musl"),  # of which the compiler takes headers alone
)
WINDOWS = System(
    *("Windows", "windows", ("gnu",), "COFF", "PREFIX.dll", ("so", "a")),
    "linkers for Windows join no objects into one",
    *(False, "unknown-windows-gnu", "windows-gnu"),
)
MACOS = System(
    *("macOS", "macos", (), "Mach-O", "libPREFIX.dylib", ("so", "a", "o"), ""),
    *(False, "apple-macosx11.0.0", "macos"),
)
WASI = System("WebAssembly", "wasi", (), "wasm", "PREFIX.wasm", ("so", "a", "o"), "", False, "unknown-wasi", "wasi")
SYSTEMS = (ANDROID, WINDOWS, MACOS, WASI, LINUX)
MUSL = {"gnu": "musl", "gnueabihf": "musleabihf", "gnueabi": "musleabi"}  # the same machine with another C library


def system_of(triple: str) -> System | None:
    """The system of a triple such as aarch64-linux-android; None for one that modelc does not know."""
    _, *parts = triple.split("-")
    for system in SYSTEMS:
        if parts[:1] == [system.part] and (not system.environments or parts[-1] in system.environments):
            return system
    return None


def is_musl(triple: str) -> bool:
    """Whether a triple asks for musl in the place of glibc."""
    return triple.split("-")[-1] in MUSL.values()

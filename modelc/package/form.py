"""What a package is made as: the names in its library, its files, and the C library that it is linked with."""

from __future__ import annotations

import re
from dataclasses import dataclass

from modelc.errors import PackageError
from modelc.target.system import LINUX, SYSTEMS, WASI, WINDOWS, System, is_musl, system_of

EMITTED = ("so", "a", "o", "rust")  # a shared library, a static one, one object, a crate of the static one
SYSTEMS_OWN = frozenset({"c", "m", "dl", "rt", "pthread", "util", "gcc", "resolv"})  # libPREFIX.so would be another
MOST_PREFIX = 64  # characters
KEYWORDS = frozenset(
    re.findall(
        r"\w+",
        "auto break case char const continue default do double else enum extern float for goto if inline int long "
        "register restrict return short signed sizeof static struct switch typedef union unsigned void volatile while ",
    )
)


@dataclass(frozen=True)
class Form:
    """`prefix` begins every name that the library exports (PREFIX_open), its header's and its own; empty: the model's
    name decides. `emit` are the files with the code. `embed_params`: parameters lie in the library, and a package has
    no params.bin. `freestanding`: it needs no C library, threads or files, and takes memory from its caller; then
    parameters are embedded; on systems other than Linux every package is. `libc` is gnu, gnu.2.N, musl or none, which
    is freestanding; empty: gnu. `cc` and `ar` are commands, empty: those that are there for the target. `system` runs
    it (target/system.py)."""

    prefix: str = ""
    emit: tuple[str, ...] = ("so",)
    embed_params: bool = False
    freestanding: bool = False
    libc: str = ""
    cc: str = ""
    ar: str = ""
    system: str = LINUX.name

    @classmethod
    def of(
        cls,
        name: str,
        prefix: str | None = None,
        emit: tuple[str, ...] = (),
        embed_params: bool = False,
        freestanding: bool = False,
        libc: str = "",
        cc: str = "",
        ar: str = "",
        triple: str = "",
    ) -> Form:
        """The form of the model `name`, for the system of `triple` (empty: Linux), in which nothing is open. Raises
        PackageError for what makes no sense."""
        system = system_of(triple) or LINUX
        bare = freestanding or libc == "none"
        freestanding = bare or not system.hosted
        if libc == "musl" and system is not LINUX:
            raise PackageError(
                f"--libc musl is for Linux, and packages for {system.name} are free-standing: leave it out"
            )
        if freestanding and libc not in ("", "none"):
            raise PackageError(f"a free-standing package has no C library: leave out --libc {libc}, or --freestanding")
        for kind in emit:
            if kind not in EMITTED:
                raise PackageError(f"--emit {kind} is no form of a package; expected {', '.join(EMITTED)}")
            if kind not in (*system.emit, "rust"):
                raise PackageError(
                    f"--emit {kind} is no form of a package for {system.name}, which has {', '.join(system.emit)}: "
                    f"{system.lacking}"
                )
        if freestanding and system.hosted and "so" in emit:
            raise PackageError("a free-standing package has no shared library: say --emit a, o or both")
        asked = {*emit, "a"} if "rust" in emit else {*emit}
        static = (bare and system is not WASI) or "so" not in system.emit or is_musl(triple)
        if libc and not re.fullmatch(r"gnu|gnu\.2\.[1-9][0-9]?|musl|none", libc):
            raise PackageError(f"--libc {libc} is no C library; expected gnu, gnu.2.17 (the version), musl or none")
        return cls(
            prefix_of(name) if prefix is None else checked_prefix(prefix),
            tuple(kind for kind in EMITTED if kind in asked) or (("a",) if static else ("so",)),
            embed_params or freestanding,
            freestanding,
            "none" if freestanding else libc,
            cc,
            ar,
            system.name,
        )

    @property
    def header(self) -> str:
        return f"{self.prefix}.h"

    @property
    def library(self) -> str:
        return self.on.shared.replace("PREFIX", self.prefix)

    @property
    def on(self) -> System:
        """The system that runs it."""
        return next(system for system in SYSTEMS if system.name == self.system)

    @property
    def beside(self) -> tuple[str, ...]:
        """What comes with the shared library: a loader, or what programs are linked with that load it."""
        if "so" not in self.emit:
            return ()
        return {LINUX: ("loader.py",), WASI: (f"{self.prefix}.mjs",), WINDOWS: (f"{self.prefix}.lib",)}.get(self.on, ())

    @property
    def archive(self) -> str:
        return f"lib{self.prefix}.a"

    @property
    def object(self) -> str:
        return f"{self.prefix}.o"

    @property
    def code(self) -> str:
        """The file with the code: of several, the first of EMITTED."""
        return self.file_of(self.emit[0])

    def file_of(self, kind: str) -> str:
        """The file of one of EMITTED."""
        return {"so": self.library, "a": self.archive, "o": self.object, "rust": f"{self.prefix}.rs"}[kind]


def prefix_of(name: str) -> str:
    """The prefix of a model that is called so."""
    plain = re.sub("[^A-Za-z0-9_]+", "_", name).strip("_")[:MOST_PREFIX].lower()
    return plain if re.fullmatch("[a-z][a-z0-9_]*", plain) and not _is_taken(plain) else f"model_{plain}".rstrip("_")


def checked_prefix(prefix: str) -> str:
    """Raises PackageError for what no C identifier begins with, or C or the runtime has taken."""
    if not re.fullmatch("[A-Za-z][A-Za-z0-9_]*", prefix) or len(prefix) > MOST_PREFIX:
        raise PackageError(
            f"--prefix {prefix!r} begins no C name: expected a letter, and then at most {MOST_PREFIX - 1} letters, "
            "digits and underscores, such as face"
        )
    if _is_taken(prefix):
        raise PackageError(
            f"--prefix {prefix} is a name that C, the system's libraries or modelc have taken: "
            f"give another, such as {prefix}_net"
        )
    return prefix


def _is_taken(prefix: str) -> bool:
    return prefix in {*KEYWORDS, *SYSTEMS_OWN, "modelc", "mc"} or prefix.startswith(("modelc_", "mc_"))

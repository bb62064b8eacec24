"""Libraries to link with in the place of the system's glibc: they have the functions that packages call, in the version
in which an old glibc has them, so that what is linked runs there, whatever system it is linked on.

Linkers take the version of a symbol from the library that they see. These have names and versions alone, and no code.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from modelc.package.objects import kept, lasting_folder
from modelc.package.toolchain import Toolchain
from modelc.scratch import TemporaryFolder

C = re.findall(
    r"\w+",
    "__cxa_finalize __errno_location __getauxval abort calloc clock_gettime close dl_iterate_phdr fclose fgets fopen "
    "fork free getauxval getpid lseek madvise malloc memcmp memcpy memmove memset mmap munmap open posix_memalign "
    "raise read secure_getenv sigdelset sigfillset signal snprintf strchr strcmp strcspn strerror strlen strncmp "
    "strrchr strspn strstr syscall sysconf waitpid _exit __stack_chk_fail __stack_chk_guard",
)
THREADS = re.findall(
    r"\w+",
    "pthread_cond_broadcast pthread_cond_destroy pthread_cond_init pthread_cond_signal pthread_cond_wait "
    "pthread_create pthread_join pthread_mutex_destroy pthread_mutex_init pthread_mutex_lock pthread_mutex_unlock "
    "pthread_sigmask",
)
FUNCTIONS = re.findall(
    r"\w+",
    "acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 expm1 fabs fdim floor fma "
    "fmax fmin fmod frexp hypot ilogb ldexp lgamma llrint llround log log10 log1p log2 logb lrint lround modf "
    "nearbyint nextafter pow remainder remquo rint round scalbn sin sincos sinh sqrt tan tanh tgamma trunc",
)
MATH = [*FUNCTIONS, *(f"{name}f" for name in FUNCTIONS)]
Library = tuple[str, str, Mapping[str, str]]  # file, soname, the version of each function
GLIBC = (("libc.so", "libc.so.6", C), ("libm.so", "libm.so.6", MATH), ("libpthread.so", "libpthread.so.0", THREADS))
LATER: Mapping[str, Mapping[str, str]] = {  # functions that came after the first version, by machine
    "x86_64": {
        **dict.fromkeys(THREADS[:5], "2.3.2"),
        "__stack_chk_fail": "2.4",
        "clock_gettime": "2.17",
        "getauxval": "2.16",
        "memcpy": "2.14",
        "secure_getenv": "2.17",
    },
    "arm": {"clock_gettime": "2.17", "getauxval": "2.16", "secure_getenv": "2.17"},
}
FIRST = {"x86_64": "2.2.5", "aarch64": "2.17", "arm": "2.4", "riscv64": "2.27"}
THREAD_LOCAL = {  # what finds a thread's own variables: the dynamic linker, and the version of its function
    "x86_64": ("ld-linux-x86-64.so.2", "2.3"),
    "arm": ("ld-linux-armhf.so.3", "2.4"),
    "riscv64": ("ld-linux-riscv64-lp64d.so.1", "2.27"),
}
FLAGS = ("-shared", "-nostdlib", "-fPIC", "-fno-builtin", "-w", "-Wl,--version-script=stub.map")


def linking_old(toolchain: Toolchain) -> tuple[str, ...]:
    """Arguments with which a toolchain links with the symbols of an old glibc; none for what does so by itself."""
    if toolchain.zig or toolchain.libc != "gnu":
        return ()
    folder = _stubs(toolchain)
    return (f"-L{folder}", *map(str, sorted(folder.glob("ld-*"))))


@cache
def _stubs(toolchain: Toolchain) -> Path:
    """The folder of these libraries, which is there until this process ends."""
    folder, machine = lasting_folder(), toolchain.machine.name
    later, first = LATER.get(machine, {}), FIRST[machine]
    libraries: list[Library] = [
        (file, soname, {f: later.get(f, first) for f in functions}) for file, soname, functions in GLIBC
    ]
    if machine in THREAD_LOCAL:
        soname, version = THREAD_LOCAL[machine]
        libraries.append((soname, soname, {"__tls_get_addr": version}))
    for file, data in kept(toolchain, [*FLAGS, libraries], lambda: _made(toolchain, libraries)).items():
        (folder / file).write_bytes(data)
    return folder


def _made(toolchain: Toolchain, libraries: Sequence[Library]) -> dict[str, bytes]:
    """The libraries by file name."""
    made = {}
    with TemporaryFolder("stubs") as name:
        folder = Path(name)
        for file, soname, versions in libraries:
            groups = {version: [f for f in versions if versions[f] == version] for version in versions.values()}
            functions = (f for group in groups.values() for f in group)
            (folder / "stub.c").write_text("".join(f"void {f}(void) {{}}\n" for f in functions))
            script = (f"GLIBC_{version} {{ global: {'; '.join(group)}; }};\n" for version, group in groups.items())
            (folder / "stub.map").write_text("".join(script))
            toolchain.compile([*FLAGS, f"-Wl,-soname,{soname}", "stub.c", "-o", file], folder)
            made[file] = (folder / file).read_bytes()
    return made

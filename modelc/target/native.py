"""`native`: this machine as a Target, timed once and remembered."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from modelc.errors import TargetError
from modelc.scratch import TemporaryFolder, beside, is_private, make_private, user_cache
from modelc.target.family import family_of
from modelc.target.host import Host, read_host
from modelc.target.intrinsics import shipped_intrinsics
from modelc.target.isa import architecture
from modelc.target.schema import PEAK_DTYPES, Cache, Target, read_target

_PROGRAM = Path(__file__).with_name("probe.c")
_FLAGS = {
    "x86_64": ("-march=native",),
    "aarch64": ("-mcpu=native",),
    "armv7l": ("-mcpu=native", "-mfpu=neon-vfpv4"),
}
_COMPILERS = ("cc", "gcc", "clang")
_SECONDS = 20  # to compile, and to run: each takes about one
_MEGABYTE = 1 << 20
_PRODUCTS = {"float32": 1, "float16": 2}  # that one lane of 32 bits adds up in one instruction


@dataclass(frozen=True)
class Timing:
    """What was timed, or estimated: the part of a Target that varies from run to run."""

    fma_latency: int
    fma_ports: int
    peak: dict[str, float]
    throughput: dict[str, float]
    cache_bandwidths: tuple[float, ...]
    memory_bandwidth: float  # of all cores
    core_memory_bandwidth: float | None  # of one alone
    measured: bool


def probe(fresh: bool = False) -> Target:
    """This machine. Timing takes about a second and is kept in the user's cache; `fresh` times again.

    Without a C compiler the timings are estimates, `measured` is false, and nothing is kept.
    """
    host = read_host()
    path = _memory(host)
    estimated = _target(host, _estimate(host))
    if not fresh:
        remembered = _recall(path)
        if remembered is not None and remembered.key == estimated.key:
            return remembered
    timing = _measure(host)
    if timing is None:
        return estimated
    target = _target(host, timing)
    _remember(path, target)
    return target


def _target(host: Host, timing: Timing) -> Target:
    return Target(
        name="native",
        triple=host.triple,
        cpu=host.cpu,
        features=host.features,
        float_abi=host.float_abi,
        cores=host.cores,
        vector=host.vector,
        fma_latency=timing.fma_latency,
        fma_ports=timing.fma_ports,
        peak=timing.peak,
        caches=tuple(
            Cache(cache.name, cache.bytes, cache.line, cache.ways, bandwidth, cache.shared)
            for cache, bandwidth in zip(host.caches, timing.cache_bandwidths, strict=True)
        ),
        memory_bandwidth_gbs=timing.memory_bandwidth,
        measured=timing.measured,
        core_memory_bandwidth_gbs=timing.core_memory_bandwidth,
        throughput=timing.throughput,
        cost=family_of(host.cpu).cost,
    )


def _estimate(host: Host) -> Timing:
    """A plain core of the kind: x86 with two FMA ports at 3 GHz, ARM with one at 1.5 GHz."""
    ghz, ports = (3.0, 2) if host.triple.startswith("x86_64") else (1.5, 1)
    bytes_per_cycle = host.vector.bits / 8
    bandwidths = tuple(bytes_per_cycle * ghz / 2**level for level in range(len(host.caches)))
    peak = {"float32": 2.0 * ports * ghz * host.vector.bits / 32}
    return Timing(4, ports, peak, {}, bandwidths, 4.0 * host.cores, None, measured=False)


def _measure(host: Host) -> Timing | None:
    """Compiles and runs `probe.c`; None if that is not possible here."""
    try:
        with TemporaryFolder("probe") as folder:
            program = build_probe(host.triple, folder)
            run = [program, str(host.cores), *map(str, _working_sets(host))]
            done = subprocess.run(run, check=True, capture_output=True, timeout=_SECONDS, text=True)
        figures = {name: float(value) for name, value in map(str.split, done.stdout.splitlines())}
        return timing_of(host, figures)
    except (OSError, subprocess.SubprocessError, ValueError, KeyError, ZeroDivisionError):
        return None  # no compiler or an old one, no room for files, nothing may be executed, ...: estimates will do


def build_probe(triple: str, folder: str) -> str:
    """The program of `probe.c`, in `folder`. Raises OSError or SubprocessError where that is not possible."""
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        raise FileNotFoundError(f"there is no C compiler: none of {', '.join(_COMPILERS)} was found")
    program = os.path.join(folder, "probe")
    build = [compiler, "-O2", *_FLAGS[triple.split("-")[0]], "-pthread", str(_PROGRAM), "-o", program]
    # There: a linker takes what GNU ld calls libgcc_s.so.1 from the folder that it works in.
    subprocess.run(build, cwd=folder, check=True, capture_output=True, timeout=_SECONDS)
    return program


def _working_sets(host: Host) -> tuple[int, ...]:
    """Bytes to read for each cache (well inside it, well outside the one before), then for memory."""
    sets: list[int] = []
    for place, cache in enumerate(host.caches):
        inside = cache.bytes // 2 if place == 0 else min(cache.bytes * 3 // 4, 4 * host.caches[place - 1].bytes)
        sets.append(max(4096, inside // 4096 * 4096))
    memory = min(max(4 * host.caches[-1].bytes, 32 * _MEGABYTE), 256 * _MEGABYTE)
    return (*sets, max(memory, *sets))


def timing_of(host: Host, figures: dict[str, float]) -> Timing | None:
    """From nanoseconds per instruction to a Target's figures; None if another vector was timed than `host` has."""
    if figures["vector"] != host.vector.bits:
        return None
    lanes = host.vector.bits // 32
    peak = {dtype: 2 * n * lanes / figures[dtype] for dtype, n in _PRODUCTS.items() if dtype in figures}
    arch = architecture(host.triple)
    assert arch is not None
    units = [x for x in shipped_intrinsics() if x.name in figures and x.allowed(arch.name, host.features)]
    for unit in units:
        peak[unit.multiplies] = max(peak.get(unit.multiplies, 0.0), 2 * unit.products / figures[unit.name])
    return Timing(
        fma_latency=max(1, round(figures["latency"] / figures["cycle"])),
        fma_ports=max(1, round(figures["cycle"] / figures["float32"])),
        peak={dtype: _rounded(peak[dtype]) for dtype in PEAK_DTYPES if dtype in peak},
        throughput={unit.name: _rounded(figures["cycle"] / figures[unit.name]) for unit in units},
        cache_bandwidths=tuple(_rounded(figures[f"cache{place}"]) for place in range(len(host.caches))),
        memory_bandwidth=_rounded(max(figures["memory"], figures["core_memory"])),
        core_memory_bandwidth=_rounded(figures["core_memory"]),
        measured=True,
    )


def _rounded(value: float) -> float:
    """Three significant digits: more would be noise."""
    return float(f"{value:.3g}")


def _memory(host: Host) -> Path:
    """The file where this machine's timings are kept; another CPU, core count or version of this code has another."""
    facts = [repr(host), *(source.read_text() for source in (_PROGRAM, *sorted(_PROGRAM.parent.glob("*.py"))))]
    digest = hashlib.sha256("\0".join(facts).encode()).hexdigest()
    return user_cache() / f"native-{digest[:16]}.yaml"


def _recall(path: Path) -> Target | None:
    try:
        return read_target(path) if is_private(path.parent) else None
    except (OSError, TargetError):
        return None  # never probed, or damaged


def _remember(path: Path, target: Target) -> None:
    try:
        make_private(path.parent)
        with beside(path, folder=False) as made:
            made.write_text(target.to_yaml())
            os.replace(made, path)
    except OSError:
        pass  # a read-only home: the next process measures again

"""What the operating system says about this machine: nothing here is timed, so it is the same on every call."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from modelc.errors import TargetError
from modelc.target.isa import X86_64_LEVELS, Architecture, architecture, implied_features
from modelc.target.schema import VectorUnit

_TRIPLES = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu", "armv7": "armv7l-linux-gnueabihf"}

# (implementer, part) of /proc/cpuinfo -> LLVM's name. Cores with SVE take the name of Neoverse N1, whose instructions
# they all have: kernels are written for 128-bit NEON, and LLVM must not reach for what a package does not declare.
_ARM_CPUS = {
    (0x41, 0xD03): "cortex-a53",
    (0x41, 0xD05): "cortex-a55",
    (0x41, 0xD07): "cortex-a57",
    (0x41, 0xD08): "cortex-a72",
    (0x41, 0xD09): "cortex-a73",
    (0x41, 0xD0A): "cortex-a75",
    (0x41, 0xD0B): "cortex-a76",
    (0x41, 0xD46): "cortex-a55",  # A510
    (0x41, 0xD0C): "neoverse-n1",
    (0x41, 0xD40): "neoverse-n1",  # V1
    (0x41, 0xD49): "neoverse-n1",  # N2
    (0x41, 0xD4F): "neoverse-n1",  # V2
    (0x41, 0xD84): "neoverse-n1",  # V3
    (0x41, 0xD8E): "neoverse-n1",  # N3
}


def known_cpus(arch: Architecture) -> frozenset[str]:
    """LLVM's names of the CPUs that this code itself gives, which LLVM makes code for."""
    named = {
        "x86_64": X86_64_LEVELS,
        "aarch64": ("generic", "apple-m1", *_ARM_CPUS.values()),
        "riscv64": ("generic-rv64",),
    }
    return frozenset(named.get(arch.name, ("generic",)))


@dataclass(frozen=True)
class HostCache:
    """A data cache as sysfs describes it."""

    name: str
    bytes: int
    line: int
    ways: int
    shared: bool


# Where the kernel says nothing (common on small ARM boards): small enough to be true nearly everywhere.
_ASSUMED_CACHES = (HostCache("L1", 32 << 10, 64, 4, False), HostCache("L2", 256 << 10, 64, 8, False))


@dataclass(frozen=True)
class Host:
    """This machine, as far as generated code depends on it. `identity` names the CPU model and all its flags."""

    identity: str
    triple: str
    cpu: str
    features: tuple[str, ...]
    float_abi: str | None
    vector: VectorUnit
    cores: int
    caches: tuple[HostCache, ...]


def read_host(root: Path = Path("/"), machine: str | None = None, processors: frozenset[int] | None = None) -> Host:
    """Reads /proc and /sys under `root`; `machine` and `processors` default to what this process runs on."""
    machine = platform.machine() if machine is None else machine
    arch = architecture({"armv8l": "armv7l"}.get(machine, machine))
    cpuinfo = _first_processor(root)
    if arch is None or arch.name not in _TRIPLES or not cpuinfo:
        raise TargetError(f"target native: this machine is {machine}; expected Linux on one of {', '.join(_TRIPLES)}")
    processors = frozenset(os.sched_getaffinity(0)) if processors is None else processors
    words = set(cpuinfo.get("flags", cpuinfo.get("Features", "")).split())
    features = _features(arch, words)
    if arch.name != "x86_64" and "neon" not in features:
        raise TargetError("target native: this machine has no NEON; expected a vector unit")
    return Host(
        identity=_identity(cpuinfo, words),
        triple=_TRIPLES[arch.name],
        cpu={"x86_64": _x86_level(features), "aarch64": _arm_cpu(cpuinfo)}.get(arch.name, "generic"),
        features=features,
        float_abi="hard" if arch.float_abis else None,
        vector=VectorUnit(arch.widest_vector(features), arch.vector_registers(features)),
        cores=_cores(root, processors),
        caches=_caches(root, min(processors)),
    )


def _first_processor(root: Path) -> dict[str, str]:
    """The first paragraph of /proc/cpuinfo that describes a processor."""
    for paragraph in _text(root / "proc/cpuinfo").split("\n\n"):
        pairs = (line.partition(":") for line in paragraph.splitlines())
        fields = {key.strip(): value.strip() for key, _, value in pairs}
        if "flags" in fields or "Features" in fields:
            return fields
    return {}


def _identity(cpuinfo: dict[str, str], words: set[str]) -> str:
    x86 = ("vendor_id", "cpu family", "model", "model name", "stepping")
    arm = ("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision")
    keys = (*x86, *arm)
    return "\n".join([*(f"{key}: {cpuinfo[key]}" for key in keys if key in cpuinfo), " ".join(sorted(words))])


def _x86_level(features: tuple[str, ...]) -> str:
    """The highest level of which this CPU has everything."""
    return [level for level in X86_64_LEVELS if set(implied_features(level)) <= set(features)][-1]


def _arm_cpu(cpuinfo: dict[str, str]) -> str:
    try:
        part = int(cpuinfo.get("CPU implementer", "0"), 0), int(cpuinfo.get("CPU part", "0"), 0)
    except ValueError:
        return "generic"
    return _ARM_CPUS.get(part, "generic")


def _features(arch: Architecture, words: set[str]) -> tuple[str, ...]:
    """What the CPU has, without fragments of AVX-512 (Knights Landing's, say): kernels want all of level 4 or none."""
    names = tuple(feature.llvm for feature in arch.features if feature.cpuinfo in words)
    whole = set(X86_64_LEVELS["x86-64-v4"]) <= set(names)
    return tuple(name for name in names if whole or not name.startswith("avx512"))


def _cores(root: Path, processors: frozenset[int]) -> int:
    """Physical cores in the affinity mask (two threads of a core share its FMA ports), at most the cgroup's quota."""
    topology = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    cores = {_text(root / topology.format(processor)).strip() or str(processor) for processor in processors}
    quota = _cgroup_quota(root)
    return len(cores) if quota is None else max(1, min(len(cores), int(quota)))


def _cgroup_quota(root: Path) -> float | None:
    """CPUs that the tightest cgroup on the way up allows, in either version's files."""
    quotas = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / ("cpu" if controllers else "")
        parts = [part for part in path.split("/") if part and part != ".."]
        for depth in range(len(parts) + 1):
            folder = base.joinpath(*parts[:depth])
            if controllers:
                words = [_text(folder / "cpu.cfs_quota_us").strip(), _text(folder / "cpu.cfs_period_us").strip()]
            else:
                words = _text(folder / "cpu.max").split()
            if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
                quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def _caches(root: Path, processor: int) -> tuple[HostCache, ...]:
    """Data caches, innermost first. A level that is no larger than the one before it is left out."""
    folder = root / f"sys/devices/system/cpu/cpu{processor}"
    siblings = _processors(_text(folder / "topology/thread_siblings_list")) or {processor}
    by_level: dict[int, HostCache] = {}
    for index in sorted(folder.glob("cache/index*")):
        facts = {file: _text(index / file).strip() for file in ("level", "type", "size", "coherency_line_size")}
        size = re.fullmatch(r"(\d+)([KM])", facts["size"])
        if facts["type"] not in ("Data", "Unified") or not facts["level"].isdigit() or size is None:
            continue
        length = int(size[1]) << {"K": 10, "M": 20}[size[2]]
        line = int(facts["coherency_line_size"]) if facts["coherency_line_size"].isdigit() else 0
        line = line if line > 0 and line & (line - 1) == 0 and length % line == 0 else 64
        ways = _text(index / "ways_of_associativity").strip()
        associativity = int(ways) if ways.isdigit() and 0 < int(ways) * line <= length else 8
        shared = not _processors(_text(index / "shared_cpu_list")) <= siblings
        level = int(facts["level"])
        by_level[level] = HostCache(f"L{level}", length, line, associativity, shared)
    caches: list[HostCache] = []
    for level in sorted(by_level):
        if not caches or by_level[level].bytes > caches[-1].bytes:
            caches.append(by_level[level])
    return tuple(caches) or _ASSUMED_CACHES


def _processors(text: str) -> set[int]:
    """The numbers of a list such as `0-3,8`."""
    ranges = re.findall(r"(\d+)(?:-(\d+))?", text)
    return {processor for first, last in ranges for processor in range(int(first), int(last or first) + 1)}


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""

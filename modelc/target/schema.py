"""What a Target is, as data, and the strict reading and writing of its YAML. A target file is untrusted input."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from modelc.errors import TargetError
from modelc.target import strict_yaml
from modelc.target.cost import CostParameters, cost_parameters
from modelc.target.family import family_of
from modelc.target.intrinsic import Intrinsic
from modelc.target.intrinsics import listed_features, named_intrinsics, shipped_intrinsics
from modelc.target.isa import ARCHITECTURES, Architecture, architecture, implied_features
from modelc.target.passes import PassLists, pass_lists
from modelc.target.records import FamilyRecords, named_records, shipped_records
from modelc.target.section import WORD, Section, parse_yaml, read_text
from modelc.target.system import LINUX, MUSL, SYSTEMS, WASI, system_of

PEAK_DTYPES = ("float32", "float16", "bfloat16", "int8")

_DTYPE = re.compile(r"(?:bfloat|float|u?int)(8|16|32|64)")
_TRIPLE = re.compile(r"[a-z0-9_]+(-[a-z0-9_]+)+")


@dataclass(frozen=True)
class VectorUnit:
    """The registers that kernels are written for: `bits` wide each, `registers` of them."""

    bits: int
    registers: int


@dataclass(frozen=True)
class Cache:
    """One data cache. `bandwidth_gbs` is what one core reads from it; `shared` says if cores share its bytes."""

    name: str
    bytes: int
    line: int
    ways: int
    bandwidth_gbs: float
    shared: bool


@dataclass(frozen=True)
class Memory:
    """A memory that programs fill themselves, `line` bytes at a time (Stripe, section 3.2: the location of a
    refinement): a scratchpad."""

    name: str
    bytes: int
    line: int


@dataclass(frozen=True)
class Target:
    """A machine. Bandwidths are in GB/s, peaks in GFLOP/s (int8: GOP/s) with a multiply-add counted as two."""

    name: str
    triple: str
    cpu: str  # LLVM's name
    features: tuple[str, ...]  # LLVM's names: what kernels may use, and a package's `open()` looks for on the CPU
    float_abi: str | None  # "hard" or "soft" on 32-bit ARM, elsewhere None
    cores: int  # physical cores that kernels may use
    vector: VectorUnit
    fma_latency: int  # cycles from an accumulator to the same accumulator
    fma_ports: int  # fused multiply-adds of `vector.bits` that start per cycle
    peak: Mapping[str, float] = field(hash=False)  # dtype -> GFLOP/s of one core by its best unit; float32 always
    caches: tuple[Cache, ...]  # innermost first
    memory_bandwidth_gbs: float  # what all cores together read
    measured: bool  # whether bandwidths, peaks, latency and ports were measured or are estimates
    core_memory_bandwidth_gbs: float | None = None  # what one core reads alone; None: all of it
    intrinsics: tuple[Intrinsic, ...] | None = None  # None: every shipped one that the features allow
    # Name of an intrinsic -> how many of it start per cycle on this machine, where that is not what its YAML says.
    throughput: Mapping[str, float] = field(default_factory=dict, hash=False)
    cost: CostParameters = field(default_factory=CostParameters)  # of estimates, beside the figures above
    memories: tuple[Memory, ...] = ()  # that programs fill themselves
    passes: PassLists = field(default_factory=PassLists, hash=False)  # that the compiler for this machine runs
    records: FamilyRecords | None = field(default=None, compare=False)  # that the YAML names
    # Of the constants of the network that estimates are made for: a run reads them in turn, so they lie where so many
    # bytes do. No part of the YAML.
    cold_bytes: int = 0

    @property
    def architecture(self) -> Architecture:
        arch = architecture(self.triple)
        if arch is None:
            raise TargetError(f"target {self.name}: triple is {self.triple!r}; expected one of {_known_triples()}")
        return arch

    @property
    def second(self) -> Cache:
        """The second-level cache, or the only one."""
        return self.caches[min(1, len(self.caches) - 1)]

    def kept_bytes(self, cache: Cache) -> float:
        """How much of a network's constants stays in `cache` from one run to the next: other things pass through it in
        between, and others share it."""
        return cache.bytes * self.cost.between_share

    def memory_gbs(self, cores: int) -> float:
        """GB/s that so many cores together read from memory."""
        alone = self.core_memory_bandwidth_gbs
        return self.memory_bandwidth_gbs if alone is None else min(self.memory_bandwidth_gbs, cores * alone)

    @property
    def elf_machine(self) -> int:
        """e_machine of the objects that this target's compiler must make."""
        return self.architecture.elf_machine

    @property
    def unimplemented(self) -> tuple[Intrinsic, ...]:
        """The intrinsics without an implementation, which passes over Blocks use and no kernel can: nothing executes
        them natively."""
        return tuple(x for x in self.intrinsics or () if x.implementation is None)

    @property
    def available_intrinsics(self) -> tuple[Intrinsic, ...]:
        """The intrinsics that kernels may use, as fast as they are on this machine."""
        intrinsics = self.intrinsics
        if intrinsics is None:
            intrinsics = tuple(x for x in shipped_intrinsics() if x.allowed(self.architecture.name, self.features))
        implemented = (x for x in intrinsics if x.implementation is not None)
        return tuple(replace(x, throughput=self.throughput.get(x.name, x.throughput)) for x in implemented)

    def lanes(self, dtype: str) -> int:
        """Elements of `dtype` ("float32", "int8", ...) in one vector register."""
        match = _DTYPE.fullmatch(dtype)
        if match is None:
            raise ValueError(f"lanes: dtype is {dtype!r}; expected a number type such as float32 or int8")
        return self.vector.bits // int(match[1])

    @property
    def hertz(self) -> float:
        """Cycles a second at which vector units reach their peak."""
        return 1e9 * self.peak["float32"] / (2 * self.lanes("float32") * self.fma_ports)

    @property
    def key(self) -> str:
        """Names the machine in tuning databases: instruction set, cores and caches, nothing that was timed."""
        facts = {
            "triple": self.triple,
            "cpu": self.cpu,
            "features": sorted(self.features),
            "float_abi": self.float_abi,
            "vector": [self.vector.bits, self.vector.registers],
            "cores": self.cores,
            "caches": [[cache.bytes, cache.line, cache.ways, cache.shared] for cache in self.caches],
            **({"memories": [[memory.bytes, memory.line] for memory in self.memories]} if self.memories else {}),
        }
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        return f"{self.architecture.name}-{self.vector.bits}-{self.cores}c-{digest[:12]}"

    @property
    def machine(self) -> dict[str, Any]:
        """What this machine has in common with others of its family: what decides which tile is the best one."""
        return {
            "architecture": self.architecture.name,
            "vector": [self.vector.bits, self.vector.registers],
            "fma_ports": self.fma_ports,
            "caches": [cache.bytes for cache in self.caches if not cache.shared],
            "cores": self.cores,
        }

    @property
    def family_records(self) -> tuple[FamilyRecords, ...]:
        """The records of the file that the YAML names, or else of the shipped files for such a machine."""
        if self.records is not None:
            return (self.records,)
        return tuple(records for records in shipped_records() if records.machine == self.machine)

    def to_yaml(self) -> str:
        """The text that `parse_target` reads back into an equal Target, but for the file of its records."""
        plain = _plain(replace(self, intrinsics=None, records=None))
        tree = {name: value for name, value in plain.items() if value is not None}
        for name in ("throughput", "memories"):
            if not tree[name]:
                del tree[name]
        tree.pop("cost")
        tree.pop("cold_bytes")
        tree.pop("passes")
        if lists := self.passes.to_yaml():
            tree["passes"] = lists
        if own := self.cost.beside(family_of(self.cpu).cost):
            tree["cost"] = own
        tree["measured"] = tree.pop("measured")  # at the end: a file that was cut short lacks it
        if self.intrinsics is not None:
            tree["intrinsics"] = list(dict.fromkeys(intrinsic.file or intrinsic.name for intrinsic in self.intrinsics))
        return strict_yaml.dump(tree)


def parse_target(text: str, source: str) -> Target:
    """Reads a target's YAML. `source` names the file in errors."""
    top = Section(source, "", parse_yaml(text, source))
    names = [f.name for f in fields(Target) if f.name != "cold_bytes"]
    optional = (
        *("float_abi", "core_memory_bandwidth_gbs", "intrinsics", "throughput", "cost", "memories", "passes"),
        "records",
    )
    top.only_keys(names, required=[name for name in names if name not in optional])
    triple = top.text("triple", _TRIPLE, "a triple such as x86_64-linux-gnu")
    arch = architecture(triple)
    system = system_of(triple)
    if arch is None or system is None or (system is WASI) is bool(arch.environments):
        raise top.wrong(
            "triple", triple, f"a triple that starts with one of {_known_triples()}, then {_known_systems()}"
        )
    ends = (*arch.environments, *map(MUSL.__getitem__, arch.environments)) if system is LINUX else ()
    if ends and triple.split("-")[-1] not in ends:
        raise top.wrong("triple", triple, f"a triple that ends with {' or '.join(ends)}")
    cpu = top.text("cpu", WORD, "LLVM's name of a CPU")
    features, usual = _features(top, arch, cpu), family_of(cpu).cost
    target = Target(
        name=top.text("name", WORD, "a name of letters, digits and . _ + -"),
        triple=triple,
        cpu=cpu,
        features=features,
        float_abi=_float_abi(top, arch, triple),
        cores=top.integer("cores", 1, 4096),
        vector=_vector(top.section("vector"), arch, features),
        fma_latency=top.integer("fma_latency", 1, 100),
        fma_ports=top.integer("fma_ports", 1, 16),
        peak=_peak(top.section("peak")),
        caches=_caches(top),
        memories=_memories(top),
        memory_bandwidth_gbs=top.positive("memory_bandwidth_gbs"),
        measured=top.flag("measured"),
        core_memory_bandwidth_gbs=_core_bandwidth(top) if "core_memory_bandwidth_gbs" in top.tree else None,
        intrinsics=named_intrinsics(top, arch, features) if "intrinsics" in top.tree else None,
        cost=cost_parameters(top.section("cost"), usual) if "cost" in top.tree else usual,
        passes=pass_lists(top.section("passes")) if "passes" in top.tree else PassLists(),
    )
    if "records" in top.tree:
        target = replace(target, records=named_records(top, target.machine))
    return replace(target, throughput=_throughput(top, target)) if "throughput" in top.tree else target


def read_target(path: Path) -> Target:
    """Reads a target file."""
    return parse_target(read_text(path, "a target file"), str(path))


def _features(top: Section, arch: Architecture, cpu: str) -> tuple[str, ...]:
    """What is listed, what every Linux of the architecture asks for, and what an x86-64 level implies, in the order of
    `isa`."""
    has = {*listed_features(top, arch), *arch.baseline, *implied_features(cpu)}
    return tuple(feature.llvm for feature in arch.features if feature.llvm in has)


def _float_abi(top: Section, arch: Architecture, triple: str) -> str | None:
    if not arch.float_abis:
        if "float_abi" in top.tree:
            raise top.wrong("float_abi", top.tree["float_abi"], f"no such key: {arch.name} has one calling convention")
        return None
    abi = top.text("float_abi", WORD, "hard or soft")
    expected = "hard" if triple.endswith("hf") else "soft"
    if abi != expected:
        raise top.wrong("float_abi", abi, f"{expected}, as the triple is {triple}")
    return abi


def _core_bandwidth(top: Section) -> float:
    alone, together = top.positive("core_memory_bandwidth_gbs"), top.positive("memory_bandwidth_gbs")
    if alone > together:
        raise top.wrong("core_memory_bandwidth_gbs", alone, f"at most the {together} that all cores together read")
    return alone


def _vector(part: Section, arch: Architecture, features: tuple[str, ...]) -> VectorUnit:
    part.only(VectorUnit)
    bits, registers = part.integer("bits", 64, 1 << 16), part.integer("registers", 4, 1 << 10)
    widest, named = arch.widest_vector(features), arch.vector_registers(features)
    if bits & (bits - 1) or bits > widest:
        raise part.wrong("bits", bits, f"a power of two, at most the {widest} bits that the listed features give")
    if registers > named:
        raise part.wrong("registers", registers, f"at most the {named} registers that the listed features give")
    return VectorUnit(bits, registers)


def _peak(part: Section) -> dict[str, float]:
    part.only_keys(PEAK_DTYPES, required=("float32",))
    return {dtype: part.positive(dtype) for dtype in part.tree}


def _throughput(top: Section, target: Target) -> dict[str, float]:
    part = top.section("throughput")
    part.only_keys([intrinsic.name for intrinsic in target.available_intrinsics], required=())
    return {name: part.positive(name) for name in part.tree}


def _caches(top: Section) -> tuple[Cache, ...]:
    caches: list[Cache] = []
    for place, tree in enumerate(top.sequence("caches", "a list of caches, innermost first")):
        part = Section(top.source, f"caches[{place}]", tree)
        part.only(Cache)
        cache = Cache(
            name=part.text("name", WORD, "a name such as L1"),
            bytes=part.integer("bytes", 1, 1 << 40),
            line=part.integer("line", 1, 1 << 12),
            ways=part.integer("ways", 1, 1 << 16),
            bandwidth_gbs=part.positive("bandwidth_gbs"),
            shared=part.flag("shared"),
        )
        if cache.line & (cache.line - 1):
            raise part.wrong("line", cache.line, "a power of two")
        if cache.bytes % cache.line or cache.bytes < cache.line * cache.ways:
            raise part.wrong("bytes", cache.bytes, f"whole lines of {cache.line}, at least one in each way")
        if caches and cache.bytes <= caches[-1].bytes:
            raise part.wrong("bytes", cache.bytes, f"more than the {caches[-1].bytes} of {caches[-1].name} before it")
        if cache.name in (other.name for other in caches):
            raise part.wrong("name", cache.name, "a name that no other cache has")
        caches.append(cache)
    if not caches:
        raise top.wrong("caches", [], "at least one cache")
    return tuple(caches)


def _memories(top: Section) -> tuple[Memory, ...]:
    if "memories" not in top.tree:
        return ()
    memories: list[Memory] = []
    taken = [cache["name"] for cache in top.tree["caches"]]
    for place, tree in enumerate(top.sequence("memories", "a list of memories that programs fill themselves")):
        part = Section(top.source, f"memories[{place}]", tree)
        part.only(Memory)
        line = part.integer("line", 1, 1 << 12)
        memory = Memory(
            part.text("name", WORD, "a name such as scratchpad"), part.integer("bytes", line, 1 << 40), line
        )
        if memory.name in (*taken, *(other.name for other in memories)):
            raise part.wrong("name", memory.name, "a name that no cache and no other memory has")
        memories.append(memory)
    return tuple(memories)


def _plain(value: Any) -> Any:
    """Dataclasses, tuples and mappings as what YAML has."""
    if hasattr(value, "__dataclass_fields__"):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value


def _known_triples() -> str:
    return ", ".join(name for arch in ARCHITECTURES for name in arch.triples)


def _known_systems() -> str:
    return ", ".join(dict.fromkeys("-".join((system.part, *system.environments)) for system in reversed(SYSTEMS)))

"""Intel's tile registers on a CPU that lacks them: tiles.c against NumPy, and packages that it runs. On a CPU that has
them the CPU itself is compared with the same."""

from __future__ import annotations

import platform
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import small_model as small
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from three_ways import host_target

from modelc import compile as compile_model
from modelc import load, tune, verify
from modelc.errors import TargetError, ToolchainError
from modelc.package import emulated, emulator, find_toolchain, lacking, read_package, run_emulated
from modelc.package.emulators import TILES
from modelc.runtime import ModelError
from modelc.scratch import TemporaryFolder
from modelc.target import Target, load_target

TRIPLE = "x86_64-linux-gnu"
AVX512 = load_target("x86-64-v4").features
pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64" or bool(lacking(AVX512)), reason="tile registers are of CPUs with AVX-512"
)

# The memory of a case: the configuration, then C, A and B, 16 rows of 64 bytes each. The result: C, the configuration
# as it is stored, and a tile that was set to zero.
DRIVER = r"""
#include <immintrin.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
typedef unsigned char tile[16][64];
int main(int argc, char **argv) {
  struct { unsigned char config[64]; tile c, a, b; } in;
  struct { tile c; unsigned char config[64]; tile zero; } out;
  int kind = atoi(argv[1]);
  if (argc > 2 && syscall(SYS_arch_prctl, 0x1023, 18)) return 3;
  while (fread(&in, sizeof in, 1, stdin) == 1) {
    memset(&out, 0xee, sizeof out);
    tile upside;  /* A's rows the other way round: a stride below zero */
    for (int m = 0; m < 16; m++) memcpy(upside[15 - m], in.a[m], 64);
    _tile_loadconfig(in.config);
    _tile_loadd(0, in.c, 64);
    _tile_loadd(1, upside[15], -64);
    _tile_stream_loadd(2, in.b, 64);
    _tile_loadd(3, in.c, 64);
    switch (kind) {
    case 0: _tile_dpbuud(0, 1, 2); break;
    case 1: _tile_dpbsud(0, 1, 2); break;
    case 2: _tile_dpbusd(0, 1, 2); break;
    case 3: _tile_dpbssd(0, 1, 2); break;
    case 4: _tile_dpbf16ps(0, 1, 2); break;
    case 5: __asm__ volatile(".byte 0xc4, 0xe2, 0x72, 0x5c, 0xc1"); break; /* tdpbf16ps 0, 1, 1 */
    case 6: _tile_loadd(5, in.c, 64); break;   /* not configured */
    default: __builtin_trap();                 /* no instruction of tiles */
    }
    _tile_zero(3);
    _tile_stored(0, out.c, 64);
    _tile_stored(3, out.zero, 64);
    _tile_storeconfig(out.config);
    _tile_release();
    if (fwrite(&out, sizeof out, 1, stdout) != 1) return 4;
  }
  return 0;
}
"""
KINDS = ("uud", "sud", "usd", "ssd", "bf16")


@cache
def _folder() -> TemporaryFolder:
    """With the driver, compiled once."""
    folder = TemporaryFolder("driver")
    (Path(folder.name) / "driver.c").write_text(DRIVER)
    flags = ["-O1", "-mamx-tile", "-mamx-int8", "-mamx-bf16", "driver.c", "-o", "driver"]
    find_toolchain(TRIPLE).compile(flags, Path(folder.name))
    return folder


def driver(kind: int, data: bytes) -> subprocess.CompletedProcess[bytes]:
    try:
        program = str(Path(_folder().name) / "driver")
    except ToolchainError as error:
        pytest.skip(f"this compiler knows no tiles: {error}")
    before = emulator(TRIPLE, [*AVX512, *TILES])
    assert bool(before) == bool(lacking(TILES))
    ask = [] if before else ["ask"]  # the system for permission
    return subprocess.run([*before, program, str(kind), *ask], input=data, capture_output=True, timeout=60)


@dataclass(frozen=True)
class Case:
    """A product of `rows` x `depth` (bytes of a row of A, four at a time) by `columns`."""

    rows: int
    depth: int
    columns: int
    c: np.ndarray
    a: np.ndarray
    b: np.ndarray

    def config(self) -> bytes:
        made = bytearray(64)
        made[0] = 1
        sizes = [(self.rows, 4 * self.columns), (self.rows, self.depth), (self.depth // 4, 4 * self.columns)]
        for tile, (rows, row_bytes) in enumerate([*sizes, sizes[0]]):
            made[16 + 2 * tile], made[48 + tile] = row_bytes, rows
        return bytes(made)

    def memory(self) -> bytes:
        return self.config() + b"".join(np.ascontiguousarray(x).tobytes() for x in (self.c, self.a, self.b))

    def wanted(self, kind: str) -> np.ndarray:
        """What C is after the product: zeros beyond its rows and columns, which are not stored."""
        steps = self.depth // 4
        found = np.full((16, 64), 0xEE, np.uint8)
        c, b = self.c[: self.rows, : 4 * self.columns], self.b[:steps, : 4 * self.columns]
        a = np.ascontiguousarray(self.a[: self.rows, : self.depth])
        if kind == "bf16":
            x = _floats(a).reshape(self.rows, steps, 2)
            y = _floats(np.ascontiguousarray(b)).reshape(steps, self.columns, 2)
            sums = np.zeros((self.rows, self.columns, 2), np.float32)
            for k in range(steps):  # the products are exact in float32: one rounding for each step
                sums += x[:, k, None, :] * y[None, k]
            result = np.ascontiguousarray(c).view(np.float32) + (sums[..., 0] + sums[..., 1])
        else:
            x = a.view(np.int8 if kind[0] == "s" else np.uint8).astype(np.int64)
            y = np.ascontiguousarray(b).view(np.int8 if kind[1] == "s" else np.uint8).astype(np.int64)
            y = y.reshape(steps, self.columns, 4).transpose(0, 2, 1).reshape(self.depth, self.columns)
            result = (np.ascontiguousarray(c).view(np.int32) + x @ y).astype(np.int32)  # wraps
        found[: self.rows, : 4 * self.columns] = np.ascontiguousarray(result).view(np.uint8)
        return found


def _floats(data: np.ndarray) -> np.ndarray:
    """bfloat16 as float32, subnormal numbers as zero."""
    bits = data.view(np.uint16)
    bits = np.where(bits & 0x7F80, bits, bits & 0x8000)
    return (bits.astype(np.uint32) << 16).view(np.float32)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rows, columns = draw(st.integers(1, 16)), draw(st.integers(1, 16))
    depth = 4 * draw(st.integers(1, 16))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return Case(rows, depth, columns, *rng.integers(0, 256, (3, 16, 64), np.uint8))


def of_floats(case: Case, subnormal: bool) -> Case:
    """The same shapes with ordinary numbers, of which some operands may be subnormal."""
    rng = np.random.default_rng(case.rows + 16 * case.columns)
    c = rng.standard_normal((16, 16)).astype(np.float32).view(np.uint8)
    operands = []
    for _ in range(2):
        bits = (rng.standard_normal((16, 32)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        if subnormal:
            bits = np.where(rng.random(bits.shape) < 0.2, bits & 0x807F, bits).astype(np.uint16)
        operands.append(bits.view(np.uint8))
    return replace(case, c=c, a=operands[0], b=operands[1])


@settings(max_examples=12)
@given(st.lists(cases(), min_size=1, max_size=12), st.booleans())
@pytest.mark.parametrize("kind", KINDS)
def test_products_of_tiles_are_those_of_numpy(kind: str, batch: list[Case], subnormal: bool) -> None:
    if kind == "bf16":
        batch = [of_floats(case, subnormal) for case in batch]
    done = driver(KINDS.index(kind), b"".join(case.memory() for case in batch))
    assert done.returncode == 0 and len(done.stdout) == len(batch) * (1024 + 64 + 1024)
    for case, part in zip(batch, np.frombuffer(done.stdout, np.uint8).reshape(len(batch), -1), strict=True):
        np.testing.assert_array_equal(part[:1024].reshape(16, 64), case.wanted(kind))
        assert part[1024:1088].tobytes() == case.config()
        zero = np.full((16, 64), 0xEE, np.uint8)
        zero[: case.rows, : 4 * case.columns] = 0
        np.testing.assert_array_equal(part[1088:].reshape(16, 64), zero)


WHOLE = Case(16, 64, 16, *np.zeros((3, 16, 64), np.uint8))


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (5, {}),
        (6, {}),
        (7, {}),
        (2, {0: 2}),  # an unknown palette
        (2, {3: 1}),  # what is reserved
        (2, {48: 17}),  # more rows than there are
        (2, {16: 60}),  # C has not the columns of B
        (2, {49: 8}),  # A has not the rows of C
        (2, {50: 15}),  # B has not the depth of A
    ],
)
def test_what_intels_cpu_refuses_ends_the_process(kind: int, change: Mapping[int, int]) -> None:
    memory = bytearray(WHOLE.memory())
    for at, value in change.items():
        memory[at] = value
    assert driver(kind, bytes(memory)).returncode in (-signal.SIGILL, -signal.SIGSEGV)  # a bad table faults
    assert driver(2, WHOLE.memory()).returncode == 0


# --- packages ---------------------------------------------------------------------------------------------------------


def server() -> Target:
    """This machine with tile registers."""
    features = (*load_target("native").features, *lacking(TILES))
    return replace(host_target(), name="server", features=features, intrinsics=None)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model of two products and its package, whose products tile registers compute in bfloat16."""
    folder = tmp_path_factory.mktemp("server")
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal((96, 96)).astype(np.float32) / 10 for name in ("w", "v")}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["y"]),
    ]
    model = small.save(folder / "two.onnx", nodes, {"x": [70, 96]}, {"y": [70, 96]}, weights)
    result = compile_model(model, target=server(), output=folder / "two.modelc", precision="bf16")
    assert result.report is not None and result.report.passed
    return model, folder / "two.modelc"


def test_a_package_for_tile_registers_is_verified_anywhere(compiled: tuple[Path, Path]) -> None:
    model, path = compiled
    package = read_package(path)
    assert [step.intrinsic for step in package.manifest.variants[0].steps] == ["amx-bf16"] * 2
    assert verify(path, model).passed and emulated(package) == bool(lacking(TILES))
    x = {"x": np.random.default_rng(1).standard_normal((70, 96)).astype(np.float32)}
    one, two = (run_emulated(path, x, threads=threads).outputs["y"] for threads in (1, 2))
    np.testing.assert_array_equal(one, two)
    assert one.any()


@pytest.mark.skipif(not lacking(TILES), reason="this CPU has tile registers")
def test_a_package_for_tile_registers_opens_under_the_emulator_alone(
    compiled: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, path = compiled
    with pytest.raises(ModelError, match="needs the CPU feature 'amx-bf16', which this machine lacks"):
        load(path)
    monkeypatch.setenv("MODELC_EMULATED", "amx-bf16-not amx amx-tile")
    with pytest.raises(ModelError, match="needs the CPU feature 'amx-bf16', which this machine lacks"):
        load(path)
    with pytest.raises(TargetError, match=r"lacks \(amx-bf16, amx-int8, amx-tile\): tuning measures"):
        tune(model, target=server(), output=path.with_name("tuned.modelc"), budget="5")


def test_what_no_emulator_executes_is_refused(compiled: tuple[Path, Path]) -> None:
    assert emulator(TRIPLE, AVX512) == ()
    assert emulator(TRIPLE, [*AVX512, *TILES, "avx512-of-the-future"]) == ()

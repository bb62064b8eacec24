"""The YAML of tensor intrinsics, read strictly (what they are: intrinsic.py).

A file of targets/intrinsics/, or a user's own, lists intrinsics:

    intrinsics:
      - name: avx512-vnni                    # what targets and candidates call it
        architecture: x86_64
        features: [avx512f, avx512vnni]      # LLVM's names: without them it is not used
        instruction: vpdpbusd                # what a disassembler shows
        operands:
          C: {dtype: int32, shape: [16], lies: vector}
          A: {dtype: uint8, shape: [4], lies: memory}
          B: {dtype: int8, shape: [16, 4], lies: vector}
        semantics: |
          block dot [i:16 | k:4] add
            C[i] += int32(A[k]) * int32(B[i, k])
        implementation: >-
          call("llvm.x86.avx512.vpdpbusd.512", int32x16, C, bitcast(int8x64, broadcast(bitcast(int32, A), 16)), B)
        roundings: 0                         # 0: exact. n: on the way to a result, n roundings to C's dtype
        throughput: 2.0                      # of them start per cycle
        latency: 4                           # cycles from an accumulator to the same accumulator
        temporaries: 1                       # vector registers it needs besides its vector operands

`semantics` adds to C; `implementation` gives the new C. An operand lies in one `vector` register (row-major), in
`memory` as elements that the caller loads wherever they are, or in a `tile` register, which the file describes once:

    tiles: {count, rows, row_bytes, permission, setup, table, release, zero, load, load_once, store}

where `zero`, `load` and `store` act on one `tile` (and the rows at `address`, `stride` bytes apart), `setup` takes the
address of a `table` with the shape of every tile, `load_once` (if there is such) is a `load` of
what nothing reads soon again, and `permission` is the x86 state component to ask the kernel for. All of that reaches
memory, so a user's file has the `tiles` of a shipped one, or none.

An intrinsic without `implementation` (and `instruction`, `roundings`, `throughput`, `latency`, `temporaries`) is for
passes over Blocks (space/passes/): its operands lie in memory, and nothing executes it natively.

An operand of whole numbers may say `within: [LEAST, LARGEST]`: for others than these the instruction saturates, and it
takes the place of what a Block clamps to them alone.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from modelc.errors import InvalidIR, TargetError
from modelc.ir.block import Block, Buffer
from modelc.ir.expr import DTYPES, Const, Expr, Op, Var, show, variables
from modelc.ir.text import TextError, parse_block
from modelc.ir.verify import verify_block
from modelc.target.intrinsic import Digit, Intrinsic, Operand, Table, Tiles
from modelc.target.intrinsic_code import ADDRESS, TILE, Call, Code, CodeError, Name, VectorType, parse_code, parse_type
from modelc.target.isa import ARCHITECTURES, Architecture
from modelc.target.permitted import TILE_MOVES, TILE_PRODUCTS, VECTORS, Permitted
from modelc.target.section import WORD, Section, file_beside, parse_yaml, read_text, targets_folder

PLACES = ("vector", "memory", "tile")
_MNEMONIC = re.compile(r"[a-z][a-z0-9._]{2,}")
_TEXT = re.compile(r"[\s\S]{1,4000}")
_IMPLEMENTED = ("instruction", "implementation", "roundings", "throughput", "latency", "temporaries")
_KEYS = (
    *("name", "architecture", "features", "instruction", "operands", "semantics", "implementation"),
    *("roundings", "throughput", "latency", "temporaries"),
)
_TILE_CODE = ("setup", "release", "zero", "load", "load_once", "store")
_MOST_ELEMENTS = 4096
_FILE = "a file of intrinsics"


@cache
def shipped_intrinsics() -> tuple[Intrinsic, ...]:
    """Every intrinsic that comes with modelc, in order of files."""
    folder = targets_folder() / "intrinsics"
    texts = {str(path): read_text(path, _FILE) for path in sorted(folder.glob("*.yaml"))}
    intrinsics = tuple(
        intrinsic for path, text in texts.items() for intrinsic in parse_intrinsics(text, path, shipped=True)
    )
    names = [intrinsic.name for intrinsic in intrinsics]
    assert len(set(names)) == len(names), "two shipped intrinsics have one name"
    return intrinsics


def read_intrinsics(path: Path) -> tuple[Intrinsic, ...]:
    """Reads a user's file of intrinsics."""
    return parse_intrinsics(read_text(path, _FILE), str(path))


def parse_intrinsics(text: str, source: str, file: str | None = None, shipped: bool = False) -> tuple[Intrinsic, ...]:
    """Reads the YAML of intrinsics. `source` names the file in errors. Only what is `shipped` says how tile registers
    are loaded and stored."""
    top = Section(source, "", parse_yaml(text, source))
    top.only_keys(("intrinsics", "tiles"), required=("intrinsics",))
    trees = top.sequence("intrinsics", "a list of intrinsics")
    if not 0 < len(trees) <= 100:
        raise top.wrong("intrinsics", trees, "between 1 and 100 intrinsics")
    intrinsics: list[Intrinsic] = []
    for place, tree in enumerate(trees):
        part = Section(source, f"intrinsics[{place}]", tree)
        intrinsic = _intrinsic(part, top.section("tiles") if "tiles" in top.tree else None, file)
        if intrinsic.name in (other.name for other in intrinsics):
            raise part.wrong("name", intrinsic.name, "a name that no other intrinsic has")
        intrinsics.append(intrinsic)
    if "tiles" in top.tree and not any(intrinsic.tiles for intrinsic in intrinsics):
        raise top.wrong("tiles", top.tree["tiles"], "no such key, as no operand lies in a tile")
    if not shipped and any(intrinsic.tiles not in _known_tiles(intrinsic.architecture) for intrinsic in intrinsics):
        expected = "word for word those of a shipped file (targets/intrinsics), as they say what reaches memory"
        raise top.wrong("tiles", top.tree["tiles"], expected)
    return tuple(intrinsics)


def named_intrinsics(top: Section, arch: Architecture, features: Sequence[str]) -> tuple[Intrinsic, ...]:
    """The intrinsics that a target file lists under `intrinsics`: shipped ones by name, others by the path of their
    file beside it."""
    shipped = {intrinsic.name: intrinsic for intrinsic in shipped_intrinsics()}
    intrinsics: list[Intrinsic] = []
    for place, name in enumerate(top.sequence("intrinsics", "a list of intrinsics' names")):
        key = f"intrinsics[{place}]"
        if not isinstance(name, str):
            raise top.wrong(key, name, "the name of an intrinsic, or the path of a .yaml file")
        if name.endswith(".yaml"):
            path = file_beside(top, key, name)
            listed = parse_intrinsics(read_text(path, _FILE), str(path), name)
        elif name in shipped:
            listed = (shipped[name],)
        else:
            mine = [intrinsic.name for intrinsic in shipped.values() if intrinsic.architecture == arch.name]
            close = difflib.get_close_matches(name, mine, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise top.wrong(key, name, f"one of {', '.join(mine)}, or the path of a .yaml file{hint}")
        for intrinsic in listed:
            if intrinsic.architecture != arch.name:
                raise top.wrong(
                    key, name, f"an intrinsic of {arch.name}: {intrinsic.name} is of {intrinsic.architecture}"
                )
            lacking = [feature for feature in intrinsic.features if feature not in features]
            if lacking:
                raise top.wrong(key, name, f"the feature {lacking[0]} among the target's, which {intrinsic.name} needs")
            if intrinsic.name in (other.name for other in intrinsics):
                raise top.wrong(key, name, f"each intrinsic once: {intrinsic.name} is there already")
            intrinsics.append(intrinsic)
    return tuple(intrinsics)


def _known_tiles(architecture: str) -> list[Tiles | None]:
    """None, and the tile registers that shipped files describe."""
    return [None, *(x.tiles for x in shipped_intrinsics() if x.architecture == architecture)]


# --- reading one ----------------------------------------------------------------------------------------------------


def _intrinsic(part: Section, tiles: Section | None, file: str | None) -> Intrinsic:
    described = isinstance(part.tree, dict) and not any(key in part.tree for key in _IMPLEMENTED)
    part.only_keys(_KEYS, required=[key for key in _KEYS if not described or key not in _IMPLEMENTED])
    arch = _architecture(part)
    features = listed_features(part, arch)
    shapes = _operands(part, tiles is not None)
    semantics = _semantics(part, shapes)
    operands = tuple(
        Operand(b.name, b.dtype, b.shape, lies, _digits(part, semantics, b), _within(part, b))
        for b, lies in shapes.values()
    )
    name = part.text("name", WORD, "a name of letters, digits and . _ + -")
    if described:
        for operand in operands:
            if operand.lies != "memory":
                raise part.wrong(f"operands.{operand.name}.lies", operand.lies, "memory, as it has no implementation")
        return Intrinsic(name, arch.name, features, "", operands, semantics, None, 0, 1.0, 1, 0, file=file)
    names = {o.name: TILE if o.lies == "tile" else o.type for o in operands}
    written = semantics.writes[0].buffer
    for operand in operands:
        _fits_register(part, operand, arch, features, tiles)
        if (operand.lies == "tile") is not (names[written] == TILE):
            raise part.wrong(
                f"operands.{operand.name}.lies", operand.lies, f"all operands in tiles, as {written}, or none"
            )
    if names[written] != TILE and shapes[written][1] != "vector":
        raise part.wrong(f"operands.{written}.lies", shapes[written][1], "vector, as the semantics write it")
    if names[written] == TILE:
        code = _code(part, "implementation", names, TILE_PRODUCTS, None)
    else:
        code = _code(part, "implementation", names, VECTORS[arch.name], names[written])
    return Intrinsic(
        name=name,
        architecture=arch.name,
        features=features,
        instruction=part.text("instruction", _MNEMONIC, "a mnemonic such as vpdpbusd"),
        operands=operands,
        semantics=semantics,
        implementation=code,
        roundings=part.integer("roundings", 0, 64),
        throughput=part.positive("throughput"),
        latency=part.integer("latency", 1, 1000),
        temporaries=part.integer("temporaries", 0, 16),
        tiles=_tiles(tiles) if any(o.lies == "tile" for o in operands) and tiles is not None else None,
        file=file,
    )


def _architecture(part: Section) -> Architecture:
    architectures = {arch.name: arch for arch in ARCHITECTURES}
    expected = f"one of {', '.join(architectures)}"
    name = part.text("architecture", WORD, expected)
    if name not in architectures:
        raise part.wrong("architecture", name, expected)
    return architectures[name]


def listed_features(part: Section, arch: Architecture) -> tuple[str, ...]:
    """The features of a target or an intrinsic, by LLVM's names."""
    names = part.sequence("features", f"a list of {arch.name} features")
    features = ", ".join(feature.llvm for feature in arch.features)
    for place, name in enumerate(names):
        if not isinstance(name, str) or arch.feature(name) is None:
            raise part.wrong(f"features[{place}]", name, f"a feature of {arch.name}: one of {features}")
        if name in names[:place]:
            raise part.wrong(f"features[{place}]", name, "each feature once")
    return tuple(names)


def _operands(part: Section, tiles: bool) -> dict[str, tuple[Buffer, str]]:
    trees = part.section("operands")
    if not isinstance(trees.tree, dict) or not trees.tree:
        raise part.wrong("operands", trees.tree, "a mapping of names to {dtype, shape, lies}")
    operands = {}
    for name in trees.tree:
        if not isinstance(name, str) or not name.isidentifier() or parse_type(name) or name in ("call", "inf", "nan"):
            raise part.wrong("operands", name, "names such as A, B and C")
        operand = trees.section(name)
        operand.only_keys(("dtype", "shape", "lies", "within"), required=("dtype", "shape", "lies"))
        dtype = operand.text("dtype", WORD, "a dtype such as int8")
        if dtype not in DTYPES or dtype == "bool":
            raise operand.wrong("dtype", dtype, f"one of {', '.join(d for d in DTYPES if d != 'bool')}")
        shape = operand.sequence("shape", "a list of extents")
        if not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in shape) or (
            prod(shape) > _MOST_ELEMENTS
        ):
            raise operand.wrong("shape", shape, f"positive whole numbers, at most {_MOST_ELEMENTS} elements in all")
        lies = operand.text("lies", WORD, f"one of {', '.join(PLACES)}")
        if lies not in PLACES:
            raise operand.wrong("lies", lies, f"one of {', '.join(PLACES)}")
        if lies == "tile" and not tiles:
            raise operand.wrong("lies", lies, "vector or memory, as the file describes no tiles")
        operands[name] = (Buffer(name, dtype, tuple(shape)), lies)
    return operands


def _within(part: Section, buffer: Buffer) -> tuple[int, int] | None:
    operand = part.section("operands").section(buffer.name)
    if "within" not in operand.tree:
        return None
    bounds, dtype = operand.sequence("within", "a list of the least and the largest number"), DTYPES[buffer.dtype]
    whole = all(isinstance(n, int) and not isinstance(n, bool) for n in bounds) and dtype.kind in "iu"
    if not whole or len(bounds) != 2 or not np.iinfo(dtype).min <= bounds[0] < bounds[1] <= np.iinfo(dtype).max:
        raise operand.wrong("within", list(bounds), f"the least and the largest whole number, of those of {dtype}")
    return int(bounds[0]), int(bounds[1])


def _fits_register(
    part: Section, operand: Operand, arch: Architecture, features: Sequence[str], tiles: Section | None
) -> None:
    key = f"operands.{operand.name}.shape"
    widest = arch.widest_vector(features)
    if operand.lies == "vector" and operand.type.bits > widest:
        raise part.wrong(key, list(operand.shape), f"at most the {widest} bits of a vector that the features give")
    if operand.lies == "tile" and tiles is not None:
        rows, row_bytes = tiles.tree.get("rows"), tiles.tree.get("row_bytes")
        size = prod(operand.shape[1:]) * DTYPES[operand.dtype].itemsize
        fits = isinstance(rows, int) and isinstance(row_bytes, int) and operand.shape[:1] <= (rows,)
        if len(operand.shape) < 2 or not fits or size > row_bytes:
            raise part.wrong(key, list(operand.shape), f"at most {rows} rows of {row_bytes} bytes")


def _semantics(part: Section, shapes: Mapping[str, tuple[Buffer, str]]) -> Block:
    text = part.text("semantics", _TEXT, "the text of a block")
    try:
        block = parse_block(text)
    except TextError as error:
        raise TargetError(f"{part.source}: {part.path}.semantics: {error}") from None
    expected = "a block that adds to one operand, without conditions"
    if not isinstance(block, Block) or block.aggregation != "add" or len(block.writes) != 1 or block.where:
        raise part.wrong("semantics", text, expected)
    points = prod(i.extent for i in block.iters)
    if not 0 < points <= _MOST_ELEMENTS * _MOST_ELEMENTS:
        raise part.wrong("semantics", text, f"1 to {_MOST_ELEMENTS * _MOST_ELEMENTS} points")
    try:
        for access in (*block.writes, *block.reads):
            if access.buffer not in shapes:
                raise InvalidIR(f"{access.buffer} is no operand; expected one of {', '.join(shapes)}")
        verify_block(block, {name: buffer for name, (buffer, _) in shapes.items()})
    except InvalidIR as error:
        raise TargetError(f"{part.source}: {part.path}.semantics: {error}") from None
    used = [access.buffer for access in (*block.writes, *block.reads)]
    for name in shapes:
        if used.count(name) != 1:
            raise part.wrong("semantics", text, f"one access to {name}, found {used.count(name)}")
    patterns: dict[frozenset[str], str] = {}
    for iterator in block.iters:
        chi = frozenset(x.buffer for x in (*block.writes, *block.reads) if iterator.name in variables(x))
        if other := patterns.get(chi):
            raise part.wrong("semantics", text, f"one iterator instead of {other} and {iterator.name}")
        patterns[chi] = iterator.name
    return block


def _digits(part: Section, semantics: Block, buffer: Buffer) -> tuple[Digit, ...]:
    access = next(x for x in (*semantics.writes, *semantics.reads) if x.buffer == buffer.name)
    digits = tuple(_digit(index, semantics.ranges) for index in access.indices)
    expected = "indices that are iterators or digits of them (k, k // 4, k % 4), each iterator whole"
    if None in digits:
        raise part.wrong("semantics", show(access), expected)
    whole = tuple(d for d in digits if d is not None)
    for name in {d.iterator for d in whole}:
        step = 1
        for digit in sorted((d for d in whole if d.iterator == name), key=lambda d: d.step):
            if digit.step != step:
                raise part.wrong("semantics", show(access), expected)
            step *= digit.extent
        if step != semantics.ranges[name]:
            raise part.wrong("semantics", show(access), expected)
    for place, (digit, extent) in enumerate(zip(whole, buffer.shape, strict=True)):
        if digit.extent != extent:
            raise part.wrong(f"operands.{buffer.name}.shape[{place}]", extent, f"{digit.extent}, as in {show(access)}")
    return whole


def _digit(index: Expr, ranges: Mapping[str, int]) -> Digit | None:
    """`k`, `k // a`, `k % b` and `k // a % b`."""
    modulus = None
    if isinstance(index, Op) and index.name == "mod" and isinstance(index.args[1], Const):
        modulus, index = int(index.args[1].value), index.args[0]
    step = 1
    if isinstance(index, Op) and index.name == "floordiv" and isinstance(index.args[1], Const):
        step, index = int(index.args[1].value), index.args[0]
    if not isinstance(index, Var) or step < 1 or (modulus is not None and modulus < 1) or ranges[index.name] % step:
        return None
    left = ranges[index.name] // step
    return Digit(index.name, step, left if modulus is None else min(modulus, left))


def _code(
    part: Section, key: str, names: Mapping[str, VectorType], permitted: Permitted, gives: VectorType | None
) -> Code:
    """What gives a vector; or nothing, and then it is one call on names."""
    text = part.text(key, _TEXT, "an expression")
    try:
        code = parse_code(text, names, permitted)
    except CodeError as error:
        raise TargetError(f"{part.source}: {part.path}.{key}: {error}") from None
    if code.type != gives:
        expected = "nothing: a call without a type" if gives is None else str(gives)
        raise part.wrong(key, text, f"code that gives {expected}, found {code.type or 'nothing'}")
    if gives is None and not (isinstance(code, Call) and all(isinstance(arg, Name) for arg in code.args)):
        raise part.wrong(key, text, f"one call with some of {', '.join(names)}")
    return code


def _tiles(part: Section) -> Tiles:
    keys = ("count", "rows", "row_bytes", "permission", "table", *_TILE_CODE)
    part.only_keys(keys, required=tuple(key for key in keys if key not in ("permission", "load_once")))
    table = part.section("table")
    names = ("bytes", "fixed", "rows", "row_bytes")
    table.only_keys(names, required=names)
    count, size = part.integer("count", 1, 64), table.integer("bytes", 1, 4096)
    fixed = table.tree["fixed"]
    if not isinstance(fixed, dict) or not all(
        isinstance(at, int) and isinstance(value, int) and 0 <= at < size and 0 <= value < 256
        for at, value in fixed.items()
    ):
        raise table.wrong("fixed", fixed, f"a mapping of offsets below {size} to bytes")
    fields: dict[str, tuple[int, int]] = {}
    for name in ("rows", "row_bytes"):
        field = table.section(name)
        field.only_keys(("at", "width"), required=("at", "width"))
        at, width = field.integer("at", 0, size - 1), field.integer("width", 1, 4)
        if at + width * count > size:
            raise field.wrong("at", at, f"room for {count} numbers of {width} bytes before byte {size}")
        fields[name] = (at, width)
    stride = VectorType("int64")
    operands: dict[str, dict[str, VectorType]] = {
        "setup": {"table": ADDRESS},
        "release": {},
        "zero": {"tile": TILE},
        "load": {"tile": TILE, "address": ADDRESS, "stride": stride},
        "load_once": {"tile": TILE, "address": ADDRESS, "stride": stride},
        "store": {"tile": TILE, "address": ADDRESS, "stride": stride},
    }
    code: dict[str, Any] = {
        k: _code(part, k, operands[k], TILE_MOVES, None) if k in part.tree else None for k in _TILE_CODE
    }
    return Tiles(
        count=count,
        rows=part.integer("rows", 1, 1024),
        row_bytes=part.integer("row_bytes", 1, 4096),
        permission=part.integer("permission", 0, 63) if "permission" in part.tree else None,
        table=Table(size, tuple(sorted(fixed.items())), *fields["rows"], *fields["row_bytes"]),
        **code,
    )


__all__ = [
    "Digit",
    "Intrinsic",
    "Operand",
    "Table",
    "Tiles",
    "named_intrinsics",
    "parse_intrinsics",
    "read_intrinsics",
    "shipped_intrinsics",
]

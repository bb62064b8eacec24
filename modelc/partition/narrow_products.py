"""Which contractions are worth multiplying in fewer bits, and which targets have an instruction for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from math import prod

from modelc.errors import TargetError
from modelc.ir.block import AnyBlock, Block, Task
from modelc.ir.expr import Const, Load, Op, Var, variables
from modelc.ir.program import is_contraction
from modelc.target import Intrinsic, Target
from modelc.target.intrinsics import shipped_intrinsics

NARROW, HALF, WIDE = "bfloat16", "float16", "float32"
DTYPES = {"bf16": NARROW, "auto": NARROW, "f16": HALF}  # that contractions multiply, by the precision that is asked for
LEAST_READERS, LEAST_PRODUCTS = 8, 1 << 15  # of two computed matrices, for a copy of each in fewer bits to pay: 64 of
# 16 x 32 by 32 x 16 take 0.99 of the time in float32, one of 32 x 64 by 64 x 32 0.93, of 256 x 256 by 256 x 256 0.54
LEAST_DEPTH = 4  # terms of a dot product that are worth rounding: fewer fill no tile
SUMS = {NARROW: WIDE, HALF: HALF}  # what products are added up in
MOST_TERMS = 256  # of a sum in float16
LEAST_TERMS = 32  # of a part: shorter ones are more to store and to add up than they save
SMALLEST, LARGEST = 2.0**-14, 65504.0  # of numbers in float16 that have all their digits


def multiplies(target: Target, dtype: str) -> bool:
    """Whether one of the target's intrinsics multiplies `dtype` and adds up as that asks for."""
    return any(_multiplies(intrinsic, dtype) for intrinsic in target.available_intrinsics)


def narrowing(precision: str, target: Target) -> str:
    """What contractions multiply; nothing where that is float32."""
    dtype = DTYPES.get(precision, "")
    return dtype if dtype and multiplies(target, dtype) else ""


def require(target: Target, precision: str | None) -> None:
    """Raises TargetError, naming the features that would do, if bf16 or f16 is asked for, which the target cannot
    multiply."""
    if precision not in ("bf16", "f16") or narrowing(precision, target):
        return
    dtype = DTYPES[precision]
    intrinsics = [i for i in shipped_intrinsics() if i.architecture == target.architecture.name]
    intrinsics = [i for i in intrinsics if _multiplies(i, dtype)]
    ways = dict.fromkeys(" and ".join(f for f in i.features if f not in target.features) for i in intrinsics)
    lacking = "lists none of the intrinsics for it" if "" in ways else f"lacks {', or '.join(ways)}"
    if not intrinsics:
        lacking = f"is of {target.architecture.name}, for which no intrinsic for it is known"
    raise TargetError(
        f"precision {precision}: the target {target.name} cannot multiply {dtype}: it {lacking}; "
        "compile with --precision f32, or for another target"
    )


def _multiplies(intrinsic: Intrinsic, dtype: str) -> bool:
    kinds = [o.dtype for o in intrinsic.operands if o.name != intrinsic.accumulator.name]
    return kinds == [dtype, dtype] and intrinsic.accumulator.dtype == SUMS[dtype]


# --- contractions -------------------------------------------------------------------------------------------------


def products(task: Task, dtype: str = NARROW) -> Iterator[tuple[Block, tuple[Load, Load]]]:
    """The Blocks of `task` that are worth multiplying in `dtype`, with their operands."""
    for block in task.blocks:
        operands = operands_of(task, block)
        if operands is not None and (_worth if dtype == NARROW else _worth_half)(task, block, *operands):
            yield block, operands  # type: ignore[misc]


def operands_of(task: Task, block: AnyBlock) -> tuple[Load, Load] | None:
    """The two float32 loads of which the Block adds up products, over iterators that index both."""
    if not isinstance(block, Block) or block.aggregation != "add" or not isinstance(block.body[0], Op):
        return None
    body, dtypes = block.body[0], task.dtypes
    if body.name != "mul" or dtypes[block.writes[0].buffer] != WIDE:
        return None
    a, b = body.args
    if not (isinstance(a, Load) and isinstance(b, Load) and dtypes[a.buffer] == dtypes[b.buffer] == WIDE):
        return None
    return (a, b) if any({i.name} <= variables(a) & variables(b) for i in block.reduction) else None


def _worth(task: Task, block: AnyBlock, a: Load, b: Load) -> bool:
    """Whether one operand is a constant, which is packed for the instructions that add several products at a time when
    compiling, or the Task reduces rows of products besides (attention), and packs what it multiplies again and again,
    or the operands are matrices large enough to be packed while running; each operand meets several elements of the
    other, or is a constant that is read once; and a dot product has terms enough in a row."""
    assert isinstance(block, Block)
    constants = {a.buffer, b.buffer} & task.constants
    attends = any(x.reduction and not is_contraction(x) for x in task.blocks if isinstance(x, Block))
    if not constants and not attends and not _large_matrices(block, a, b):
        return False
    if _depth(block, *((b, a) if a.buffer in task.constants else (a, b))) < LEAST_DEPTH:
        return False
    long = {i.name for i in block.spatial if i.extent > 1}
    reused = {x: bool(long & (variables(y) - variables(x))) for x, y in ((a, b), (b, a))}
    return any(reused.values()) and all(reused[x] or x.buffer in task.constants for x in (a, b))


def _large_matrices(block: Block, a: Load, b: Load) -> bool:
    """Whether the Block multiplies matrices, of which each element meets enough of the other's for a copy to pay."""
    if len(block.reduction) != 1 or not all(isinstance(i, Var | Const) for x in (a, b) for i in x.indices):
        return False
    meets = [prod(i.extent for i in block.spatial if i.name not in variables(x)) for x in (a, b)]
    return min(meets) >= LEAST_READERS and block.points() >= LEAST_PRODUCTS


def _worth_half(task: Task, block: AnyBlock, a: Load, b: Load) -> bool:
    """Whether one operand is a constant, the Block is the one reduction of its Task, and its sum is short enough for
    float16 or can be cut in parts that are."""
    assert isinstance(block, Block)
    if any(not isinstance(x, Block) or (x.reduction and x is not block) for x in task.blocks):
        return False
    writing = sum(block.writes[0].buffer in written_by(x) for x in task.blocks)
    if not {a.buffer, b.buffer} & task.constants or writing != 1:
        return False
    return can_be_cut(task, block) and parts_of(block) is not None


def _depth(block: Block, data: Load, constant: Load) -> int:
    """Terms of a dot product that can lie in a row: along one iterator, or along the channels of a window's taps."""
    common = [i for i in block.reduction if {i.name} <= variables(data) & variables(constant)]
    plain = [i.extent for i in common if Var(i.name) in data.indices]
    taps = [i.extent for i in common if Var(i.name) not in data.indices]
    return max(plain, default=1) * max(taps, default=1)


# --- sums in float16 ----------------------------------------------------------------------------------------------


def relative_error(terms: int) -> float:
    """About how much a sum of so many terms, in parts, is off by the roundings of float16."""
    return float(2.0**-11 * (min(terms, MOST_TERMS) / 6) ** 0.5)


def half_sum(task: Task) -> Block | None:
    """The Block of `task` that multiplies and adds up in float16."""
    dtypes = task.dtypes
    for block in task.blocks:
        if isinstance(block, Block) and block.aggregation == "add" and dtypes[block.writes[0].buffer] == HALF:
            body = block.body[0]
            if isinstance(body, Op) and body.name == "mul":
                return block
    return None


def parts_of(block: Block) -> Mapping[str, int] | None:
    """How many terms of each reduction iterator one part has, such that it has at most MOST_TERMS and there are as few
    parts as can be; None where they would be too short."""
    extents = {i.name: i.extent for i in block.reduction}
    sizes = [[n for n in range(1, extent + 1) if extent % n == 0] for extent in extents.values()]
    fitting = [inside for inside in product(*sizes) if prod(inside) <= MOST_TERMS]
    cuts = {
        inside: sum(1 < n < extent for n, extent in zip(inside, extents.values(), strict=True)) for inside in fitting
    }
    best = max(fitting, key=lambda inside: (prod(inside), -cuts[inside]))
    if prod(best) < min(LEAST_TERMS, prod(extents.values())):
        return None
    return dict(zip(extents, best, strict=True))


def can_be_cut(task: Task, block: Block) -> bool:
    """Whether what is before `block` is for it alone, and all else that reads what it writes comes after it."""
    place = task.blocks.index(block)
    before, after = task.blocks[:place], task.blocks[place + 1 :]
    made = {name for b in before for name in written_by(b)}
    read = {name for b in after for name in b.buffers_read}
    return made.isdisjoint(read) and made.isdisjoint(task.outputs) and len(block.writes) == 1


def written_by(block: AnyBlock) -> Iterator[str]:
    yield from (w.buffer for w in block.writes) if isinstance(block, Block) else block.outputs

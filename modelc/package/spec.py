"""What code generation hands over: the kernels, their order, every buffer's place, the parameters."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from modelc.errors import PackageError
from modelc.ir.expr import DTYPES, Size
from modelc.ir.generalise import instance
from modelc.ir.origin import Origin
from modelc.ir.sizes import Sizes, least, most, same, sized
from modelc.package.form import Form, prefix_of
from modelc.package.tensor import DTYPE_BYTES, TensorInfo
from modelc.runtime.library import FOUND, LENGTH

Space = Literal["arena", "params", "input", "output", "random", "slot", "size", "dim"]

ALIGNMENT = 64  # of the arena, of the parameters and of every section in them, in bytes

SIZE_BYTES = 8  # of an int64
RANDOM_BYTES = 16  # what random numbers are made of: the handle's seed and the number of the run
MOST_BYTES = 2**63 - 1  # of a tensor
MOST_CHECKED_RANK = 32  # MC_MOST_RANK in modelc_runtime.h
SLOTS = frozenset({"read", "written", "slot"})  # fields of states and of parts of control flow that number a slot


def aligned(size: int) -> int:
    """Bytes in whole cache lines."""
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class FixedInput:
    """An input of the model that is a constant of the package: its bytes, row-major, little-endian, in base64."""

    tensor: TensorInfo
    data: str

    @classmethod
    def of(cls, name: str, array: NDArray[Any]) -> FixedInput:
        plain = np.asarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
        tensor = TensorInfo(name, array.dtype.name, array.shape)
        return cls(tensor, base64.b64encode(plain.tobytes()).decode())

    @property
    def name(self) -> str:
        return self.tensor.name

    def array(self) -> NDArray[Any]:
        """Raises ValueError where the data does not fit dtype and shape."""
        kind = DTYPES[self.tensor.dtype]
        elements = np.frombuffer(base64.b64decode(self.data, validate=True), kind.newbyteorder("<"))
        return elements.reshape(self.tensor.shape).astype(kind)


@dataclass(frozen=True)
class Argument:
    """One pointer that a kernel takes: `offset` bytes into the arena, the parameters, input or output `index`, what
    random numbers are made of, the plan's size `index`, its free size `index` ("dim"), or where slot `index` points,
    which control flow sets; in a loop it moves by `stride` bytes with every iteration."""

    space: Space
    index: int = 0
    offset: int = 0
    stride: int = 0


@dataclass(frozen=True)
class RangeCheck:
    """What is asked of data before a step addresses memory by it: whole numbers (int32 or int64) of the value `value`,
    the first at `argument`, the others where `shape` and `strides` (in elements) say, lie in [low, high]. `column` is
    the one of the value's last dimension that they are, which shape and strides leave out; None: they are all.
    `operator` is who wants it."""

    argument: Argument
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    column: int | None
    low: int
    high: int
    value: str
    operator: str


@dataclass(frozen=True)
class Step:
    """One call of a kernel, `void symbol(T0 *a0, ..., uint8_t *scratch, int32_t begin, int32_t end)`.

    It runs iterations [begin, end) of its outermost loop, which has `extent`; the bits of the result do not depend on
    how the loop is cut. `scratch` is `scratch_bytes` of workspace that no other thread uses, 64-byte aligned. A
    `serial` step has too little work to share. `written` are the places among `arguments` of those that it writes; a
    package of an earlier version says none. What follows it says what the kernel is: the ONNX nodes it covers,
    operations and bytes of the whole step, the dtype it really computes in, the names of the intrinsics in it (none:
    plain vectors) and the instructions that these are, the layout of its result. `error_bound` is 0 but for minimal
    filtering: there an element is at most so far, times the largest input times the largest weight, from the exact sum.
    `checks` are made before it runs. `takes` are sizes of the run, numbers that the kernel takes after the pointers.
    """

    name: str
    symbol: str
    arguments: tuple[Argument, ...]
    extent: int = 1
    scratch_bytes: int = 0
    serial: bool = False
    written: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    flops: float = 0.0
    bytes: float = 0.0
    dtype: str = "float32"
    intrinsic: str = ""
    instruction: str = ""
    layout: str = ""
    error_bound: float = 0.0
    checks: tuple[RangeCheck, ...] = ()
    takes: tuple[str, ...] = ()

    @property
    def task(self) -> str:
        """The hash of the Task that its kernel, PREFIX_k_HASH or PREFIX_k_HASH_1, is of."""
        return self.symbol.rpartition("k_")[2].partition("_")[0]


@dataclass(frozen=True)
class Rolled:
    """Steps of a plan, `length` of them from `first` on, that run `count` times in this order. What an iteration hands
    to the next lies where the arguments of both say."""

    first: int
    length: int
    count: int

    @property
    def end(self) -> int:
        return self.first + self.length


@dataclass(frozen=True)
class Branch:
    """The ONNX node `name`: steps [first, middle) run where the bool at `condition` is true, else [middle, end). With a
    `refusal`, a run that comes to where there are no steps ends with it."""

    name: str
    first: int
    middle: int
    end: int
    condition: Argument
    refusal: str = ""


@dataclass(frozen=True)
class Carried:
    """What an iteration hands to the next, `bytes` each: it reads where slot `read` points and writes where `written`
    does. The first reads `start`; from then on `result` and `spare` are read and written by turns, and after the last
    it lies in `result`."""

    read: int
    written: int
    start: Argument
    result: Argument
    spare: Argument
    bytes: int


@dataclass(frozen=True)
class Moving:
    """What lies `bytes` further with every iteration, from `start` on: slot `slot` points to it."""

    slot: int
    start: Argument
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Repeat:
    """The ONNX node `name`: steps [first, end) run again and again, while the bool at `condition`, and after an
    iteration that at `go`, is true, at most as often as the int64 at `count` says and `limit` times (-1: no limit).
    What is absent does not limit it. `number` is where the int64 number of the iteration is written before each."""

    name: str
    first: int
    end: int
    limit: int
    count: Argument | None = None
    condition: Argument | None = None
    number: Argument
    go: Argument | None = None
    carried: tuple[Carried, ...]
    moving: tuple[Moving, ...]


Control = Branch | Repeat


def parts_of(control: Control) -> tuple[Control | Carried | Moving, ...]:
    """Control flow, and what its iterations carry and move."""
    return (control, *control.carried, *control.moving) if isinstance(control, Repeat) else (control,)


@dataclass(frozen=True)
class State:
    """An input of the model that the package's handle keeps: zeros, and after each run what the model's `output` was.
    It is read where slot `read` points and written where `written` does. Of a cache that grows both are the same slot,
    where there are `room` bytes: it is nothing, and after each run as much as the output was."""

    input: TensorInfo
    output: str
    read: int
    written: int = 0
    room: int = 0

    @property
    def grows(self) -> bool:
        return self.read == self.written

    @property
    def bytes(self) -> int:
        """Of the memory that a handle has for it."""
        return aligned(self.room) if self.grows else 2 * aligned(self.input.bytes)


@dataclass(frozen=True)
class Extent:
    """A size that depends on data: of output `output` along `axis`, where its shape is the most that there can be."""

    output: int
    axis: int


@dataclass(frozen=True)
class FreeSize:
    """A size that is free, from `least` to `most`. Where it comes from: `unit` times as much is what input `input` has
    along `axis`; it is the length of a cache (the input is LENGTH), that a run makes longer by `growth`; or a step of
    the run finds it (FOUND), and until then it is the most. Of the sizes those that `matter` most, the usual one first,
    as a user said."""

    name: str
    least: int
    most: int
    unit: int
    input: int
    axis: int
    matter: tuple[int, ...] = ()
    growth: int = 0

    @property
    def is_length(self) -> bool:
        return self.input == LENGTH

    @property
    def is_found(self) -> bool:
        return self.input == FOUND

    @property
    def usual(self) -> int:
        """What a run has where nobody says otherwise: of a size of which nothing is said a quarter of the most."""
        return self.matter[0] if self.matter else max(self.least, self.most // 4)

    @property
    def size(self) -> Size:
        return Size(self.name, self.least, self.most)


@dataclass(frozen=True)
class ArenaTensor:
    """Where a tensor lives in the arena while it lives."""

    name: str
    offset: int
    bytes: int


@dataclass(frozen=True)
class Plan:
    """A variant, the model for one set of input shapes: its steps in order. All variants of a package have the same
    inputs and outputs but for the shapes, and share the parameters. `rounded` are the outputs that are computed through
    values in bfloat16; `loops` are apart and in order. `control` is what a run decides about, each before what is
    within it; loops are innermost. `slots`: how many bytes lie where each points. `states` are
    inputs and outputs of the model that are none of the package's. `sizes` are the extents of outputs that a run
    says. `free` are sizes that a run has by its inputs: then extents, offsets and outermost loops depend on them, and
    bytes are the most."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    steps: tuple[Step, ...]
    arena_bytes: int = 0
    memory: tuple[ArenaTensor, ...] = ()
    rounded: tuple[str, ...] = ()
    loops: tuple[Rolled, ...] = ()
    control: tuple[Control, ...] = ()
    slots: tuple[int, ...] = ()
    states: tuple[State, ...] = ()
    sizes: tuple[Extent, ...] = ()
    free: tuple[FreeSize, ...] = ()

    @property
    def lengths(self) -> tuple[FreeSize, ...]:
        """The lengths of caches that grow."""
        return tuple(size for size in self.free if size.is_length)

    def at(self, run: Sizes) -> Plan:
        """The plan in a run of these sizes: one for the shapes of its inputs."""
        if not self.free:
            return self
        plan = instance(replace(self, inputs=(), outputs=(), states=(), free=()), run)
        return replace(
            plan,
            inputs=tuple(t.at(run) for t in self.inputs),
            outputs=tuple(t.at(run) for t in self.outputs),
            states=tuple(replace(s, input=s.input.at(run)) for s in self.states),
        )

    @property
    def calls(self) -> tuple[int, ...]:
        """How often each step is called in a run, where control flow comes to it once."""
        calls = [1] * len(self.steps)
        for loop in self.loops:
            calls[loop.first : loop.end] = [loop.count] * loop.length
        return tuple(calls)

    @property
    def roundings(self) -> int:
        """How many steps one after the other may round what an output is made of: those of a loop as often as it runs
        where nothing but the model, or the sizes of a run, say how often that is."""
        calls = [*self.calls]
        for control in self.control:
            if isinstance(control, Repeat) and (control.count, control.condition, control.go) == (None,) * 3:
                for step in range(control.first, control.end):
                    calls[step] *= max(1, control.limit)
        return sum(calls)

    @property
    def draws(self) -> bool:
        """Whether some step makes random numbers."""
        return any(argument.space == "random" for step in self.steps for argument in step.arguments)

    @property
    def filters(self) -> bool:
        """Whether some step is by a rule that rounds otherwise (minimal filtering, Strassen's products)."""
        return any(step.error_bound for step in self.steps)

    @property
    def scratch_bytes(self) -> int:
        return max((step.scratch_bytes for step in self.steps), default=0)


def distinct_kernels(variants: Iterable[Plan]) -> int:
    """How many kernels a package has: the code of a Task is one, however many phases and calls it has."""
    return len({step.task for plan in variants for step in plan.steps})


@dataclass(frozen=True)
class PackageTarget:
    """The machine that a package is for, and the CPU features (LLVM's names) without which it must not be opened."""

    name: str
    triple: str
    features: tuple[str, ...] = ()


@dataclass(frozen=True)
class PackageSpec:
    """Everything that a package is made of. `params` are arrays at 64-byte aligned offsets of params.bin, ascending
    and apart; `objects` are ELF objects by name; `choices` becomes choices.json; `versions` are of the tools used;
    `check_addresses`: steps have their checks; `constants` are inputs of the model that the package does not take;
    `bounds` are the most that values of the model can be which sizes are made of, where a user has said so; `origin`
    is what the model says of itself; `form` what the package is made as.
    """

    name: str
    target: PackageTarget
    variants: tuple[Plan, ...]
    objects: Mapping[str, bytes]
    params: tuple[tuple[int, NDArray[Any]], ...] = ()
    choices: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    flush_denormals: bool = False
    check_addresses: bool = True
    notes: tuple[str, ...] = ()
    constants: tuple[FixedInput, ...] = ()
    bounds: Mapping[str, int] = field(default_factory=dict)
    origin: Origin | None = None
    form: Form = field(default_factory=Form)

    def __post_init__(self) -> None:
        if not self.form.prefix:
            object.__setattr__(self, "form", replace(self.form, prefix=prefix_of(self.name)))

    @property
    def params_bytes(self) -> int:
        """The size of params.bin: up to the end of the last array, in whole cache lines."""
        end = max((offset + array.nbytes for offset, array in self.params), default=0)
        return aligned(end)

    def check(self) -> None:
        """Raises PackageError if the parts do not fit together: a mistake of code generation, not of a user."""
        _check_params(self)
        check_plans(self.variants, self.params_bytes, f"package '{self.name}'")


def check_plans(variants: tuple[Plan, ...], params_bytes: int, where: str) -> None:
    """Raises PackageError if the variants do not fit each other, or a step uses what is not there."""
    if not variants:
        raise PackageError(f"{where} has no variant")
    first = variants[0]
    for number, plan in enumerate(variants):
        for tensors, of_first in ((plan.inputs, first.inputs), (plan.outputs, first.outputs)):
            _check_tensors(tensors, f"variant {number} of {where}")
            if [(t.name, t.dtype) for t in tensors] != [(t.name, t.dtype) for t in of_first]:
                raise PackageError(f"variant {number} of {where} differs from variant 0 in more than shapes")
        check_control(plan, f"variant {number} of {where}")
        check_free(plan, f"variant {number} of {where}")
        ranks = [len(t.shape) for t in plan.outputs]
        if any(not (0 <= s.output < len(ranks) and 0 <= s.axis < ranks[s.output]) for s in plan.sizes):
            raise PackageError(f"variant {number} of {where} has sizes of outputs or axes that are not there")
        spaces = _spaces(plan, params_bytes)
        for place in (x for control in plan.control for part in parts_of(control) for x in vars(part).values()):
            if isinstance(place, Argument):
                _check_argument(place, 1, spaces, "control flow")
        end = 0
        for loop in plan.loops:
            if loop.first < end or loop.length < 1 or loop.count < 1 or loop.end > len(plan.steps):
                raise PackageError(
                    f"variant {number} of {where} has a loop over steps that are not there, or another's"
                )
            end = loop.end
        for step, calls in zip(plan.steps, plan.calls, strict=True):
            _check_step(step, calls, spaces)
    shapes = [tuple(t.shape for t in plan.inputs) for plan in variants]
    if len(set(shapes)) != len(shapes):
        raise PackageError(f"two variants of {where} have equal input shapes")


def _check_params(spec: PackageSpec) -> None:
    end = 0
    for offset, array in spec.params:
        if offset % ALIGNMENT or offset < end:
            raise PackageError(
                f"the parameters at offset {offset} are not {ALIGNMENT}-byte aligned, or overlap those before"
            )
        end = offset + array.nbytes


def _check_tensors(tensors: tuple[TensorInfo, ...], where: str) -> None:
    if len({t.name for t in tensors}) != len(tensors):
        raise PackageError(f"two inputs or two outputs of {where} have the same name")
    for tensor in tensors:
        if tensor.dtype not in DTYPE_BYTES or any(extent < 0 for extent in tensor.shape) or tensor.bytes > MOST_BYTES:
            raise PackageError(f"'{tensor.name}' of {where} has dtype {tensor.dtype} and shape {list(tensor.shape)}")
        if "\0" in tensor.name:
            raise PackageError(f"{tensor.name!r} of {where} has a null character in its name, where C's strings end")


def _spaces(plan: Plan, params_bytes: int) -> Mapping[str, tuple[int, ...]]:
    """The bytes of each buffer that arguments may lie in, by space."""
    return {
        "input": tuple(t.bytes for t in plan.inputs),
        "output": tuple(t.bytes for t in plan.outputs),
        "slot": plan.slots,
        "size": (SIZE_BYTES,) * len(plan.sizes),
        "dim": tuple(SIZE_BYTES * size.is_found for size in plan.free),
        "arena": (plan.arena_bytes,),
        "params": (params_bytes,),
        "random": (RANDOM_BYTES,),
    }


def _check_step(step: Step, calls: int, spaces: Mapping[str, tuple[int, ...]]) -> None:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", step.symbol) or step.symbol.startswith(("mc_", "modelc_", "step_")):
        raise PackageError(f"step '{step.name}' has the symbol '{step.symbol}', which cannot name a kernel")
    if not 0 <= least(step.extent) <= most(step.extent) < 2**31:
        raise PackageError(
            f"step '{step.name}' has an outermost loop of {step.extent} iterations; below 2^31 is possible"
        )
    for check in step.checks:
        if check.dtype not in ("int32", "int64") or len(check.shape) > MOST_CHECKED_RANK:
            raise PackageError(f"step '{step.name}' checks '{check.value}', {check.dtype} {list(check.shape)}")
    if any(most(cast(int, number)) < 0 for number in (step.flops, step.bytes)):
        raise PackageError(f"step '{step.name}' does less than nothing: {step.flops} operations, {step.bytes} bytes")
    for argument in (*step.arguments, *(check.argument for check in step.checks)):
        _check_argument(argument, calls, spaces, f"step '{step.name}'")


def _check_argument(argument: Argument, calls: int, spaces: Mapping[str, tuple[int, ...]], what: str) -> None:
    if argument.space not in spaces:
        raise PackageError(f"{what} has an argument in '{argument.space}'")
    sizes = spaces[argument.space]
    if not 0 <= argument.index < len(sizes):
        raise PackageError(f"{what} uses {argument.space} {argument.index} of {len(sizes)}")
    size, last = sizes[argument.index], argument.offset + (calls - 1) * argument.stride
    if not 0 <= min(least(argument.offset), least(last)) <= max(most(argument.offset), most(last)) <= size:
        raise PackageError(f"{what} uses offset {argument.offset} of {argument.space}, which has {size} bytes")


def check_free(plan: Plan, where: str) -> None:
    """Raises PackageError unless each free size is what an input has along an axis, and shapes are the most that the
    extents say."""
    names = [size.name for size in plan.free]
    if len(set(names)) != len(names):
        raise PackageError(f"{where} has two free sizes of the same name")
    for tensor in (*plan.inputs, *plan.outputs):
        extents = tensor.extents or tensor.shape
        if (
            len(extents) != len(tensor.shape)
            or tuple(map(most, extents)) != tensor.shape
            or min(map(least, extents), default=0) < 0
        ):
            raise PackageError(
                f"'{tensor.name}' of {where} has the shape {list(tensor.shape)}, and extents {list(extents)}, of which "
                "it is not the most"
            )
    for size in plan.lengths:
        if size.axis != -1 or not 0 <= size.least <= size.most or least(size.growth) < 0:
            raise PackageError(f"{where} has a cache of the length '{size.name}' that does not grow")
    found = [k for k, size in enumerate(plan.free) if size.is_found]
    for k in found:
        writes = [step for step in plan.steps for n in step.written if step.arguments[n] == Argument("dim", k)]
        if len(writes) != 1 or not 0 <= plan.free[k].least <= plan.free[k].most:
            raise PackageError(f"{where} has the free size '{plan.free[k].name}', which not one step finds")
    for size in (size for size in plan.free if size.input not in (LENGTH, FOUND)):
        there = 0 <= size.input < len(plan.inputs) and 0 <= size.axis < len(plan.inputs[size.input].extents)
        extent = plan.inputs[size.input].extents[size.axis] if there else 0
        if not there or size.least > size.most or not same(extent, size.unit * sized(size.size)):
            raise PackageError(f"{where} has the free size '{size.name}', which no input has along that axis")
        if any(not size.least <= n <= size.most for n in size.matter):
            raise PackageError(f"{where} has the free size '{size.name}', of which a size matters that it cannot be")
    for step in plan.steps:
        if not {*step.takes} <= {*names}:
            raise PackageError(
                f"step '{step.name}' takes {', '.join(step.takes)}, and free sizes are {', '.join(names)}"
            )
        for check in step.checks:
            if min(map(least, check.shape), default=0) < 0 or len(check.shape) != len(check.strides):
                raise PackageError(f"step '{step.name}' checks '{check.value}' {list(check.shape)}")


def check_control(plan: Plan, where: str) -> None:
    """Raises PackageError unless control flow is over steps that are there, and within each other, each before what is
    within it."""
    around = [(0, len(plan.steps))]
    spans = [(c.first, c.end, (c.middle,) if isinstance(c, Branch) else ()) for c in plan.control]
    for first, end, cuts in spans:
        while around and first >= around[-1][1]:
            around.pop()
        if not around or not around[-1][0] <= first < end <= around[-1][1]:
            raise PackageError(f"{where} has control flow over steps {first} to {end}, which reach outside it")
        cut = cuts[0] if cuts else end
        if not first <= cut <= end:
            raise PackageError(f"{where} has a branch of steps {first} to {end} that parts at {cut}")
        around += [part for part in ((cut, end), (first, cut)) if part[0] < part[1]]
    for control in plan.control:
        numbers = [least(part.bytes) for part in parts_of(control) if isinstance(part, Carried | Moving)]
        if min(numbers, default=0) < 0 or (isinstance(control, Repeat) and least(control.limit) < -1):
            raise PackageError(f"{where} has a loop over parts of fewer than no bytes, or of fewer than no iterations")
    for what, parts in (("states", plan.states), ("control flow", [x for c in plan.control for x in parts_of(c)])):
        slots = [n for part in parts for name, n in vars(part).items() if name in SLOTS]
        if any(not 0 <= slot < len(plan.slots) for slot in slots):
            raise PackageError(f"{where} has {what} over slots that are not there")

"""What code generation hands over: the kernels, their order, every buffer's place, the parameters."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from modelc.ir.expr import DTYPES, Size
from modelc.ir.generalise import instance
from modelc.ir.origin import Origin
from modelc.ir.sizes import Sizes
from modelc.package.form import Form, prefix_of
from modelc.package.tensor import TensorInfo
from modelc.runtime.library import FOUND, LENGTH

Space = Literal["arena", "params", "made", "input", "output", "random", "slot", "size", "dim"]

ALIGNMENT = 64  # of the arena, of the parameters and of every section in them, in bytes

SIZE_BYTES = 8  # of an int64
MADE_BYTES = 4  # of a float32
RANDOM_BYTES = 16  # what random numbers are made of: the handle's seed and the number of the run
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
    """One pointer that a kernel takes: `offset` bytes into the arena, the parameters, what is made of these when the
    package is opened, input or output `index`, what random numbers are made of, the plan's size `index`, its free size
    `index` ("dim"), or where slot `index` points, which control flow sets; in a loop it moves by `stride` bytes with
    every iteration."""

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
class SummedConstant:
    """A constant that the runtime makes when a package is opened: `outer` times `rows` rows of `inner` float32, at
    `offset` bytes of what is made. Each is a sum of `columns` rows, times numbers of matrix `matrix`; these rows are at
    `source` bytes of the parameters, or of what is `widened` before."""

    source: int
    offset: int
    outer: int
    rows: int
    columns: int
    inner: int
    matrix: int
    widened: bool = False

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return self.outer, self.rows, self.columns, self.inner

    @property
    def bytes(self) -> int:
        return MADE_BYTES * self.outer * self.rows * self.inner

    @property
    def source_bytes(self) -> int:
        return MADE_BYTES * self.outer * self.columns * self.inner


@dataclass(frozen=True)
class WidenedConstant:
    """A constant of float32 that the runtime makes when a package is opened, at `offset` bytes of what is made: numbers
    of `dtype` in an array of shape `extents`, which are stored at `source` bytes of the parameters, times factors in
    float32, which are stored at `factors`. The factor of an element is where `strides` say."""

    source: int
    factors: int
    offset: int
    dtype: str
    extents: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return MADE_BYTES * prod(self.extents)

    @property
    def source_bytes(self) -> int:
        return DTYPES[self.dtype].itemsize * prod(self.extents)

    @property
    def factor_bytes(self) -> int:
        """Up to the last factor."""
        return MADE_BYTES * (1 + sum((n - 1) * by for n, by in zip(self.extents, self.strides, strict=True)))


Made = SummedConstant | WidenedConstant


def made_bytes(made: Sequence[Made]) -> int:
    """The memory that constants take which are made when a package is opened."""
    return max((aligned(constant.offset + constant.bytes) for constant in made), default=0)


@dataclass(frozen=True)
class PackageTarget:
    """The machine that a package is for, and the CPU features (LLVM's names) without which it must not be opened."""

    name: str
    triple: str
    features: tuple[str, ...] = ()


@dataclass(frozen=True)
class PackageSpec:
    """Everything that a package is made of. `params` are arrays at 64-byte aligned offsets of params.bin, ascending and
    apart; `made` are constants that opening makes of them, sums by `matrices`; `objects` are ELF objects by name;
    `choices` becomes choices.json; `versions` are of the tools used; `check_addresses`: steps have their checks;
    `constants` are inputs of the model that the package does not take; `bounds` are the most that values of the model
    can be which sizes are made of, where a user has said so; `origin` is what the model says of itself; `form` what the
    package is made as; `file_bytes` are of the model's files.
    """

    name: str
    target: PackageTarget
    variants: tuple[Plan, ...]
    objects: Mapping[str, bytes]
    params: tuple[tuple[int, NDArray[Any]], ...] = ()
    made: tuple[Made, ...] = ()
    matrices: tuple[tuple[tuple[float, ...], ...], ...] = ()
    choices: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    flush_denormals: bool = False
    check_addresses: bool = True
    notes: tuple[str, ...] = ()
    constants: tuple[FixedInput, ...] = ()
    bounds: Mapping[str, int] = field(default_factory=dict)
    origin: Origin | None = None
    form: Form = field(default_factory=Form)
    file_bytes: int = 0

    def __post_init__(self) -> None:
        if not self.form.prefix:
            object.__setattr__(self, "form", replace(self.form, prefix=prefix_of(self.name)))

    @property
    def params_bytes(self) -> int:
        """The size of params.bin: up to the end of the last array, in whole cache lines."""
        end = max((offset + array.nbytes for offset, array in self.params), default=0)
        return aligned(end)

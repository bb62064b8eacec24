"""What code generation hands over: the kernels, their order, every buffer's place, the parameters."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from modelc.errors import PackageError
from modelc.ir.expr import DTYPES, NARROW

Space = Literal["arena", "params", "input", "output", "random"]

ALIGNMENT = 64  # of the arena, of the parameters and of every section in them, in bytes

RANDOM_BYTES = 16  # what random numbers are made of: the handle's seed and the number of the run
MOST_BYTES = 2**63 - 1  # of a tensor
MOST_CHECKED_RANK = 32  # MC_MOST_RANK in modelc_runtime.h

DTYPE_BYTES = {  # in the order of modelc_dtype in model.h
    "float32": 4,
    "float64": 8,
    "float16": 2,
    "bfloat16": 2,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "bool": 1,
    **dict.fromkeys(NARROW, 1),
}


@dataclass(frozen=True)
class TensorInfo:
    """An input or an output: row-major, without gaps."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return DTYPE_BYTES[self.dtype] * prod(self.shape)


@dataclass(frozen=True)
class FixedInput:
    """An input of the model that is a constant of the package: its bytes, row-major, little-endian, in base64."""

    tensor: TensorInfo
    data: str

    @classmethod
    def of(cls, name: str, array: NDArray[Any]) -> FixedInput:
        plain = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
        tensor = TensorInfo(name, array.dtype.name, array.shape)
        return cls(tensor, base64.b64encode(plain.tobytes()).decode())

    @property
    def name(self) -> str:
        return self.tensor.name

    def array(self) -> NDArray[Any]:
        """Raises ValueError where the data does not fit dtype and shape."""
        kind = DTYPES[self.tensor.dtype]
        found = np.frombuffer(base64.b64decode(self.data, validate=True), kind.newbyteorder("<"))
        return found.reshape(self.tensor.shape).astype(kind)

    def to_json(self) -> dict[str, Any]:
        tensor = {"name": self.tensor.name, "dtype": self.tensor.dtype, "shape": list(self.tensor.shape)}
        return {"tensor": tensor, "data": self.data}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FixedInput:
        tensor = data["tensor"]
        return cls(TensorInfo(tensor["name"], tensor["dtype"], tuple(tensor["shape"])), data["data"])


@dataclass(frozen=True)
class Argument:
    """One pointer that a kernel takes: `offset` bytes into the arena, the parameters, input or output `index`, or what
    random numbers are made of; in a loop it moves by `stride` bytes with every iteration."""

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
    `serial` step has too little work to share. What follows it says what the kernel is: the ONNX nodes it covers,
    operations and bytes of the whole step, the dtype it really computes in, the names of the intrinsics in it (none:
    plain vectors) and the instructions that these are, the layout of its result. `error_bound` is 0 but for minimal
    filtering: there an element is at most so far, times the largest input times the largest weight, from the exact sum.
    `checks` are made before it runs.
    """

    name: str
    symbol: str
    arguments: tuple[Argument, ...]
    extent: int = 1
    scratch_bytes: int = 0
    serial: bool = False
    nodes: tuple[str, ...] = ()
    flops: float = 0.0
    bytes: float = 0.0
    dtype: str = "float32"
    intrinsic: str = ""
    instruction: str = ""
    layout: str = ""
    error_bound: float = 0.0
    checks: tuple[RangeCheck, ...] = ()


@dataclass(frozen=True)
class Loop:
    """Steps of a plan, `length` of them from `first` on, that run `count` times in this order. What an iteration hands
    to the next lies where the arguments of both say."""

    first: int
    length: int
    count: int


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
    values in bfloat16; `loops` are apart and in order."""

    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    steps: tuple[Step, ...]
    arena_bytes: int = 0
    memory: tuple[ArenaTensor, ...] = ()
    rounded: tuple[str, ...] = ()
    loops: tuple[Loop, ...] = ()

    @property
    def calls(self) -> tuple[int, ...]:
        """How often each step is called in a run."""
        found = [1] * len(self.steps)
        for loop in self.loops:
            found[loop.first : loop.first + loop.length] = [loop.count] * loop.length
        return tuple(found)

    @property
    def draws(self) -> bool:
        """Whether some step makes random numbers."""
        return any(argument.space == "random" for step in self.steps for argument in step.arguments)

    @property
    def filters(self) -> bool:
        """Whether some step is minimal filtering, or by another rule that rounds otherwise."""
        return any(step.error_bound for step in self.steps)

    @property
    def scratch_bytes(self) -> int:
        return max((step.scratch_bytes for step in self.steps), default=0)


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
    `check_addresses`: steps have their checks; `constants` are inputs of the model that the package does not take.
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

    @property
    def params_bytes(self) -> int:
        """The size of params.bin: up to the end of the last array, in whole cache lines."""
        end = max((offset + array.nbytes for offset, array in self.params), default=0)
        return -(-end // ALIGNMENT) * ALIGNMENT

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
        end = 0
        for loop in plan.loops:
            if loop.first < end or loop.length < 1 or loop.count < 1 or loop.first + loop.length > len(plan.steps):
                raise PackageError(
                    f"variant {number} of {where} has a loop over steps that are not there, or another's"
                )
            end = loop.first + loop.length
        for step, calls in zip(plan.steps, plan.calls, strict=True):
            _check_step(step, calls, plan, params_bytes)
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


def _check_step(step: Step, calls: int, plan: Plan, params_bytes: int) -> None:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", step.symbol) or step.symbol.startswith(("mc_", "modelc_", "step_")):
        raise PackageError(f"step '{step.name}' has the symbol '{step.symbol}', which cannot name a kernel")
    if not 0 <= step.extent < 2**31:
        raise PackageError(
            f"step '{step.name}' has an outermost loop of {step.extent} iterations; below 2^31 is possible"
        )
    for check in step.checks:
        if check.dtype not in ("int32", "int64") or len(check.shape) > MOST_CHECKED_RANK:
            raise PackageError(f"step '{step.name}' checks '{check.value}', {check.dtype} {list(check.shape)}")
    for argument in (*step.arguments, *(check.argument for check in step.checks)):
        if argument.space not in get_args(Space):
            raise PackageError(f"step '{step.name}' has an argument in '{argument.space}'")
        tensors = {"input": plan.inputs, "output": plan.outputs}.get(argument.space)
        if tensors is not None and not 0 <= argument.index < len(tensors):
            raise PackageError(f"step '{step.name}' uses {argument.space} {argument.index} of {len(tensors)}")
        sizes = {"arena": plan.arena_bytes, "params": params_bytes, "random": RANDOM_BYTES}
        size = tensors[argument.index].bytes if tensors else sizes[argument.space]
        last = argument.offset + (calls - 1) * argument.stride
        if not 0 <= min(argument.offset, last) <= max(argument.offset, last) <= size:
            raise PackageError(
                f"step '{step.name}' uses offset {argument.offset} of {argument.space}, which has {size} bytes"
            )

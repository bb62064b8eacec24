"""The C text that joins kernels and runtime: one thunk a step, and the tables that modelc_runtime.h declares."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from math import prod
from typing import Any, cast

from modelc.errors import PackageError
from modelc.ir.in_c import in_c
from modelc.ir.sizes import is_sized, most
from modelc.package.header import exported_source
from modelc.package.spec import (
    Argument,
    Branch,
    Carried,
    Control,
    FreeSize,
    Moving,
    PackageSpec,
    Plan,
    RangeCheck,
    Rolled,
    Step,
    SummedConstant,
    aligned,
    made_bytes,
)
from modelc.package.tensor import DTYPE_BYTES, TensorInfo

DTYPE_CODES = {dtype: code for code, dtype in enumerate(DTYPE_BYTES, 1)}

POINTERS = {
    "arena": "frame->arena",
    "params": "(uint8_t *)(uintptr_t)frame->params",
    "made": "(uint8_t *)(uintptr_t)frame->made",
    "input": "(uint8_t *)(uintptr_t)frame->inputs[{index}]",
    "output": "(uint8_t *)frame->outputs[{index}]",
    "random": "(uint8_t *)(uintptr_t)frame->random",
    "slot": "frame->slots[{index}]",
    "size": "(uint8_t *)&frame->sizes[{index}]",
    "dim": "(uint8_t *)(uintptr_t)&frame->dims[{index}]",
}
SPACES = {space: f"MC_{space.upper()}" for space in POINTERS}


def plan_source(spec: PackageSpec, build_id: str, schema_version: int, params_sha256: str) -> str:
    """The text of model_plan.c."""
    variants = [_variant(number, plan) for number, plan in enumerate(spec.variants)]
    metadata: dict[str, Any] = {
        "name": spec.name,
        "build_id": build_id,
        "schema_version": schema_version,
        "target": {"name": spec.target.name, "triple": spec.target.triple, "features": list(spec.target.features)},
        "flush_denormals": spec.flush_denormals,
        "check_addresses": spec.check_addresses,
        "versions": dict(sorted(spec.versions.items())),
        "notes": list(spec.notes),
    }
    if spec.origin is not None and not spec.form.freestanding:  # where flash is short it is in the manifest alone
        metadata["origin"] = asdict(spec.origin)
    if any(plan.free for plan in spec.variants):
        metadata["any_size"] = True
    digest = ", ".join(f"0x{byte:02x}" for byte in bytes.fromhex(params_sha256))
    return f"""#include "modelc_runtime.h"

{_declarations(spec.variants)}
{"".join(variants)}{_parameters(spec)}{_made(spec)}
{_table("mc_variant", "variants", [_variant_row(*variant) for variant in enumerate(spec.variants)], end=())}
{_table("char *const", "features", map(_c_string, spec.target.features), ["0"])}

const mc_model mc_the_model = {{
    .build_id = {_c_string(build_id)},
    .metadata = {_c_string(json.dumps(metadata))},
    .features = features,
    .variants = variants,
    .variant_count = {len(spec.variants)},
    .schema_version = {schema_version},
    .flush_denormals = {int(spec.flush_denormals)},
    .arena_bytes = {max(plan.arena_bytes for plan in spec.variants)}u,
    .scratch_bytes = {max(plan.scratch_bytes for plan in spec.variants)}u,
    .params_bytes = {spec.params_bytes}u,
    .slot_count = {max(len(plan.slots) for plan in spec.variants)},
    .params_sha256 = {{{digest}}},
{"    .params = mc_parameters," * spec.form.embed_params}
    .made = made,
    .made_count = {len(spec.made)},
    .made_bytes = {made_bytes(spec.made)}u,
}};

{exported_source(spec.form)}"""


def _table(kind: str, name: str, rows: Iterable[str], end: Iterable[str] = ("{0}",)) -> str:
    """static const KIND NAME[] = {...}; by default ended by a row of zeros."""
    return f"static const {kind} {name}[] = {{\n    " + ",\n    ".join([*rows, *end]) + "};\n"


def _row(*cells: object) -> str:
    return f"{{{', '.join(map(str, cells))}}}"


def _numbers(name: str, numbers: Iterable[int]) -> str:
    return _table("int64_t", name, map(str, numbers), ["0"])


def _parameters(spec: PackageSpec) -> str:
    """Where parameters are that are in the library."""
    declared = "extern const uint8_t mc_parameters[]" if spec.params_bytes else "static const uint8_t mc_parameters[1]"
    return f"{declared};\n" if spec.form.embed_params else ""


def _made(spec: PackageSpec) -> str:
    """Constants that opening makes, and their matrices, or extents and strides."""
    matrices = (
        _table("double", f"matrix_{number}", (x.hex() for row in matrix for x in row), ["0"])
        for number, matrix in enumerate(spec.matrices)
    )
    tables, rows = [*matrices], list[str]()
    for number, made in enumerate(spec.made):
        fields: dict[str, object] = {"source": f"{made.source}u", "offset": f"{made.offset}u"}
        if isinstance(made, SummedConstant):
            fields |= {name: getattr(made, name) for name in ("outer", "inner", "rows", "columns")}
            fields |= {"widened": int(made.widened)}
            fields |= {"matrix": f"matrix_{made.matrix}"}
        else:
            extents, strides = f"made_extents_{number}", f"made_strides_{number}"
            tables += [_numbers(extents, made.extents), _numbers(strides, made.strides)]
            fields |= {"factors": f"{made.factors}u", "outer": prod(made.extents[:-1]), "inner": made.extents[-1]}
            fields |= {"dtype": DTYPE_CODES[made.dtype], "rank": len(made.extents)}
            fields |= {"extents": extents, "strides": strides}
        rows.append(_row(*(f".{name} = {value}" for name, value in fields.items())))
    return "".join(tables) + _table("mc_made", "made", rows)


def _declarations(plans: Iterable[Plan]) -> str:
    counts: dict[str, tuple[int, int]] = {}
    for step in (step for plan in plans for step in plan.steps):
        taken = len(step.arguments), len(step.takes)
        if counts.setdefault(step.symbol, taken) != taken:
            raise PackageError(f"steps call the kernel '{step.symbol}' with different numbers of arguments")
    return "".join(
        f"void {symbol}({'void *, ' * pointers}{'intptr_t, ' * numbers}uint8_t *, int32_t, int32_t);\n"
        for symbol, (pointers, numbers) in counts.items()
    )


def _variant(number: int, plan: Plan) -> str:
    names = Names(plan.free)
    thunks = "".join(_thunk(f"step_{number}_{i}", step, names) for i, step in enumerate(plan.steps))
    thunks += "".join(_checks(f"{number}_{i}", step.checks, names) for i, step in enumerate(plan.steps) if step.checks)
    thunks += "".join(_trips(f"trips_{number}_{i}", step.extent, names) for i, step in enumerate(plan.steps))
    thunks += _free_shapes(f"shape_{number}", plan, names)
    tables = _tensors(f"inputs_{number}", plan.inputs) + _tensors(f"outputs_{number}", plan.outputs)
    tables += control_tables(str(number), plan, names) + _table("mc_state", f"states_{number}", _states(plan))
    tables += _table("mc_extent", f"extents_{number}", (_row(size.output, size.axis) for size in plan.sizes))
    said = _Said(f"growth_{number}", names.within("dims"))
    sizes = [*_free_rows(plan.free, said)]
    tables += said.functions + _table("mc_size", f"sizes_{number}", sizes)
    rows = [_step_row(f"{number}_{i}", step) for i, step in enumerate(plan.steps)]
    return f"{thunks}\n{tables}{_table('mc_step', f'steps_{number}', rows)}\n"


class Names:
    """Numbers of a run in C: free sizes are `dims`, in their order."""

    def __init__(self, free: Sequence[FreeSize], dims: str = "frame->dims"):
        self.at = {size.name: f"{dims}[{k}]" for k, size in enumerate(free)}
        self.free = tuple(free)

    def within(self, dims: str) -> Names:
        """The same where the sizes are called otherwise."""
        return Names(self.free, dims)

    def __call__(self, number: int) -> str:
        """The number as an expression; a plain one as it is."""
        return in_c(number, self.at)


def _trips(name: str, extent: int, names: Names) -> str:
    """How long the outermost loop of a step is, where sizes say it."""
    if not is_sized(extent):
        return ""
    count = names.within("dims")(extent)
    return f"static int32_t {name}(const int64_t *dims) {{\n    return (int32_t){count};\n}}\n"


def _free_shapes(name: str, plan: Plan, names: Names) -> str:
    """static void shape_0(...): the shapes of inputs and outputs that sizes say."""
    if not plan.free:
        return ""
    here, cases = names.within("dims"), ""
    for output, tensors in enumerate((plan.inputs, plan.outputs)):
        for k, tensor in enumerate(tensors):
            stores = " ".join(f"shape[{axis}] = {here(n)};" for axis, n in enumerate(tensor.extents) if is_sized(n))
            if stores:
                cases += f"    if (output == {output} && index == {k}) {{ {stores} }}\n"
    parameters = "const int64_t *dims, int32_t output, int32_t index, int64_t *shape"
    unused = "".join(f"    (void){name};\n" for name in ("dims", "output", "index", "shape"))
    return f"static void {name}({parameters}) {{\n{unused}{cases}}}\n"


def _free_rows(free: Sequence[FreeSize], said: _Said) -> Iterator[str]:
    for size in free:
        limits = (f"INT64_C({n})" for n in (size.least, size.most, size.unit))
        yield _row(_c_string(size.name), *limits, size.input, size.axis, said.number(size.growth))


def _thunk(name: str, step: Step, names: Names) -> str:
    """static void step_0_3(...) { conv2d(frame->arena + 128, ..., scratch, begin, end); }"""
    arguments = "".join(f"{_pointer(argument, names)}, " for argument in step.arguments)
    arguments += "".join(f"(intptr_t){names.at[size]}, " for size in step.takes)
    return (
        f"static void {name}(const mc_frame *frame, uint8_t *scratch, int32_t begin, int32_t end) {{\n"
        f"    (void)frame;\n    {step.symbol}({arguments}scratch, begin, end);\n}}\n"
    )


def _pointer(argument: Argument, names: Names) -> str:
    offset = names(argument.offset) if is_sized(argument.offset) else f"{argument.offset}u"
    pointer = f"{POINTERS[argument.space].format(index=argument.index)} + {offset}"
    stride = names(argument.stride) if is_sized(argument.stride) else f"INT64_C({argument.stride})"
    return f"{pointer} + frame->iteration * {stride}" if is_sized(argument.stride) or argument.stride else pointer


def _checks(name: str, checks: tuple[RangeCheck, ...], names: Names) -> str:
    """static int check_0_3(...) { return mc_in_range(&ranges_0_3[0], frame->inputs[0], ...) && ...; }"""
    if any(map(is_sized, (n for c in checks for n in (*c.shape, *c.strides, c.low, c.high)))):
        return _checks_in_run(name, checks, names)
    extents, rows = "", []
    for i, check in enumerate(checks):
        shape, strides = f"range_shape_{name}_{i}", f"range_strides_{name}_{i}"
        extents += _numbers(shape, check.shape) + _numbers(strides, check.strides)
        texts, column = map(_c_string, (check.operator, check.value)), -1 if check.column is None else check.column
        limits = (f"INT64_C({check.low})", f"INT64_C({check.high})")
        rows.append(_row(*texts, shape, strides, DTYPE_CODES[check.dtype], len(check.shape), column, *limits))
    asked = (
        f"mc_in_range(&ranges_{name}[{i}], {_pointer(check.argument, names)}, sentence, size)"
        for i, check in enumerate(checks)
    )
    return (
        f"{extents}{_table('mc_range', f'ranges_{name}', rows, end=())}"
        f"static int check_{name}(const mc_frame *frame, char *sentence, size_t size) {{\n"
        f"    return {' && '.join(asked)};\n}}\n"
    )


def _checks_in_run(name: str, checks: tuple[RangeCheck, ...], names: Names) -> str:
    """The same where sizes say what lies where: the ranges are made when they are asked."""
    lines = []
    for i, check in enumerate(checks):
        for what, numbers in (("shape", check.shape), ("strides", check.strides)):
            lines.append(f"const int64_t {what}_{i}[] = {{{', '.join([*map(names, numbers), '0'])}}};")
        texts, column = map(_c_string, (check.operator, check.value)), -1 if check.column is None else check.column
        cells = (*texts, f"shape_{i}", f"strides_{i}", DTYPE_CODES[check.dtype], len(check.shape), column)
        lines.append(f"const mc_range range_{i} = {_row(*cells, names(check.low), names(check.high))};")
        pointer = _pointer(check.argument, names)
        lines.append(f"if (!mc_in_range(&range_{i}, {pointer}, sentence, size)) return 0;")
    body = "".join(f"    {line}\n" for line in (*lines, "return 1;"))
    return f"static int check_{name}(const mc_frame *frame, char *sentence, size_t size) {{\n{body}}}\n"


def _step_row(name: str, step: Step) -> str:
    check = f"check_{name}" if step.checks else "0"
    work = (repr(float(most(cast(int, number)))) for number in (step.flops, step.bytes))
    trips = f"trips_{name}" if is_sized(step.extent) else "0"
    return _row(f"step_{name}", check, _c_string(step.name), most(step.extent), int(step.serial), *work, trips)


def _tensors(name: str, tensors: tuple[TensorInfo, ...]) -> str:
    shapes = "".join(_numbers(f"{name}_{i}", tensor.shape) for i, tensor in enumerate(tensors))
    rows = (
        _row(_c_string(t.name), DTYPE_CODES[t.dtype], len(t.shape), f"{name}_{i}", f"{t.bytes}u")
        for i, t in enumerate(tensors)
    )
    return shapes + _table("modelc_tensor", name, rows)


def _states(plan: Plan) -> Iterator[str]:
    """Where each state lies in the half that a run reads, and in the half that it writes; a cache that grows, behind
    both."""
    offset, behind = 0, 2 * _half(plan)
    for state in plan.states:
        yield _row(state.read, state.written, f"{behind if state.grows else offset}u")
        if state.grows:
            behind += state.bytes
        else:
            offset += aligned(state.input.bytes)


def _half(plan: Plan) -> int:
    """The bytes of one half of the states."""
    return sum(aligned(state.input.bytes) for state in plan.states if not state.grows)


def control_tables(number: str, plan: Plan, names: Names) -> str:
    """What a run decides about, and loops, as rows of mc_control: each before what is within it."""
    said = _Said(f"said_{number}", names.within("dims"))
    controls: list[Control | Rolled] = [*plan.control, *plan.loops]
    controls.sort(key=lambda control: (control.first, -control.end))

    def first_row(after: int, step: int) -> int:
        """The first of the rows after one that is about steps from there on."""
        return next((k for k in range(after + 1, len(controls)) if controls[k].first >= step), len(controls))

    tables, rows = "", []
    for row, control in enumerate(controls):
        fields: dict[str, object] = {"first": control.first, "end": control.end}
        fields |= {"next": first_row(row, control.end)}
        if isinstance(control, Rolled):
            fields |= {"kind": "MC_STEADY", "limit": said.number(control.count)}
        elif isinstance(control, Branch):
            fields |= {"kind": "MC_BRANCH", "middle": control.middle, "cut": first_row(row, control.middle)}
            fields |= {"condition": said.address(control.condition)}
            fields |= {"refusal": _c_string(control.refusal) if control.refusal else 0}
        else:
            fields |= {"kind": "MC_REPEAT", "limit": said.number(control.limit)}
            fields |= {at: said.address(getattr(control, at)) for at in ("count", "condition", "number", "go")}
            carried, moving = f"carried_{number}_{row}", f"moving_{number}_{row}"
            fields |= {"carried": carried, "carried_count": len(control.carried)}
            fields |= {"moving": moving, "moving_count": len(control.moving)}
            tables += _table("mc_carried", carried, map(said.part, control.carried))
            tables += _table("mc_moving", moving, map(said.part, control.moving))
        rows.append(_row(*(f".{name} = {value}" for name, value in fields.items())))
    return said.functions + tables + _table("mc_control", f"control_{number}", rows)


@dataclass
class _Said:
    """Numbers in tables, as mc_number: plain, or by a function of the run's sizes, of which each is made once."""

    prefix: str
    names: Names
    made: dict[str, str] = field(default_factory=dict)

    def number(self, number: int) -> str:
        if not is_sized(number):
            return _row(f"INT64_C({number})", 0)
        return _row(0, self.made.setdefault(self.names(number), f"{self.prefix}_{len(self.made)}"))

    def address(self, argument: Argument | None) -> str:
        if argument is None:
            return "{0}"
        return _row(SPACES[argument.space], argument.index, self.number(argument.offset))

    def part(self, part: Carried | Moving) -> str:
        """mc_carried or mc_moving, whose members are in the order of the fields; all but the last are places."""
        *places, size = vars(part).values()
        return _row(*(self.address(x) if isinstance(x, Argument) else x for x in places), self.number(size))

    @property
    def functions(self) -> str:
        pairs = ((name, text) for text, name in self.made.items())
        return "".join(
            f"static int64_t {name}(const int64_t *dims) {{\n    return {text};\n}}\n" for name, text in pairs
        )


def _variant_row(number: int, plan: Plan) -> str:
    names = ("inputs", "outputs", "steps", "control", "states", "extents", "sizes")
    tables = (*(f"{name}_{number}" for name in names), f"shape_{number}" if plan.free else "0")
    controls = len(plan.control) + len(plan.loops)
    counts = (
        *map(len, (plan.inputs, plan.outputs, plan.steps)),
        controls,
        *map(len, (plan.states, plan.sizes, plan.free)),
    )
    caches = sum(state.bytes for state in plan.states if state.grows)
    return _row(*tables, *counts, f"{_half(plan)}u", f"{caches}u")


def _c_string(text: str) -> str:
    """A C literal of the text in UTF-8; what could be an escape or a trigraph is in octal."""
    plain = (chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in text.encode())
    return '"' + "".join(plain) + '"'

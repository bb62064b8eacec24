"""The C text that joins kernels and runtime: one thunk a step, and the tables that modelc_runtime.h declares."""

from __future__ import annotations

import json
from collections.abc import Iterable

from modelc.errors import PackageError
from modelc.package.header import exported_source
from modelc.package.spec import (
    ALIGNMENT,
    Argument,
    Branch,
    Control,
    PackageSpec,
    Plan,
    RangeCheck,
    Rolled,
    Step,
)
from modelc.package.tensor import DTYPE_BYTES, TensorInfo

DTYPE_CODES = {dtype: code for code, dtype in enumerate(DTYPE_BYTES, 1)}

POINTERS = {
    "arena": "frame->arena",
    "params": "(uint8_t *)(uintptr_t)frame->params",
    "input": "(uint8_t *)(uintptr_t)frame->inputs[{index}]",
    "output": "(uint8_t *)frame->outputs[{index}]",
    "random": "(uint8_t *)(uintptr_t)frame->random",
    "slot": "frame->slots[{index}]",
    "size": "(uint8_t *)&frame->sizes[{index}]",
}
SPACES = {space: f"MC_{space.upper()}" for space in POINTERS}


def plan_source(spec: PackageSpec, build_id: str, schema_version: int, params_sha256: str) -> str:
    """The text of model_plan.c."""
    variants = [_variant(number, plan) for number, plan in enumerate(spec.variants)]
    metadata = {
        "name": spec.name,
        "build_id": build_id,
        "schema_version": schema_version,
        "target": {"name": spec.target.name, "triple": spec.target.triple, "features": list(spec.target.features)},
        "flush_denormals": spec.flush_denormals,
        "check_addresses": spec.check_addresses,
        "versions": dict(sorted(spec.versions.items())),
        "notes": list(spec.notes),
    }
    digest = ", ".join(f"0x{byte:02x}" for byte in bytes.fromhex(params_sha256))
    return f"""#include "modelc_runtime.h"

{_declarations(spec.variants)}
{"".join(variants)}{_parameters(spec)}
static const mc_variant variants[] = {{
{"".join(_variant_row(number, plan) for number, plan in enumerate(spec.variants))}}};

{_padded_tables(spec)}
static const char *const features[] = {{{"".join(_c_string(f) + ", " for f in spec.target.features)}0}};

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
{_padded_fields(spec)}{"    .params = mc_parameters," * spec.form.embed_params}
}};

{exported_source(spec.form)}"""


def _parameters(spec: PackageSpec) -> str:
    """Where parameters are that are in the library."""
    if not spec.form.embed_params:
        return ""
    return (
        "extern const uint8_t mc_parameters[];\n" if spec.params_bytes else "static const uint8_t mc_parameters[1];\n"
    )


def _padded_tables(spec: PackageSpec) -> str:
    """Padded dimensions, what hangs on them, and what inputs are filled up with."""
    if (padding := spec.padding) is None:
        return ""
    sides = ((0, padding.inputs), (1, padding.outputs))
    rows = "".join(f"{{{side}, {a.tensor}, {a.axis}, {a.dim}}}, " for side, those in sides for a in those)
    bits = {fill.tensor: fill.bits for fill in padding.fills}
    inputs = spec.variants[0].inputs
    fills = "".join(f"{{{bits.get(k, 0)}u, {DTYPE_BYTES[t.dtype]}}}, " for k, t in enumerate(inputs))
    return (
        f"static const char *const dims[] = {{{', '.join(map(_c_string, padding.dims))}}};\n"
        f"static const mc_along along[] = {{{rows}}};\nstatic const mc_fill fills[] = {{{fills}{{0}}}};\n\n"
    )


def _padded_fields(spec: PackageSpec) -> str:
    if (padding := spec.padding) is None:
        return ""
    hanging = {a.tensor for a in padding.inputs}
    most = max(sum(_aligned(plan.inputs[k].bytes) for k in hanging) for plan in spec.variants)
    return (
        f"    .dims = dims,\n    .along = along,\n    .fills = fills,\n    .filled_bytes = {most}u,\n"
        f"    .dim_count = {len(padding.dims)},\n    .along_count = {len(padding.inputs) + len(padding.outputs)},\n"
    )


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _declarations(plans: Iterable[Plan]) -> str:
    counts: dict[str, int] = {}
    for step in (step for plan in plans for step in plan.steps):
        if counts.setdefault(step.symbol, len(step.arguments)) != len(step.arguments):
            raise PackageError(f"steps call the kernel '{step.symbol}' with different numbers of arguments")
    return "".join(f"void {symbol}({'void *, ' * n}uint8_t *, int32_t, int32_t);\n" for symbol, n in counts.items())


def _variant(number: int, plan: Plan) -> str:
    thunks = "".join(_thunk(f"step_{number}_{i}", step) for i, step in enumerate(plan.steps))
    thunks += "".join(_checks(f"{number}_{i}", step.checks) for i, step in enumerate(plan.steps) if step.checks)
    rows = "".join(_step_row(f"{number}_{i}", step) for i, step in enumerate(plan.steps))
    tables = _tensors(f"inputs_{number}", plan.inputs) + _tensors(f"outputs_{number}", plan.outputs)
    tables += control_tables(str(number), plan) + _states(str(number), plan) + _extents(str(number), plan)
    return f"{thunks}\n{tables}static const mc_step steps_{number}[] = {{\n{rows}    {{0}}}};\n\n"


def _thunk(name: str, step: Step) -> str:
    """static void step_0_3(...) { conv2d(frame->arena + 128, ..., scratch, begin, end); }"""
    arguments = "".join(f"{_pointer(argument)}, " for argument in step.arguments)
    return (
        f"static void {name}(const mc_frame *frame, uint8_t *scratch, int32_t begin, int32_t end) {{\n"
        f"    (void)frame;\n    {step.symbol}({arguments}scratch, begin, end);\n}}\n"
    )


def _pointer(argument: Argument) -> str:
    pointer = f"{POINTERS[argument.space].format(index=argument.index)} + {argument.offset}u"
    return f"{pointer} + frame->iteration * INT64_C({argument.stride})" if argument.stride else pointer


def _checks(name: str, checks: tuple[RangeCheck, ...]) -> str:
    """static int check_0_3(...) { return mc_in_range(&ranges_0_3[0], frame->inputs[0], ...) && ...; }"""
    extents = "".join(
        f"static const int64_t range_{kind}_{name}_{i}[] = {{{''.join(f'{n}, ' for n in getattr(check, kind))}0}};\n"
        for i, check in enumerate(checks)
        for kind in ("shape", "strides")
    )
    rows = "".join(
        f"    {{{_c_string(check.operator)}, {_c_string(check.value)}, "
        f"range_shape_{name}_{i}, range_strides_{name}_{i}, "
        f"{DTYPE_CODES[check.dtype]}, {len(check.shape)}, {-1 if check.column is None else check.column}, "
        f"INT64_C({check.low}), INT64_C({check.high})}},\n"
        for i, check in enumerate(checks)
    )
    asked = (
        f"mc_in_range(&ranges_{name}[{i}], {_pointer(check.argument)}, sentence, size)"
        for i, check in enumerate(checks)
    )
    return (
        f"{extents}static const mc_range ranges_{name}[] = {{\n{rows}}};\n"
        f"static int check_{name}(const mc_frame *frame, char *sentence, size_t size) {{\n"
        f"    return {' && '.join(asked)};\n}}\n"
    )


def _step_row(name: str, step: Step) -> str:
    check = f"check_{name}" if step.checks else "0"
    work = f"{float(step.flops)!r}, {float(step.bytes)!r}"
    return f"    {{step_{name}, {check}, {_c_string(step.name)}, {step.extent}, {int(step.serial)}, {work}}},\n"


def _tensors(name: str, tensors: tuple[TensorInfo, ...]) -> str:
    shapes = "".join(
        f"static const int64_t {name}_{i}[] = {{{''.join(f'{extent}, ' for extent in tensor.shape)}0}};\n"
        for i, tensor in enumerate(tensors)
    )
    rows = "".join(
        f"    {{{_c_string(t.name)}, {DTYPE_CODES[t.dtype]}, {len(t.shape)}, {name}_{i}, {t.bytes}u}},\n"
        for i, t in enumerate(tensors)
    )
    return f"{shapes}static const modelc_tensor {name}[] = {{\n{rows}    {{0}}}};\n"


def _states(number: str, plan: Plan) -> str:
    """Where each state lies in the half that a run reads, and in the half that it writes."""
    rows, offset = "", 0
    for state in plan.states:
        rows += f"{{{state.read}, {state.written}, {offset}u}}, "
        offset += _aligned(state.input.bytes)
    return f"static const mc_state states_{number}[] = {{{rows}{{0}}}};\n"


def _extents(number: str, plan: Plan) -> str:
    rows = "".join(f"{{{extent.output}, {extent.axis}}}, " for extent in plan.sizes)
    return f"static const mc_extent extents_{number}[] = {{{rows}{{0}}}};\n"


def _state_bytes(plan: Plan) -> int:
    return sum(_aligned(state.input.bytes) for state in plan.states)


def control_tables(number: str, plan: Plan) -> str:
    """What a run decides about, and loops, as rows of mc_control: each before what is within it."""
    every: list[Control | Rolled] = [*plan.control, *plan.loops]
    spans = [
        (control.first, control.first + control.length if isinstance(control, Rolled) else control.end)
        for control in every
    ]
    order = sorted(range(len(every)), key=lambda k: (spans[k][0], -spans[k][1], k))
    tables, rows = "", ""
    for row, k in enumerate(order):
        control, (first, end) = every[k], spans[k]
        following = [spans[j][0] for j in order[row + 1 :]]
        after = row + 1 + next((i for i, begin in enumerate(following) if begin >= end), len(following))
        if isinstance(control, Rolled):
            rows += (
                f"    {{.kind = MC_STEADY, .first = {first}, .end = {end}, .next = {after}, "
                f".limit = {control.count}}},\n"
            )
            continue
        if isinstance(control, Branch):
            cut = row + 1 + next((i for i, begin in enumerate(following) if begin >= control.middle), len(following))
            rows += (
                f"    {{.kind = MC_BRANCH, .first = {first}, .middle = {control.middle}, .end = {end}, .cut = {cut}, "
                f".next = {after}, .condition = {_address(control.condition)}, "
                f".refusal = {_c_string(control.refusal) if control.refusal else 0}}},\n"
            )
            continue
        carried = "".join(
            f"{{{c.read}, {c.written}, {_address(c.start)}, {_address(c.result)}, {_address(c.spare)}, {c.bytes}u}}, "
            for c in control.carried
        )
        moving = "".join(f"{{{m.slot}, {_address(m.start)}, {m.bytes}u}}, " for m in control.moving)
        tables += f"static const mc_carried carried_{number}_{row}[] = {{{carried}{{0}}}};\n"
        tables += f"static const mc_moving moving_{number}_{row}[] = {{{moving}{{0}}}};\n"
        rows += (
            f"    {{.kind = MC_REPEAT, .first = {first}, .end = {end}, .next = {after}, "
            f".limit = INT64_C({control.limit}), .count = {_address(control.count)}, "
            f".condition = {_address(control.condition)}, "
            f".number = {_address(control.number)}, .go = {_address(control.go)}, .carried = carried_{number}_{row}, "
            f".carried_count = {len(control.carried)}, .moving = moving_{number}_{row}, "
            f".moving_count = {len(control.moving)}}},\n"
        )
    return f"{tables}static const mc_control control_{number}[] = {{\n{rows}    {{0}}}};\n"


def _address(argument: Argument | None) -> str:
    return "{0}" if argument is None else f"{{{SPACES[argument.space]}, {argument.index}, {argument.offset}u}}"


def _variant_row(number: int, plan: Plan) -> str:
    counts = f"{len(plan.inputs)}, {len(plan.outputs)}, {len(plan.steps)}, {len(plan.control) + len(plan.loops)}"
    return (
        f"    {{inputs_{number}, outputs_{number}, steps_{number}, control_{number}, states_{number}, "
        f"extents_{number}, {counts}, {len(plan.states)}, {len(plan.sizes)}, {_state_bytes(plan)}u}},\n"
    )


def _c_string(text: str) -> str:
    """A C literal of the text in UTF-8; what could be an escape or a trigraph is in octal."""
    plain = (chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in text.encode())
    return '"' + "".join(plain) + '"'

"""modelc compile"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from modelc.cli.fixing import fixed, fixing_options, running, running_options
from modelc.cli.forms import form_options, limit_options
from modelc.cli.importing import import_quickly
from modelc.cli.output import (
    config_option,
    database_of,
    database_options,
    json_option,
    precision_option,
    print_json,
    say,
    show,
    size,
    target_option,
)
from modelc.cli.places import model_argument
from modelc.cli.progress_bar import Staged, bar
from modelc.cli.quantizing import calibration_of, quantizing_options, show_packing, show_recipe

if TYPE_CHECKING:
    from modelc.space.constants import Within
    from modelc.space.shared_packing import SharedPacking

NOTABLE = 1.1  # times the model's constants
MOST_ROWS = 4


@click.command("compile")
@model_argument("modelc compile MODEL.onnx -o PKG.modelc")
@target_option("The machine to compile for (default: native, this one)")
@click.option(
    "-o",
    "output",
    metavar="OUT.modelc",
    type=click.Path(path_type=Path),
    help="Default: MODEL.modelc here, MODEL.TARGET.modelc with --target.",
)
@fixing_options
@running_options
@config_option
@precision_option
@click.option("--threads", metavar="N", type=click.IntRange(1, 256), help="Kernels compiled at a time.")
@click.option("--stop-after", metavar="STAGE", help="Go no further than this stage, and write no package before it.")
@click.option("--dump-dir", metavar="DIR", type=click.Path(path_type=Path), help="Write the IR's text there.")
@click.option("--no-verify", is_flag=True, help="Do not compare with ONNX Runtime.")
@click.option("--keep-unverified", is_flag=True, help="Leave the package even if verification fails.")
@click.option(
    "--choices", metavar="FILE", type=click.Path(path_type=Path), help="Take what an earlier choices.json says."
)
@click.option("--no-bench", is_flag=True, envvar="MODELC_NO_BENCH", help="Do not time beside ONNX Runtime at the end.")
@click.option(
    "-v", "--verbose", is_flag=True, help="Say of each kernel why it has its precision, layout and algorithm."
)
@quantizing_options
@database_options
@click.option(
    "--run-threads",
    metavar="N",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    help="Take measurements of kernels on so many threads (tune's --threads).",
)
@form_options
@limit_options
@json_option
def compile_(
    model: Path,
    target: str | None,
    output: Path | None,
    shapes: tuple[str, ...],
    dims: tuple[str, ...],
    constants: tuple[str, ...],
    states: tuple[str, ...],
    pad_dims: tuple[str, ...],
    pad_values: tuple[str, ...],
    bounds: tuple[str, ...],
    config: str | None,
    precision: str | None,
    threads: int | None,
    stop_after: str | None,
    dump_dir: Path | None,
    no_verify: bool,
    keep_unverified: bool,
    choices: Path | None,
    calibrate: Path | None,
    metric: str | None,
    max_drop: str | None,
    weights: str | None,
    block: str | None,
    emit_onnx: Path | None,
    database: Path | None,
    no_database: bool,
    run_threads: int,
    no_bench: bool,
    verbose: bool,
    inputs: Path | None,
    prefix: str | None,
    emit: str,
    embed_params: bool,
    freestanding: bool,
    libc: str,
    cc: str,
    ar: str,
    max_params: str,
    max_arena: str,
    max_library: str,
    as_json: bool,
) -> int:
    """Compiles a model to a package, and compares the package with ONNX Runtime: its outputs, and for a second by turns
    its speed."""
    import_quickly("modelc.compile.command")
    from modelc.compile.command import compile_request
    from modelc.compile.request import CompileRequest
    from modelc.frontend.quantize.packing import Packing

    given = fixed(shapes, dims, constants) | running(states, pad_dims, pad_values, bounds, inputs, model)
    records = database_of(database, no_database)
    with bar() as view:
        request = CompileRequest(
            model,
            target,
            output,
            **given,
            config=config,
            precision=precision,
            threads=threads,
            verify=not no_verify,
            keep_unverified=keep_unverified,
            stop_after=stop_after,
            dump_dir=dump_dir,
            choices=choices,
            database=records,
            run_threads=run_threads,
            prefix=prefix,
            emit=tuple(kind.strip() for kind in emit.split(",") if kind.strip()),
            embed_params=embed_params,
            freestanding=freestanding,
            libc=libc,
            cc=cc,
            ar=ar,
            max_params=max_params,
            max_arena=max_arena,
            max_library=max_library,
            emit_onnx=emit_onnx,
            weights=weights,
            block=None if block is None else int(block),
            progress=Staged(view).follow,
        )
        calibration = calibration_of(calibrate, metric, max_drop)
        if calibration is None:
            result = compile_request(request)
        else:
            from modelc.quantize.command import compile_calibrated

            result = compile_calibrated(request, calibration)
        short = None
        if result.path is not None and not (no_bench or no_verify):
            from modelc.verify.bench import beside_ort

            view.stands(1000, 1000, "timing beside ONNX Runtime")
            short = beside_ort(result.path, model)
    summary = {**result.to_json(), "beside_ort": short}
    if as_json:
        print_json("compile", summary)
    elif result.path is None:
        say(f"stopped after {stop_after}")
    else:
        stages = ", ".join(f"{stage} {s:.1f}" for stage, s in result.seconds.items())
        say(f"{result.path} for {result.target}")
        rejected = f", {result.rejected} invalid schedules rejected" if result.rejected else ""
        say(f"  kernels       {result.kernels} distinct, {result.steps} steps{rejected}")
        if choices is not None:
            say(f"  choices       {result.chosen} tasks as chosen, {result.kernels - result.chosen} constructed")
        if result.database is not None:
            others = f"; {result.other_records} records of other conditions left alone" if result.other_records else ""
            constructed = result.kernels - result.measured
            say(
                f"  database      {result.measured} tasks as measured on {run_threads} thread(s), "
                f"{constructed} constructed{others} ({result.database})"
            )
        say(f"  arena         {size(result.arena_bytes)}")
        say(f"  parameters    {size(result.params_bytes)}{_sharing(result.shared_packing)}")
        for line in _growth(result.constants):
            say(f"                {line}")
        say(f"  library       {size(result.library_bytes)}")
        say(f"  compile time  {sum(result.seconds.values()):.1f} s ({stages})")
        if isinstance(result.recipe, Packing):
            show_packing(result.recipe)
        elif result.recipe is not None:
            show_recipe(result.recipe)
        say(f"  verification  {result.report.sentence() if result.report else 'none'}")
        if short is not None:
            say(
                f"  time          {short['modelc_ms']:.3f} ms, ONNX Runtime {short['ort_ms']:.3f} ms: "
                f"{short['ratio']:.2f} times as fast, one thread, a short look (modelc bench takes longer)"
            )
        for note in (*result.notes, *(result.report.notes if result.report else ())):
            say(f"  note          {note}")
        if verbose:
            _show_why(result.path, choices is not None, result.measured > 0)
    return 0 if result.report is None or result.report.passed else 1


def _show_why(path: Path, chosen: bool, measured: bool) -> None:
    from modelc.compile.explain import explained

    who = "as --choices says" if chosen else "as measured, or by estimate" if measured else "by estimate"
    rows = [(why.kernel, why.precision, why.layout, why.algorithm) for why in explained(path, who)]
    show(("kernel", "computes in", "stores", "algorithm"), rows)


def _growth(within: Within) -> list[str]:
    """Why parameters take more than the model's constants."""
    said = []
    if within.stored_bytes > NOTABLE * within.model_bytes or within.schedules:
        times = within.stored_bytes / within.model_bytes
        said.append(f"{times:.2f} times the model's {size(within.model_bytes)} as kernels read them")
    if within.schedules:
        tasks = f"{len(within.schedules)} task{'s' * (len(within.schedules) > 1)}"
        said.append(f"kept so by other schedules of {tasks} (at most {max(within.slower):.2%} slower by estimate)")
    for row in within.growth[:MOST_ROWS] if said else ():
        nodes = ", ".join(map(repr, row.nodes[:2])) + ", ..." * (len(row.nodes) > 2)
        said.append(f"{row.task} ({nodes}): {size(row.stored_bytes)} for {size(row.model_bytes)}, {row.why}")
    return said


def _sharing(packing: SharedPacking) -> str:
    """What kernels that read the same constants agreed on."""
    said = ""
    if packing.constants:
        said += f"; {packing.constants} constants in one form for all kernels, {size(packing.saved_bytes)} less"
        said += f" (at most {max(packing.slower):.2%} slower by estimate)"
    if packing.several_bytes:
        said += f"; {size(packing.several_bytes)} beside another form of the same, which other kernels are faster with"
    return said

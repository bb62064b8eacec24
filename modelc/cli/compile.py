"""modelc compile"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from modelc.cli.importing import import_quickly
from modelc.cli.options import asked, model_argument, request_options
from modelc.cli.output import json_option, print_json, say, shortened, show, size
from modelc.cli.progress_bar import Staged, bar
from modelc.compile.request import CompileRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from modelc.compile.trade_off import Row
    from modelc.frontend.quantize.packing import PackedLayer, Packing
    from modelc.frontend.quantize.recipe import Recipe
    from modelc.space.constants import Within
    from modelc.space.shared_packing import SharedPacking

NOTABLE = 1.1  # times the model's file
MOST_ROWS = 4
MOST_NAME = 48  # characters of a layer's name in the table


@click.command("compile")
@model_argument("modelc compile MODEL.onnx -o PKG.modelc")
@request_options(CompileRequest)
@click.option("--no-bench", is_flag=True, envvar="MODELC_NO_BENCH", help="Do not time beside ONNX Runtime at the end.")
@click.option(
    "-v", "--verbose", is_flag=True, help="Say of each kernel why it has its precision, layout and algorithm."
)
@json_option
def compile_(model: Path, no_bench: bool, verbose: bool, as_json: bool, **options: Any) -> int:
    """Compiles a model to a package, and compares the package with ONNX Runtime: its outputs, and for a second by turns
    its speed."""
    import_quickly("modelc.compile.command")
    from modelc.compile.command import compile_request
    from modelc.frontend.quantize.packing import Packing

    for name in ("metric", "max_drop", "trade_off") if options["calibrate"] is None else ():
        if options[name] not in (None, False):
            raise click.UsageError(
                f"--{name.replace('_', '-')} judges on samples: give --calibrate DATA.npz too; without samples the "
                "drop is not measured"
            )
    values = asked(options, model)
    with bar() as view:
        request = CompileRequest(model, **values, progress=Staged(view).follow)
        if not request.quantizes:
            result = compile_request(request)
        else:
            from modelc.quantize.command import compile_quantized

            result = compile_quantized(request)
        short = None
        if result.path is not None and request.verify and not no_bench:
            from modelc.verify.bench import beside_ort

            view.stands(1000, 1000, "timing beside ONNX Runtime")
            short = beside_ort(result.path, model)
    summary = {**result.to_json(), "beside_ort": short}
    if as_json:
        print_json("compile", summary)
    elif result.trade_off:
        _show_trade_off(result.trade_off)
    elif result.path is None:
        say(f"stopped after {request.stop_after}")
    else:
        stages = ", ".join(f"{stage} {s:.1f}" for stage, s in result.seconds.items())
        say(f"{result.path} for {result.target}")
        rejected = f", {result.rejected} invalid schedules rejected" if result.rejected else ""
        say(f"  kernels       {result.kernels} distinct, {result.steps} steps{rejected}")
        if request.choices is not None:
            say(f"  choices       {result.chosen} tasks as chosen, {result.kernels - result.chosen} constructed")
        if result.database is not None:
            others = f"; {result.other_records} records of other conditions left alone" if result.other_records else ""
            say(
                f"  database      {result.measured} tasks as measured on {request.run_threads} thread(s), "
                f"{result.constructed} constructed{others} ({result.database})"
            )
        if result.carried:
            say(f"  records       {result.carried} tasks as measured on a machine of the target's family")
        say(f"  arena         {size(result.arena_bytes)}")
        times = f", {result.params_bytes / result.file_bytes:.2f} times the model's file"
        say(f"  parameters    {size(result.params_bytes)}{times}{_sharing(result.shared_packing)}")
        if result.made_bytes:
            say(f"                {size(result.made_bytes)} are made of them when the package is opened")
        for line in _growth(result.constants, result.params_bytes > NOTABLE * result.file_bytes):
            say(f"                {line}")
        say(f"  library       {size(result.library_bytes)}")
        say(f"  compile time  {sum(result.seconds.values()):.1f} s ({stages})")
        if isinstance(result.recipe, Packing):
            _show_packing(result.recipe)
        elif result.recipe is not None:
            _show_recipe(result.recipe)
        say(f"  verification  {result.report.sentence() if result.report else 'none'}")
        if short is not None:
            say(
                f"  time          {short['modelc_ms']:.3f} ms, ONNX Runtime {short['ort_ms']:.3f} ms: "
                f"{short['ratio']:.2f} times as fast, one thread{_at(short)}, a short look (modelc bench takes longer)"
            )
        report = result.report
        for note in (*result.notes, *((*report.notes, *filter(None, [report.opening])) if report else ())):
            say(f"  note          {note}")
        if verbose:
            _show_why(result.path, request.choices is not None, result.measured + result.carried > 0)
    return 0 if result.report is None or result.report.passed else 1


def _show_why(path: Path, chosen: bool, measured: bool) -> None:
    from modelc.compile.explain import explained, passes_run

    for sentence in passes_run(path):
        say(f"  {sentence}")
    who = "as --choices says" if chosen else "as measured, or by estimate" if measured else "by estimate"
    rows = [(why.kernel, why.precision, why.layout, why.algorithm) for why in explained(path, who)]
    show(("kernel", "computes in", "stores", "algorithm"), rows)


def _at(short: dict[str, Any]) -> str:
    from modelc.package import sizes_sentence

    return f" at {sizes_sentence(short['sizes'])}" if "sizes" in short else ""


def _growth(within: Within, is_large: bool) -> list[str]:
    """Why parameters take more than the model's file."""
    said = []
    if within.schedules:
        tasks = f"{len(within.schedules)} task{'s' * (len(within.schedules) > 1)}"
        said.append(f"kept so by other schedules of {tasks} (at most {max(within.slower):.2%} slower by estimate)")
    for row in within.growth[:MOST_ROWS] if is_large else ():
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


def _show_packing(packing: Packing) -> None:
    """The table of the products and tables, what their weights are off by, and with samples what they write."""
    sampled = any(layer.output is not None for layer in packing.layers)
    rows = [
        (
            shortened(layer.name, MOST_NAME),
            _bits(layer),
            "by block" if layer.zeros else "",
            f"{layer.error:.2%}" if layer.bits else "",
            *((_share(layer.output), _share(layer.nearest)) if sampled else ()),
            layer.why,
        )
        for layer in packing.layers
    ]
    outputs = ("error of outputs", "if nearest") if sampled else ()
    show(("layer", "weights", "zero points", "error of weights", *outputs, "why"), rows)


def _bits(layer: PackedLayer) -> str:
    if not layer.bits:
        return "as they were"
    by = f"{layer.block}" if layer.block else "row" if layer.table else "column"
    return f"{layer.bits} bits by {by}"


def _share(error: float | None) -> str:
    return "" if error is None else f"{error:.2%}"


def _show_trade_off(rows: Sequence[Row]) -> None:
    """The table of what is gained and lost, and how a row of it is chosen."""
    titles = {"dynamic": "by row", "halves": "in float16", "tables": "tables"}
    shown = {name: title for name, title in titles.items() if any(vars(row)[name] for row in rows)}
    sizes = ("ms, estimated", "times as fast", "parameters, MB")
    cells = [
        (
            f"{row.layers} of {row.every}",
            *(str(vars(row)[name]) for name in shown),
            f"{1e3 * row.seconds:.3f}",
            f"{row.speed:.2f}",
            f"{row.params_bytes / 1e6:.2f}",
            f"{100 * row.drop:.3g} %",
            f"{100 * row.max_drop:.3g}%",
        )
        for row in rows
    ]
    show(("layers in bytes", *shown.values(), *sizes, "drop", "chosen by --max-drop"), cells)
    say("no package is written: compile again with --max-drop instead of --trade-off")


def _show_recipe(recipe: Recipe) -> None:
    """The table of the layers; without samples nothing is known of the network's error by each."""
    measured = any(layer.network for layer in recipe.layers)
    rows = [
        (
            shortened(layer.name, MOST_NAME),
            layer.dtype,
            layer.weights,
            f"{layer.alone:.3%}",
            *([f"{layer.network:.3%}"] if measured else []),
            f"{1e6 * layer.saved_seconds:.1f}",
            layer.why,
        )
        for layer in recipe.layers
    ]
    network = ["error in the network"] if measured else []
    show(("layer", "dtype", "weights", "error alone", *network, "saved µs, estimated", "why"), rows)

"""modelc inspect"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from modelc.cli.fixing import fixed, fixing_options, kept, kept_options
from modelc.cli.output import json_option, print_json, say, size


@click.command()
@click.argument("path", metavar="MODEL.onnx|PKG", type=click.Path(path_type=Path))
@fixing_options
@kept_options
@json_option
def inspect(
    path: Path,
    shapes: tuple[str, ...],
    dims: tuple[str, ...],
    constants: tuple[str, ...],
    states: tuple[str, ...],
    bounds: tuple[str, ...],
    as_json: bool,
) -> int:
    """Says what a model needs and whether it can be compiled, after what the flags fix, or what a package is and
    whether it is undamaged."""
    from modelc.compile.describe import inspect as inspect_path

    found = inspect_path(path, **fixed(shapes, dims, constants), **kept(states, bounds))
    if as_json:
        print_json(found)
    elif found["kind"] == "package":
        _print_package(found)
    else:
        _print_model(found)
    return 0


def _print_model(found: dict[str, Any]) -> None:
    say(f"model {found['name']}, {found['nodes']} nodes, {found['parameters']} parameters")
    for kind in ("inputs", "outputs"):
        for t in found[kind]:
            say(f"  {kind[:-1]} {t['name']}: {t['dtype']}{t['shape']}")
    say("  operators  " + ", ".join(f"{op} {count}" for op, count in found["operators"].items()))
    say(
        "  holds      " + (", ".join(f"{count} of {dtype}" for dtype, count in found["dtypes"].items()) or "no numbers")
    )
    if found["free"]:
        say(f"  free dimensions: add {' '.join(found['free'])}")
    for one in found["steering"]:
        node, op, what = one["places"][0]
        more = f" and {len(one['places']) - 1} more" * (len(one["places"]) > 1)
        steers = f"{what} of {op} {node!r}{more}"
        say(f"  {one['name']} steers {steers}: if it never changes, add --constant {shlex.quote(one['name'])}=VALUE")
    for one in found["sizes"]:
        say(
            f"  {one['value']} depends on data and is a size of what {one['op']} {one['node']!r} makes: where "
            f"compiling finds no bound of it, add --bound {shlex.quote(one['value'])}=N"
        )
    if kept := [one["flag"] for one in found["states"] if one["flag"]]:
        say(f"  what looks like a state: to keep it in the package, add {' '.join(kept)}")
    for one in found["states"]:
        if not one["flag"]:
            before, after = ([d or "?" for d in one[side]] for side in ("before", "after"))
            say(
                f"  {one['input']}{before} looks like a state, and becomes {one['output']}{after}: "
                "to be kept in the package it has to keep its shape, as a buffer with a position does"
            )
    for row in found["unsupported"]:
        say(f"  cannot compile {row['op']} (node {row['node']!r}): {row['reason']}")
    say("every operator is supported" if found["supported"] else f"{len(found['unsupported'])} nodes unsupported")


def _print_package(found: dict[str, Any]) -> None:
    target = found["target"]
    say(f"package {found['name']} for {target['name']} ({target['triple']})")
    say(f"  needs         {', '.join(target['features']) or 'nothing special'}")
    for k, variant in enumerate(found["variants"]):
        for kind in ("inputs", "outputs"):
            for t in variant[kind]:
                most = t.get("at_most", ())
                shape = ", ".join(f"at most {n}" if axis in most else f"{n}" for axis, n in enumerate(t["shape"]))
                say(f"  variant {k} {kind[:-1]} {t['name']}: {t['dtype']}[{shape}]")
    computes = ", ".join(f"{count} in {dtype}" for dtype, count in found["dtypes"].items())
    say(f"  kernels       {found['kernels']} distinct, {found['steps']} steps ({computes})")
    made = ", ".join(f"{count} of {name}" for name, count in found["intrinsics"].items())
    say(f"  intrinsics    {made or 'none: plain vectors'}")
    checked = f"checked before use, {found['checks']} of them" if found["check_addresses"] else "NOT checked"
    say(f"  addresses     from data are {checked}")
    say(f"  work          {found['gflops']:.3g} GFLOP, arena {size(found['arena_bytes'])}")
    say(f"  files         {', '.join(f'{name} {size(n)}' for name, n in found['files'].items())}")
    verification = found["verification"]
    say(f"  verification  {verification.get('sentence', verification) if verification else 'none'}")
    for one in found["states"]:
        say(f"  state {one['name']}: {one['dtype']}{one['shape']}, after a run {one['output']}")
    for one in found["constants"]:
        say(f"  constant      {one['name']}: {one['dtype']}{one['shape']} {one['value']}")
    for name, most in found["bounds"].items():
        say(f"  bound         {name}: at most {most}")
    for note in found["notes"]:
        say(f"  note          {note}")
    say("every file's checksum is right")

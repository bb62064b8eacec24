"""modelc inspect"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from modelc.cli.options import PATH, request_options
from modelc.cli.output import json_option, print_json, say, size
from modelc.compile.request import Request
from modelc.runtime.shown import range_text

SHOWN = 60  # characters of a text of metadata


@click.command()
@click.argument("path", metavar="MODEL.onnx|PKG", type=PATH)
@request_options(Request, "shapes", "dims", "constants", "states", "bounds")
@json_option
def inspect(path: Path, as_json: bool, **options: Any) -> int:
    """Says what a model needs and whether it can be compiled, after what the flags fix, or what a package is and
    whether it is undamaged."""
    from modelc.compile.describe import inspect as inspect_path

    description = inspect_path(path, **options)
    if as_json:
        print_json("inspect", description)
    elif description["kind"] == "package":
        _print_package(description)
    else:
        _print_model(description)
    return 0


def _print_model(model: dict[str, Any]) -> None:
    say(f"model {model['name']}, {model['nodes']} nodes, {model['parameters']} parameters")
    for kind in ("inputs", "outputs"):
        for t in model[kind]:
            say(f"  {kind[:-1]} {t['name']}: {t['dtype']}{t['shape']}")
    _print_origin(model["origin"])
    say("  operators  " + ", ".join(f"{op} {count}" for op, count in model["operators"].items()))
    say(
        "  holds      " + (", ".join(f"{count} of {dtype}" for dtype, count in model["dtypes"].items()) or "no numbers")
    )
    if model["free"]:
        say(
            f"  free dimensions: add {' '.join(model['free'])}, with a number of your own in place of 1 for "
            f"{', '.join(model['free_dimensions'])}"
        )
        if named := [flag for flag in model["free"] if flag.startswith("--dim ")]:
            name = named[-1].removeprefix("--dim ").rpartition("=")[0].strip("'")
            say(f"  or left open, in one package for any size: {shlex.join(['--dim', f'{name}=1..512'])}")
    for steered in model["steering"]:
        node, op, what = steered["places"][0]
        other_places = f" and {len(steered['places']) - 1} more" * (len(steered["places"]) > 1)
        steers = f"{what} of {op} {node!r}{other_places}"
        say(
            f"  {steered['name']} steers {steers}: if it never changes, add "
            f"--constant {shlex.quote(steered['name'])}=VALUE"
        )
    for unbounded in model["sizes"]:
        say(
            f"  {unbounded['value']} depends on data and is a size of what "
            f"{unbounded['op']} {unbounded['node']!r} makes: "
            f"where compiling finds no bound of it, add --bound {shlex.quote(unbounded['value'])}=N"
        )
    caches = model["caches"]
    if caches:
        exporter = f", as {caches['convention']} exports them" * bool(caches["convention"])
        say(f"  caches that grow{exporter}: to keep them in the package, add {' '.join(caches['flags'])}")
    if kept := [state["flag"] for state in model["states"] if state["flag"] and not (caches and state["appends"])]:
        say(f"  what looks like a state: to keep it in the package, add {' '.join(kept)}")
    for state in model["states"]:
        if not state["flag"]:
            before, after = ([d or "?" for d in state[side]] for side in ("before", "after"))
            say(
                f"  {state['input']}{before} looks like a state, and becomes {state['output']}{after}: "
                "to be kept in the package it has to keep its shape, as a buffer with a position does"
            )
    for row in model["unsupported"]:
        say(f"  cannot compile {row['op']} (node {row['node']!r}): {row['reason']}")
    say("every operator is supported" if model["supported"] else f"{len(model['unsupported'])} nodes unsupported")


def _print_origin(origin: dict[str, Any]) -> None:
    """What the model says of itself: its maker, and the beginning of each text."""
    producer = f"{origin['producer_name']} {origin['producer_version']}".strip()
    if producer:
        say(f"  made by       {producer}")
    for key, text in origin["metadata"].items():
        beginning = " ".join(text[:SHOWN].split()) + "..." * (len(text) > SHOWN)
        say(f"  metadata      {key}: {beginning}")


def _libraries(linked: dict[str, Any]) -> str:
    """What the code needs where it runs, and what it was made with."""
    made = f"; compiled by {linked['compiler']}"
    if linked["freestanding"]:
        return f"needs no C library; the program brings {', '.join(linked['calls']) or 'nothing'}{made}"
    libc = {"gnu": "glibc", "musl": "musl"}[linked["libc"]]
    oldest = f" {linked['libc_version']} or newer" * bool(linked["libc_version"])
    return f"{libc}{oldest}{' of' * bool(linked['needed'])} {', '.join(linked['needed'])}{made}"


def _print_package(package: dict[str, Any]) -> None:
    target = package["target"]
    say(f"package {package['name']} for {target['name']} ({target['triple']})")
    say(f"  needs         {', '.join(target['features']) or 'nothing special'}")
    for k, variant in enumerate(package["variants"]):
        for kind in ("inputs", "outputs"):
            for t in variant[kind]:
                most = t.get("at_most", ())
                extents = enumerate(t.get("extents", t["shape"]))
                shape = ", ".join(f"at most {n}" if axis in most else f"{n}" for axis, n in extents)
                say(f"  variant {k} {kind[:-1]} {t['name']}: {t['dtype']}[{shape}]")
    for one in package["sizes"]:
        numbers = range(one["least"], one["most"] + 1, one["step"])
        if one["found"]:
            say(f"  size          {one['name']}: {range_text(numbers)}, what a run finds")
            continue
        if one["length"]:
            say(f"  size          {one['name']}: {range_text(numbers)}, how long caches are before a run")
            continue
        matter = ", ".join(map(str, one["matter"])) or f"{one['usual']}, a quarter of the most, small and large ones"
        say(f"  size          {one['name']}: {range_text(numbers)}, by the inputs of each run; schedules for {matter}")
    computes = ", ".join(f"{count} in {dtype}" for dtype, count in package["dtypes"].items())
    say(f"  kernels       {package['kernels']} distinct, {package['steps']} steps ({computes})")
    uses = ", ".join(f"{count} of {name}" for name, count in package["intrinsics"].items())
    say(f"  intrinsics    {uses or 'none: plain vectors'}")
    checked = f"checked before use, {package['checks']} of them" if package["check_addresses"] else "NOT checked"
    say(f"  addresses     from data are {checked}")
    at = ", ".join(f"{one['name']}={one['usual']}" for one in package["sizes"])
    say(f"  work          {package['gflops']:.3g} GFLOP{f' at {at}' * bool(at)}, arena {size(package['arena_bytes'])}")
    m = package["memory"]
    ram = {"arena": m["arena"], "scratch of each thread": m["scratch"], "states": m["states"], "handle": m["handle"]}
    ram |= {"constants made of the parameters": m["made"]}
    flash = {name: m[name] for name in ("code", "constants", "tables")}
    for kind, parts in (("RAM  ", ram), ("flash", flash)):
        listed = ", ".join(f"{name} {size(n)}" for name, n in parts.items() if n)
        say(f"  {kind}         {size(m[kind.strip().lower()])}: {listed}")
    if package["file_bytes"]:
        times = package["params_bytes"] / package["file_bytes"]
        say(f"  parameters    {size(package['params_bytes'])}, {times:.2f} times the model's file")
    say(f"  libraries     {_libraries(package['linked'])}")
    say(f"  files         {', '.join(f'{name} {size(n)}' for name, n in package['files'].items())}")
    verification = package["verification"]
    say(f"  verification  {verification.get('sentence', verification) if verification else 'none'}")
    for state in package["states"]:
        shape = ", ".join(map(str, state.get("extents", state["shape"])))
        say(f"  state {state['name']}: {state['dtype']}[{shape}], after a run {state['output']}")
    for constant in package["constants"]:
        say(f"  constant      {constant['name']}: {constant['dtype']}{constant['shape']} {constant['value']}")
    if package["origin"] is not None:
        _print_origin(package["origin"])
    for name, most in package["bounds"].items():
        say(f"  bound         {name}: at most {most}")
    for note in package["notes"]:
        say(f"  note          {note}")
    say("every file's checksum is right")

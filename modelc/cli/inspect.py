"""modelc inspect"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from modelc.cli.output import json_option, out, print_json, size


@click.command()
@click.argument("path", metavar="MODEL.onnx|PKG", type=click.Path(path_type=Path))
@json_option
def inspect(path: Path, as_json: bool) -> int:
    """Says what a model needs and whether it can be compiled, or what a package is and whether it is undamaged."""
    from modelc.describe import inspect as inspect_path

    found = inspect_path(path)
    if as_json:
        print_json(found)
    elif found["kind"] == "package":
        _print_package(found)
    else:
        _print_model(found)
    return 0


def _print_model(found: dict[str, Any]) -> None:
    out.print(f"model {found['name']}, {found['nodes']} nodes, {found['parameters']} parameters", markup=False)
    for kind in ("inputs", "outputs"):
        for t in found[kind]:
            out.print(f"  {kind[:-1]} {t['name']}: {t['dtype']}{t['shape']}", markup=False)
    out.print("  " + ", ".join(f"{op} {count}" for op, count in found["operators"].items()), markup=False)
    for row in found["unsupported"]:
        out.print(f"  cannot compile {row['op']} (node {row['node']!r}): {row['reason']}", markup=False)
    out.print("every operator is supported" if found["supported"] else f"{len(found['unsupported'])} nodes unsupported")


def _print_package(found: dict[str, Any]) -> None:
    target = found["target"]
    out.print(f"package {found['name']} for {target['name']} ({target['triple']})", markup=False)
    out.print(f"  needs         {', '.join(target['features']) or 'nothing special'}", markup=False)
    for k, variant in enumerate(found["variants"]):
        for kind in ("inputs", "outputs"):
            for t in variant[kind]:
                out.print(f"  variant {k} {kind[:-1]} {t['name']}: {t['dtype']}{list(t['shape'])}", markup=False)
    computes = ", ".join(f"{count} in {dtype}" for dtype, count in found["dtypes"].items())
    out.print(f"  kernels       {found['kernels']} distinct, {found['steps']} steps ({computes})")
    made = ", ".join(f"{count} of {name}" for name, count in found["intrinsics"].items())
    out.print(f"  intrinsics    {made or 'none: plain vectors'}", markup=False)
    out.print(f"  work          {found['gflops']:.3g} GFLOP, arena {size(found['arena_bytes'])}")
    out.print(f"  files         {', '.join(f'{name} {size(n)}' for name, n in found['files'].items())}", markup=False)
    verification = found["verification"]
    out.print(f"  verification  {verification.get('sentence', verification) if verification else 'none'}", markup=False)
    for note in found["notes"]:
        out.print(f"  note          {note}", markup=False)
    out.print("every file's checksum is right")

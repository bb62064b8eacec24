"""What a model or a package is, without compiling or running anything."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from modelc.compile.fixed import Inputs
from modelc.compile.request import GivenShapes, Request
from modelc.errors import InputError, blaming
from modelc.frontend.load.given import ModelSource, model_file
from modelc.frontend.load.outline import read_outline
from modelc.frontend.onnx import unsupported
from modelc.frontend.steering.flags import Given, looked_at
from modelc.frontend.steering.specialise import fix_constants, free_flags, free_places
from modelc.frontend.steering.states import StateCandidate, caches_of, state_candidates, states_by_name
from modelc.frontend.steering.uses import Uses, check_named
from modelc.frontend.witness.surgery import summary


def inspect(
    path: ModelSource,
    shapes: GivenShapes | Sequence[GivenShapes] = (),
    dims: Mapping[str, int | Sequence[int]] | None = None,
    constants: Mapping[str, Given] | None = None,
    states: Mapping[str, str] | None = None,
    bounds: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Says what a model or a package is, without compiling or running anything.

    Args:
        path: A package, or a model: a path, the bytes of an ONNX file, or an onnx.ModelProto.
        shapes: What is fixed of a model's inputs, as of modelc.compile, before it is looked at.
        dims: Likewise.
        constants: Likewise.
        states: Inputs that are known to be states, and are not listed as what could be some.
        bounds: Sizes whose bounds are known.

    Returns:
        By the key `kind` what it is. Of a `package` its manifest in short, with every checksum compared. Of a `model`
        inputs, outputs, operators and dtypes; `free` the flags that fix free dimensions; `steering` and `states` the
        inputs that look like such; `caches` the flags that keep caches which grow; `sizes` what data decides;
        `unsupported` each node that cannot be compiled, with the reason.

    Raises:
        ModelError: The file is no ONNX model, or an argument names what it has not.
        PackageError: The package is damaged.
        InputError: A package is given, and something to be fixed.

    Example:
        >>> seen = modelc.inspect("net.onnx")
        >>> seen["supported"], len(seen["free"])
        (True, 3)
    """
    fixed = Request(shapes=shapes, dims=dims, constants=constants, states=states, bounds=bounds).fixed
    with model_file(path) as place:
        folder = os.path.isdir(place) or place.suffix == ".zip"
        with blaming(f"{'package' if folder else 'model'} {place}"):
            if not folder:
                return _model(place, fixed)
            if fixed != Inputs():
                raise InputError("the inputs of a package are fixed: flags that fix or bound them are for models")
            from modelc.package.describe import described  # a look at a model needs nothing of how packages are made

            return described(place)


def _state(one: StateCandidate) -> dict[str, Any]:
    return {**asdict(one), "appends": one.appends, "flag": None if one.grows and not one.appends else one.flag}


def _model(path: Path, fixed: Inputs) -> dict[str, Any]:
    model, bounds = read_outline(path), fixed.bounds
    dims = {name: numbers[0] for name, numbers in fixed.dims.items()}
    known, given = looked_at(model.graph, next(iter(fixed.shapes), {}), dims, fixed.constants)
    fix_constants(model, known)
    lacking = [
        dict(zip(("node", "op", "domain", "reason"), row, strict=True)) for row in unsupported(path, model, bounds)
    ]
    uses, states = Uses(model.graph, path.parent), states_by_name(model.graph, fixed.states)
    check_named(uses, states, bounds)
    candidates = [one for one in state_candidates(model.graph) if one.input not in states]
    caches = caches_of(model.graph, candidates)
    return {
        "kind": "model",
        **summary(model),
        "free": free_flags(given, "1"),
        "free_dimensions": free_places(given),
        "steering": [asdict(one) for one in uses.steering()],
        "sizes": [
            dict(zip(("value", "node", "op"), row, strict=True)) for row in uses.unbounded() if row[0] not in bounds
        ],
        "states": [_state(one) for one in candidates],
        "caches": None if caches is None else {"convention": caches.convention, "flags": [*caches.flags]},
        "supported": not lacking,
        "unsupported": lacking,
    }

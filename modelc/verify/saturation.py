"""Whether ONNX Runtime's products of bytes saturate on this CPU, and how far that takes the outputs of a model.

Where a CPU has no instruction that multiplies bytes and adds to 32 bits, ONNX Runtime adds pairs of products in 16 bits
(frontend/witness/unsigned.py). One product of the largest bytes shows whether it does so here. In a model, its outputs
are compared with those of the same optimised graph in which products are exact (the engine `ort-exact`): nothing else
differs, so what departs has saturated.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np

from modelc.frontend.witness.surgery import quantizes
from modelc.frontend.witness.unsigned import largest_product, multiplies_bytes
from modelc.package.spec import Plan
from modelc.scratch import TemporaryFolder
from modelc.verify.check import Arrays, as_numbers
from modelc.verify.compare import ROUNDOFF, UNITS, distance
from modelc.verify.engine import Engine, EngineError


@cache
def saturates() -> bool:
    """Whether ONNX Runtime's sum of products of the largest bytes is too small on this CPU."""
    with TemporaryFolder("product") as folder:
        feed, exact = largest_product(path := Path(folder) / "product.onnx")
        with Engine("ort", path, timed=False) as engine:
            (product,) = engine.run(feed).values()
    return not np.array_equal(product, exact)


def saturation(model: Path, feed: Arrays, plan: Plan, made: Arrays, exact: Arrays | None = None) -> str:
    """What to say where ONNX Runtime's products saturate in a run of the `model` on `feed`, of which a package made
    `made`: how far both are from exact sums, in relative RMS; nothing where they do not. `exact` are the model's
    outputs without optimisations and by exact products, where these are known."""
    if not (multiplies_bytes(model) or quantizes(model)) or not saturates():
        return ""
    try:
        theirs, unsaturated = _run("ort", model, feed), _run("ort-exact", model, feed)
        exact = _run("ort-plain", model, feed) if exact is None else exact
    except EngineError as error:
        return f"how far ONNX Runtime's products of bytes saturate is not known: {error}"
    dtypes = {tensor.name: tensor.dtype for tensor in plan.outputs}
    if _apart(theirs, unsaturated, dtypes) <= UNITS * ROUNDOFF["float32"]:
        return ""
    return (
        f"ONNX Runtime's products of bytes saturate on this CPU: its outputs are off by "
        f"{_apart(theirs, exact, dtypes):.2g}, the package's by {_apart(made, exact, dtypes):.2g}, from exact sums "
        "(relative RMS)"
    )


def _run(engine: str, model: Path, feed: Arrays) -> Arrays:
    with Engine(engine, model, timed=False) as opened:
        return opened.run(feed)


def _apart(outputs: Arrays, reference: Arrays, dtypes: Mapping[str, str]) -> float:
    """The largest relative RMS difference of an output."""
    pairs = ((as_numbers(outputs[name], dtype), as_numbers(reference[name], dtype)) for name, dtype in dtypes.items())
    return max((distance(ours, theirs, 0, 0).rms_rel for ours, theirs in pairs), default=0.0)

"""One model three ways on the same inputs: as a compiled package, by the interpreter of Blocks, by ONNX Runtime.

ONNX Runtime runs in a process of its own, as there are valid models that end it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from forked import Case, Wrong, run_case

from modelc import compile
from modelc.frontend.onnx import import_model
from modelc.frontend.witness.surgery import quantizes
from modelc.ir.expr import DTYPES
from modelc.ir.graph import actual
from modelc.ops import evaluate_graph
from modelc.package import find_toolchain, runtime_objects
from modelc.runtime import load
from modelc.target import Target, load_target

Arrays = Mapping[str, np.ndarray]
RTOL, ATOL = 1e-3, 1e-5
HALF = {"float16": 4e-3, "bfloat16": 3e-2}  # relative tolerance for what is rounded to so few bits
STEP = {"float16": 1e-3, "bfloat16": 8e-3}  # one rounding, relative to the number that is rounded


@cache
def native() -> Target:
    """This machine, probed once for all; who forks afterwards need not compile the runtime either."""
    target = load_target("native")
    runtime_objects(find_toolchain(target.triple))
    return target


def shapes_of(feeds: Arrays) -> list[dict[str, tuple[int, ...]]]:
    """The one set of shapes that `compile` is to fix."""
    return [{name: x.shape for name, x in feeds.items() if isinstance(x, np.ndarray)}] if feeds else []


def run_packaged(path: Path, feeds: Arrays, folder: Path, verify: bool = False) -> dict[str, np.ndarray]:
    """What the package in `folder`, compiled from the model, makes of `feeds`. Raises ModelcError if it is refused."""
    package = folder / "model.modelc"
    compile(path, native(), package, shapes=shapes_of(feeds), threads=1, verify=verify, database=False)
    with load(package) as model:
        found = model.run(feeds)
        return {t.name: as_declared(found[t.name], t.dtype) for t in model.outputs}


def as_declared(array: np.ndarray, dtype: str) -> np.ndarray:
    """The loader gives the bits of what NumPy has no type for."""
    return array if array.dtype == DTYPES[dtype] else array.view(DTYPES[dtype])


def run_interpreted(path: Path, feeds: Arrays) -> dict[str, np.ndarray]:
    """What the operator library says of the imported model."""
    shapes = shapes_of(feeds)
    return actual(evaluate_graph(import_model(path, shapes[0] if shapes else {}), feeds))


def run_reference(path: Path, feeds: Arrays, folder: Path, plain: bool = False) -> tuple[str, dict[str, np.ndarray]]:
    """What ONNX Runtime gives, or why it gives nothing; `plain`: without its optimisations."""
    file = folder / "reference.npz"
    outcome = run_case(Case("reference", partial(_reference, path, feeds, file, plain)))
    if outcome.kind != "done":
        return f"{outcome.kind}: {outcome.said.strip().splitlines()[-1] if outcome.said else outcome.signature}", {}
    with np.load(file) as arrays:
        dtypes = outcome.signature.split(",")
        return "", {name[1:]: as_declared(x, d) for (name, x), d in zip(arrays.items(), dtypes, strict=True)}


def _reference(path: Path, feeds: Arrays, file: Path, plain: bool) -> str:
    options = onnxruntime.SessionOptions()
    if plain:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    given = {name: x for name, x in feeds.items() if name in {i.name for i in session.get_inputs()}}
    found = session.run(names, given)
    plain = [x.view(np.uint16) if x.dtype.kind == "V" else x for x in found]  # NumPy writes bfloat16 as plain bytes
    np.savez(file, **{f"_{n}": x for n, x in zip(names, plain, strict=True)})
    return ",".join(x.dtype.name for x in found)


def agree(
    found: Arrays, wanted: Arrays, what: str, rtol: float = RTOL, atol: float = ATOL, chained: bool = False
) -> None:
    """Raises Wrong unless dtypes and shapes are equal and values close: whole numbers equal, NaNs and infinities in the
    same places, floats relative to the element, or to the largest of the tensor. `chained`: several operators have
    rounded to few bits what may have cancelled, or have not rounded it: a step of the largest is allowed."""
    if not wanted:
        raise Wrong(f"{what}: there is nothing to compare")
    for name, x in wanted.items():
        y = found[name]
        if (y.dtype, y.shape) != (x.dtype, x.shape):
            raise Wrong(f"{what}, {name}: {y.dtype} {list(y.shape)}, expected {x.dtype} {list(x.shape)}")
        if x.dtype.kind not in "fV":
            same = y == x
        else:
            a, b = y.astype(np.float64), x.astype(np.float64)
            finite = np.abs(b[np.isfinite(b)])
            largest = min(float(finite.max()), 1e30) if finite.size else 0.0
            near = max(atol * max(1.0, largest), chained * STEP.get(x.dtype.name, 0) * largest)
            same = np.isclose(a, b, max(rtol, HALF.get(x.dtype.name, 0)), near, equal_nan=True)
        if not same.all():
            where = tuple(int(i) for i in np.argwhere(~same)[0])
            count = f"{int((~same).sum())} of {same.size}"
            raise Wrong(f"{what}, {name}: {count} elements differ, at {list(where)} {y[where]} for {x[where]}")


def _misshapen(model: onnx.ModelProto, reference: Arrays) -> str:
    """What ONNX Runtime gives that has another shape than the model says: it does where there are no elements."""
    for output in model.graph.output:
        kind = output.type.tensor_type
        said = [d.dim_value if d.HasField("dim_value") else None for d in kind.shape.dim]
        if not reference or not kind.HasField("shape"):
            continue
        found = list(reference[output.name].shape)
        if len(said) != len(found) or any(n not in (None, m) for n, m in zip(said, found, strict=True)):
            return f"ONNX Runtime gives {output.name} of shape {found}, ONNX says {said}"
    return ""


def check(
    model: onnx.ModelProto, feeds: Arrays, folder: Path, rtol: float = RTOL, atol: float = ATOL, chained: bool = False
) -> str:
    """Compiles and runs the model and compares it with both others. Raises Wrong, or ModelcError if it is refused;
    returns why ONNX Runtime gave nothing to compare with, if so."""
    path = folder / "model.onnx"
    onnx.save(model, path)
    plain = chained and quantizes(path)  # its fusions change what is rounded
    # first: it forks, which is safe before there are threads
    refusal, reference = run_reference(path, feeds, folder, plain)
    refusal = refusal or _misshapen(model, reference)
    found = run_packaged(path, feeds, folder)
    if not refusal:
        agree(found, reference, "package and ONNX Runtime", rtol, atol, chained)
    agree(found, run_interpreted(path, feeds), "package and interpreter", rtol, atol, chained)
    return refusal

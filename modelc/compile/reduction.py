"""A model that modelc refuses, computes wrongly or stumbles over, made small: the nodes without which it does not.

Nodes are left out as long as what is left fails as the whole does (minimise.py). What an excerpt reads of the
nodes that were left out becomes an input, with the numbers that ONNX Runtime had there. Every excerpt is compiled and
verified in a process of its own, which may crash or hang.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.compile.arrays import write_npz
from modelc.compile.fixed import Inputs
from modelc.compile.inputs import applied
from modelc.compile.minimise import minimised
from modelc.compile.request import GivenShapes, Request
from modelc.errors import ModelError
from modelc.frontend.load.given import ModelSource, model_file
from modelc.frontend.load.outline import read_outline
from modelc.frontend.steering.flags import Given
from modelc.frontend.steering.states import states_by_name
from modelc.frontend.steering.uses import Span, Uses, check_named, read_uses
from modelc.frontend.witness.excerpt import Whole, save_model
from modelc.frontend.witness.surgery import expose
from modelc.package import TensorInfo
from modelc.python_worker import worker_command
from modelc.scratch import TemporaryFolder
from modelc.verb import Progress
from modelc.verify.check import check_feed, zeros
from modelc.verify.draw import draw_inputs, roles_of
from modelc.verify.engine import Engine, EngineError

Arrays = Mapping[str, NDArray[Any]]

SECONDS = 120.0  # for one excerpt, after which it counts as one that hangs
WORDS = {1: "wrong", 2: "refused", 3: "an internal error"}  # by the exit code of `modelc compile`


@dataclass(frozen=True)
class Failure:
    """What became of a model: `kind` is "refused", "wrong", "an internal error", "hangs", or the signal that ended it;
    `sentence` what modelc said of it."""

    kind: str
    sentence: str = ""

    @property
    def signature(self) -> tuple[str, str]:
        """What equal failures share: names, paths and numbers differ from model to model; where numbers are wrong,
        everything else does."""
        if self.kind == "wrong":
            return self.kind, ""
        if self.kind == "an internal error":
            found = re.search(r"internal error \((\w+(?:: .*)?)\);", self.sentence)
            return self.kind, _template(found[1]) if found else ""
        return self.kind, _template(self.sentence)


@dataclass(frozen=True)
class Reduced:
    """What is left of `nodes` nodes: the model in `path`, its inputs in `inputs`, and how both fail with `options` of
    `modelc compile`."""

    path: Path
    inputs: Path
    nodes: int
    left: int
    attempts: int
    failure: Failure
    options: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "model": str(self.path),
            "inputs": str(self.inputs),
            "options": list(self.options),
            "nodes": self.nodes,
            "left": self.left,
            "attempts": self.attempts,
            "kind": self.failure.kind,
            "sentence": self.failure.sentence,
        }


@dataclass(frozen=True)
class _Excerpt:
    """A part of a model, what it is given, and the options of `modelc compile` for it."""

    model: Any  # as onnx has it
    feed: Arrays
    options: tuple[str, ...]


@dataclass
class Reduction:
    """One model, and how it is judged: with the `options` of `modelc compile`, and those of `fixed` that name what is
    left, each time within `seconds`."""

    whole: Whole
    known: Arrays
    options: Sequence[str]
    fixed: Inputs
    seconds: float = SECONDS
    tell: Callable[[str], None] = lambda text: None
    attempts: int = 0
    judged: dict[tuple[int, ...], Failure | None] = field(default_factory=dict)

    def failure(self, kept: Collection[int]) -> Failure | None:
        """How the excerpt of the nodes `kept` fails; None where it does not, or is no model."""
        key = tuple(sorted(kept))
        if key not in self.judged:
            self.judged[key] = self._judge(key)
        return self.judged[key]

    def _judge(self, kept: Sequence[int]) -> Failure | None:
        found = self.excerpt(kept)
        if found is None:
            return None
        self.attempts += 1
        self.tell(f"{len(kept)} nodes, attempt {self.attempts}")
        with TemporaryFolder("reduce") as folder:
            path, inputs = Path(folder) / "model.onnx", Path(folder) / "inputs.npz"
            save_model(found.model, path)
            write_npz(inputs, found.feed)
            return judged(path, inputs, found.options, self.seconds)

    def excerpt(self, kept: Collection[int]) -> _Excerpt | None:
        """The model of the nodes `kept` with what is given to it; None where it is no model."""
        found = self.whole.excerpt(kept, self.known)
        if found is None:
            return None
        model, feed = found
        bounds = {name: most for name, most in self.fixed.bounds.items() if name in Uses(model.graph).sizes}
        outputs = {value.name for value in model.graph.output}
        states = {name: to for name, to in self.fixed.states.items() if name in feed and to in outputs}
        more = [word for name, most in bounds.items() for word in ("--bound", f"{name}={most}")]
        more += [word for name, output in states.items() for word in ("--state", f"{name}={output}")]
        given = {name: array for name, array in feed.items() if name not in states}
        return _Excerpt(model, given, (*self.options, *more))

    def reduced(self) -> tuple[list[int], Failure]:
        """The nodes that are left, and how they fail. Raises ModelError if all of them together do not."""
        every = range(len(self.whole.nodes))
        failure = self.failure(every)
        if failure is None:
            raise ModelError("the model compiles, and agrees with ONNX Runtime: there is nothing to reduce")
        wanted = failure.signature

        def fails(kept: Sequence[int]) -> bool:
            found = self.failure(kept) if kept else None
            return found is not None and found.signature == wanted

        left = minimised(every, fails)
        last = self.failure(left)
        assert last is not None
        return left, last


def reduce(
    model: ModelSource,
    output: str | Path | None = None,
    target: str | Path | None = None,
    config: str | Path | None = None,
    precision: str | None = None,
    shapes: GivenShapes | Sequence[GivenShapes] = (),
    dims: Mapping[str, int | Sequence[int]] | None = None,
    constants: Mapping[str, Given] | None = None,
    states: Mapping[str, str] | None = None,
    bounds: Mapping[str, int] | None = None,
    inputs: Arrays | None = None,
    seed: int = 0,
    seconds: float = SECONDS,
    progress: Progress | None = None,
) -> Reduced:
    """Makes a failing model small: the few nodes that modelc refuses, computes wrongly or stumbles over.

    Each part of the model is compiled and verified in a process of its own, which may crash or hang.

    Args:
        model: As of modelc.compile.
        output: Where the small model goes; its inputs go beside it (.npz). Default: MODEL-reduced.onnx in the working
            folder.
        target: As of modelc.compile, by name or file.
        config: As of modelc.compile, by name or file.
        precision: As of modelc.compile.
        shapes: As of modelc.compile, like `dims`, `constants`, `states` and `bounds`.
        dims: Likewise.
        constants: Likewise.
        states: Likewise.
        bounds: Likewise.
        inputs: Arrays by name with which it fails. Default: drawn; states are zeros.
        seed: Of the drawn inputs.
        seconds: For one attempt, after which it counts as one that hangs.
        progress: Is told the nodes of each attempt, `progress(stage, text)`; an exception from it ends the call.

    Returns:
        A Reduced: the small model's path, that of its inputs, and how both fail.

    Raises:
        ModelError: The model does not fail, or not even ONNX Runtime runs it.

    Example:
        >>> small = modelc.reduce("failing.onnx", "small.onnx")
        >>> small.failure.kind, small.left < small.nodes
        ('refused', True)
    """
    given = (("--target", target), ("--config", config), ("--precision", precision))
    options = [word for name, value in given if value is not None for word in (name, str(value))]
    fixed = Request(shapes=shapes, dims=dims, constants=constants, states=states, bounds=bounds).fixed
    tell = partial(progress or (lambda stage, text: None), "reduce")
    with model_file(model) as path:
        place = Path(f"{path.stem}-reduced.onnx") if output is None else Path(output)
        return _reduced(path, place, fixed, options, inputs, seed, seconds, tell)


def _reduced(
    model: Path,
    output: Path,
    fixed: Inputs,
    options: Sequence[str],
    data: Arrays | None,
    seed: int,
    seconds: float,
    tell: Callable[[str], None],
) -> Reduced:
    uses = read_uses(model)
    fixed = replace(fixed, states=states_by_name(read_outline(model).graph, fixed.states))
    check_named(uses, fixed.states, fixed.bounds)
    steering = applied(fixed, model, data)
    whole = Whole(model, steering)
    every = [TensorInfo(value.name, value.dtype, value.shape) for value in whole.inputs]
    tensors = [tensor for tensor in every if tensor.name not in fixed.states]
    started = {tensor.name: zeros(tensor) for tensor in every if tensor.name in fixed.states}
    if data is None:
        roles = roles_of(uses, [(name, Span(None, 0, most)) for name, most in fixed.bounds.items()])
        feed = draw_inputs(tensors, roles, seed)
    else:
        feed = {name: array for name, array in data.items() if name not in steering.constants}
        check_feed([tensors], feed, f"the model {model}")
    feed = {**feed, **started}
    tell("running the model in ONNX Runtime")
    known = {**feed, **_values(model, whole, {**feed, **steering.constants})}
    reduction = Reduction(whole, known, options, fixed, seconds, tell)
    left, failure = reduction.reduced()
    found = reduction.excerpt(left)
    assert found is not None
    inputs = output.with_suffix(".npz")
    write_npz(inputs, found.feed)
    save_model(found.model, output)
    return Reduced(output, inputs, len(whole.nodes), len(left), reduction.attempts, failure, found.options)


def judged(model: Path, inputs: Path, options: Sequence[str], seconds: float) -> Failure | None:
    """What becomes of `modelc compile MODEL --inputs FILE` in a process of its own; None where nothing is wrong."""
    command = worker_command("modelc", "compile", str(model), "--inputs", str(inputs), "--json", *options)
    command += ["--no-database", "-o", str(model.with_suffix(".modelc"))]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            said, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            return Failure("hangs", f"it was not done within {seconds:g} s")
        finally:  # and whatever it has started, whichever way this ends
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode == 0:
        return None
    if process.returncode < 0:
        return Failure(signal.Signals(-process.returncode).name)
    try:
        sentence = str(json.loads(said)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        sentence = said.decode(errors="replace").strip()[-300:]
    return Failure(WORDS.get(process.returncode, f"exit code {process.returncode}"), sentence)


def _values(model: Path, whole: Whole, feed: Arrays) -> Arrays:
    """What ONNX Runtime computes everywhere in the model."""
    with TemporaryFolder("reduce") as folder:
        exposed = Path(folder) / "model.onnx"
        expose(model, whole.values, exposed)
        try:
            with Engine("ort", exposed, timed=False) as engine:
                return engine.run({name: np.asarray(array, order="C") for name, array in feed.items()})
        except EngineError as error:
            raise ModelError(f"{model} cannot be reduced, for ONNX Runtime does not run it: {error}") from None


def _template(sentence: str) -> str:
    """A sentence without what differs from model to model: quoted names, paths and numbers."""
    return re.sub(r"'[^']*'|\S*/\S*|\d+", "*", sentence)[:200]

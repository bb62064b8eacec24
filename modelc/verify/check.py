"""Running a package on inputs that are given or drawn for it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.errors import InputError, ModelError, PackageError, VerificationError
from modelc.frontend.steering.uses import Span, read_uses
from modelc.ir.expr import DTYPES, NARROW
from modelc.package import (
    Package,
    TensorInfo,
    at_dims,
    at_inputs,
    check_described,
    emulated,
    read_choices,
    run_emulated,
)
from modelc.package.read import sha256_of
from modelc.package.spec import Branch, Plan, made_bytes
from modelc.package.tensor import with_shapes
from modelc.package.watch import Watch
from modelc.runtime.shown import size
from modelc.verify.draw import draw_inputs, roles_of
from modelc.verify.engine import Engine
from modelc.verify.reference import fixed_inputs
from modelc.verify.ways import MORE, deciding, least_samples, not_run

Arrays = dict[str, NDArray[Any]]
LEAST_WITH_STATES = 4  # samples: runs in which a state goes from hand to hand
LEAST_WITH_SIZES = 2  # samples: what depends on data in its size has two
TELLING, MOST_SAMPLES = 256, 16  # numbers that small models get, if so many samples have them
SMALL_STEPS, SMALL_BYTES = 64, 1 << 20  # of a small model: calls of kernels, its parameters and its arena


def not_run_note(number: int, parts: Sequence[str], package: Package) -> str:
    """What to say of control flow that no input took; nothing where there is none."""
    if not parts:
        return ""
    where = f" of variant {number}" * (len(package.manifest.variants) > 1)
    return f"nothing was compared of {', '.join(parts)}{where}: no input took it; --inputs F.npz may"


class Runner:
    """Runs a package here: in a process of its own, under emulation if it is for another one. What every step is
    called is counted if it has control flow."""

    def __init__(self, package: Package, stack: ExitStack) -> None:
        self._package, self._counted = package, [[0] * len(plan.steps) for plan in package.manifest.variants]
        self._counting = any(plan.control for plan in package.manifest.variants)
        self._engine: Engine | None = None
        self._latest = -1  # of the variants, or sizes
        if not emulated(package):
            self._engine = stack.enter_context(Engine("modelc", package.path, timed=False))
            if self._counting:
                self._engine.count()
        else:
            with _as_verification():
                check_described(package)

    @property
    def opening_note(self) -> str:
        """How long it took to make constants of the parameters; "" where none are made, or another machine is
        emulated."""
        made = made_bytes(self._package.manifest.made)
        if self._engine is None or not made:
            return ""
        taken = f"{1e3 * self._engine.seconds:.0f} ms"
        return f"opening the package took {taken}, in which {size(made)} of constants are made of its parameters"

    def run(self, variant: int, feed: Arrays, watch: Watch | None = None) -> Arrays:
        """The outputs of the `variant` that takes the feed; what `watch` names is looked at on the way. Raises
        VerificationError where it does not come to an end."""
        if self._engine is not None:
            self._reset_for(variant)
            return self._engine.run(feed) if watch is None else self._engine.watch(feed, watch)
        with _as_verification():
            there = self._package.in_library(variant)
            done = run_emulated(self._package.path, feed, there, profile=self._counting, watch=watch)
        for k, step in enumerate(done.steps):
            self._counted[variant][k] += step.calls
        return done.outputs

    def _reset_for(self, variant: int) -> None:
        """What a package for any size keeps goes from size to size; judged are runs of each from zeros on."""
        assert self._engine is not None
        if self._package.runs and self._package.manifest.variants[0].states:
            if begins_anew(self._package, variant, self._latest):
                self._engine.reset()
            self._latest = variant

    def not_run(self, variant: int) -> list[str]:
        """What of the variant's control flow has never been run."""
        plan = self._package.manifest.variants[variant]
        if not plan.control:
            return []
        if self._engine is None:
            return not_run(plan, self._counted[variant])
        return not_run(plan, self._engine.calls(self._package.in_library(variant)))


@contextmanager
def _as_verification() -> Iterator[None]:
    try:
        yield
    except PackageError as error:
        raise VerificationError(str(error)) from None


def for_the_model(package: Package, feed: Mapping[str, NDArray[Any]]) -> Arrays:
    """What the model takes where the package takes `feed`, and keeps nothing yet."""
    return {**feed, **fixed_inputs(package), **no_states(package.manifest.variants[variant_of(package, feed)])}


def no_states(plan: Plan) -> Arrays:
    """What a package keeps before its first run."""
    return {s.input.name: zeros(s.input) for s in plan.states}


def zeros(tensor: TensorInfo) -> NDArray[Any]:
    return np.zeros(tensor.shape, _array_dtype(tensor.dtype))


def _array_dtype(dtype: str) -> str:
    """Of arrays that hold a tensor: what NumPy has no dtype for are its bits."""
    return "uint16" if dtype == "bfloat16" else "uint8" if dtype in NARROW else dtype


def begins_anew(package: Package, variant: int, before: int) -> bool:
    """Whether a run of a variant begins with nothing kept, where that before was one of variant `before`: where that is
    another one; of caches that grow where they are empty."""
    if any(state.grows for state in package.manifest.variants[variant].states):
        return not is_behind(package, variant)
    return variant != before


def is_behind(package: Package, variant: int) -> bool:
    """Whether a run of a variant finds something in a cache that grows."""
    return any(state.grows and 0 not in state.input.shape for state in package.manifest.variants[variant].states)


class Carried:
    """What a package keeps from run to run, carried by hand for the model. Under emulation every run is the first."""

    def __init__(self, package: Package) -> None:
        self._package, self._plans = package, package.manifest.variants
        self._emulated = emulated(package)
        self._variant, self._states = -1, Arrays()

    def before(self, variant: int) -> Arrays:
        """Zeros where the variant is another one than before, or the size is: there the Runner resets them."""
        if begins_anew(self._package, variant, self._variant) or self._emulated:
            self._states = no_states(self._plans[variant])
        self._variant = variant
        return self._states

    def after(self, outputs: Arrays) -> None:
        self._states = {s.input.name: outputs[s.output] for s in self._plans[self._variant].states}


def without_constants(
    constants: Mapping[str, NDArray[Any]], feed: Mapping[str, NDArray[Any]]
) -> Mapping[str, NDArray[Any]]:
    """The inputs that are not fixed. Raises InputError for one that is, and given as something else."""
    for name in constants.keys() & feed.keys():
        if not np.array_equal(constants[name], feed[name]):
            raise InputError(f"input {name!r} is a constant of the package, and what is given is something else")
    return {name: array for name, array in feed.items() if name not in constants}


def variant_of(package: Package, feed: Mapping[str, NDArray[Any]]) -> int:
    """The variant that takes inputs of these names and shapes."""
    m = package.manifest
    return _fitting([plan.inputs for plan in m.variants], feed, str(package.path))


def _fitting(variants: Sequence[Sequence[TensorInfo]], feed: Mapping[str, NDArray[Any]], what: str) -> int:
    names = [t.name for t in variants[0]]
    number = None
    if {*names} == feed.keys():
        number = with_shapes(variants, [feed[name].shape for name in names])
    if number is not None:
        return number
    expected = "; ".join(", ".join(map(_shown, tensors)) for tensors in variants)
    given = ", ".join(f"{name} {list(array.shape)}" for name, array in feed.items())
    raise InputError(f"the inputs are {given}; {what} takes {expected}")


def given_or_drawn(
    package: Package, model: str | Path | None, inputs: Mapping[str, NDArray[Any]] | None, seed: int = 0
) -> Arrays:
    """What a package is run on: `inputs`, or drawn ones, of the usual sizes where it takes any. Raises InputError where
    no variant takes them."""
    if inputs is None:
        return next(drawn(at_dims(package), model, seed))
    feed = dict(without_constants(fixed_inputs(package), inputs))
    check_inputs(at_inputs(package, feed), feed)
    return feed


def check_inputs(package: Package, feed: Mapping[str, NDArray[Any]]) -> None:
    """Raises InputError with names, dtypes and shapes if some variant does not take these inputs."""
    m = package.manifest
    check_feed([plan.inputs for plan in m.variants], feed, str(package.path))


def check_feed(variants: Sequence[Sequence[TensorInfo]], feed: Mapping[str, NDArray[Any]], what: str) -> None:
    """Raises InputError if none of the variants of `what` takes these inputs."""
    for tensor in variants[_fitting(variants, feed, what)]:
        wanted = _array_dtype(tensor.dtype)
        if feed[tensor.name].dtype.name != wanted:
            raise InputError(f"input {tensor.name!r} is {feed[tensor.name].dtype.name}; {what} takes {wanted}")


def _shown(tensor: TensorInfo) -> str:
    return f"{tensor.name} {list(tensor.shape)}"


def drawn(package: Package, model: str | Path | None, seed: int = 0, samples: int = 1) -> Iterator[Arrays]:
    """`samples` inputs for every variant, and more where it branches or keeps states, or is small and of few inputs;
    each drawn when it is asked for. Without the model, whole numbers are 0 or 1, but for those that kernels address
    by."""
    every = range(len(package.manifest.variants))
    return (feed for _, feed in drawn_for_variants(package, model, seed, samples, every, lambda number: ()))


def drawn_for_variants(
    package: Package,
    model: str | Path | None,
    seed: int,
    samples: int,
    variants: Container[int],
    left: Callable[[int], Collection[str]],
) -> Iterator[tuple[int, Arrays]]:
    """This draws what `drawn` says for some of the variants, with their numbers; and more inputs for one of whose
    control flow something is `left` that was never run."""
    uses = None if model is None else read_uses(model)
    for number, plan in enumerate(package.manifest.variants):
        if number not in variants:
            continue
        roles = roles_of(uses, _claimed(plan))
        least = LEAST_WITH_STATES if plan.states else LEAST_WITH_SIZES if plan.sizes else 1
        count = max(samples, least_samples(plan), least, _telling_samples(package, plan))
        grows = any(state.grows for state in plan.states)  # another run would find a longer cache
        for k in range(1 if grows else count + MORE):
            if k >= count and not left(number):
                break
            yield number, {**draw_inputs(plan.inputs, roles, seed, k), **deciding(plan, k)}


def declines(package: Package, variant: int, error: str) -> bool:
    """Whether an error says that a run took a branch that cannot be run with these shapes: then another is drawn."""
    controls = package.manifest.variants[variant].control
    return any(isinstance(control, Branch) and control.refusal and control.refusal in error for control in controls)


def _telling_samples(package: Package, plan: Plan) -> int:
    """How many inputs it takes for a model of few numbers to be told from others like it; where it is small, so that a
    run costs next to nothing."""
    elements = sum(prod(tensor.shape) for tensor in plan.inputs)
    large = max(package.manifest.params_bytes, plan.arena_bytes) > SMALL_BYTES or sum(plan.calls) > SMALL_STEPS
    if large or plan.control or not elements:
        return 1
    return min(MOST_SAMPLES, -(-TELLING // elements))


def _claimed(plan: Plan) -> list[tuple[str, Span]]:
    """What the steps ask of values before they address by them."""
    checks = (check for step in plan.steps for check in step.checks)
    return [(c.value, Span(c.column, c.low, c.high, c.operator.startswith("Scatter"))) for c in checks]


def other_model(package: Package, model: str | Path) -> tuple[str, ...]:
    """A note where `model` is another file than the package was compiled from; none where it is the same."""
    recorded = read_choices(package).get("model_sha256")
    try:
        given_hash = sha256_of(Path(model))
    except OSError as error:
        raise ModelError(f"the model {model} cannot be read: {error.strerror}") from None
    if not isinstance(recorded, str) or given_hash == recorded:
        return ()
    return (
        f"{package.path} was compiled from another file than {model} (sha256 {recorded[:12]}..., found "
        f"{given_hash[:12]}...): what follows compares the two all the same",
    )


def as_numbers(array: NDArray[Any], dtype: str) -> NDArray[Any]:
    """What NumPy has no dtype for, from its bits."""
    return array.view(DTYPES[dtype]).astype(np.float32) if dtype in ("bfloat16", *NARROW) else array

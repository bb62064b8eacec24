"""Times a decoder with weights of four bits, one token at a time, beside ONNX Runtime and llama.cpp:

    python scripts/bench_decoder.py [--layers N] [--hidden N] [--vocabulary N] [--context N] [--tokens N] [--threads N]
                                    [--seconds S] [--llama]

The model is built here, with drawn weights: an embedding, layers of RMS norm, rotary attention of grouped queries, a
cache of keys and values, and gated feed-forward networks, and a head. All products, the head's too, are MatMulNBits in
blocks of 32 with accuracy_level 4, whose activations are int8. modelc and ONNX Runtime are timed by turns in one run.
--tokens above 1 times a prompt of so many instead (prefill). --llama adds llama.cpp with a model of the same shape in
Q4_0, whose scales are float16, if the packages llama-cpp-python and gguf are installed. In between, so many threads add
up an array larger than the caches; the share is that of the weights' bytes in a second in what these read.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bench_ops import count, positive
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper, save
from rich.table import Table

import modelc
from modelc.cli.terminal import out
from modelc.verify.bench import alternating, beside, median
from modelc.verify.engine import Engine

BLOCK, HEAD = 32, 64  # weights with one scale, numbers of a head
GROUP = 4  # heads of queries that share keys
EPSILON = 1e-5
READ_BYTES = 1 << 28
MS = "com.microsoft"


@dataclass(frozen=True)
class Shape:
    """Of a decoder, and of its run: `tokens` new ones, the last of `context`."""

    layers: int
    hidden: int
    vocabulary: int
    context: int
    tokens: int

    @property
    def inner(self) -> int:
        return self.hidden * 11 // 4 // BLOCK * BLOCK

    @property
    def kept(self) -> int:
        """Numbers of a token's keys."""
        return self.hidden // GROUP

    @property
    def products(self) -> dict[str, tuple[int, int]]:
        """Depth and columns of the products of a layer."""
        h, inner, kept = self.hidden, self.inner, self.kept
        shapes = {"q": (h, h), "k": (h, kept), "v": (h, kept), "o": (h, h)}
        return shapes | {"gate": (h, inner), "up": (h, inner), "down": (inner, h)}

    @property
    def weights(self) -> int:
        """How many a token is multiplied by."""
        return self.layers * sum(k * n for k, n in self.products.values()) + self.hidden * self.vocabulary


class Decoder:
    """The model as it is built."""

    def __init__(self, shape: Shape) -> None:
        self.shape, self.rng = shape, np.random.default_rng(0)
        self.nodes: list[Any] = []
        self.init: list[Any] = []
        self.given = [helper.make_tensor_value_info("token", TensorProto.INT64, [1, shape.tokens])]
        self.made: list[Any] = []

    def constant(self, name: str, numbers: NDArray[Any]) -> str:
        self.init.append(numpy_helper.from_array(numbers, name))
        return name

    def op(
        self, op: str, inputs: Sequence[str], name: str, more: Sequence[str] = (), ms: bool = False, **a: Any
    ) -> str:
        self.nodes.append(helper.make_node(op, inputs, [name, *more], name, domain=MS if ms else "", **a))
        return name

    def product(self, x: str, name: str, depth: int, columns: int) -> str:
        blocks = depth // BLOCK
        whole = self.rng.integers(0, 256, (columns, blocks, BLOCK // 2), np.uint8)
        scales = (self.rng.uniform(0.5, 1.5, (columns, blocks)) / 4.6 / depth**0.5).astype(np.float32)
        names = [x, self.constant(f"{name}.w", whole), self.constant(f"{name}.s", scales)]
        attrs = {"K": depth, "N": columns, "bits": 4, "block_size": BLOCK, "accuracy_level": 4}
        return self.op("MatMulNBits", names, name, ms=True, **attrs)

    def gain(self, name: str) -> str:
        return self.constant(name, self.rng.uniform(0.8, 1.2, self.shape.hidden).astype(np.float32))

    def attention(self, x: str, k: int) -> str:
        s = self.shape
        parts = [self.product(x, f"{k}.{name}", *s.products[name]) for name in "qkv"]
        cache = (1, s.kept // HEAD, s.context, HEAD)
        for what in ("keys", "values"):
            self.given.append(helper.make_tensor_value_info(f"{k}.past_{what}", TensorProto.FLOAT, cache))
            self.made.append(helper.make_tensor_value_info(f"{k}.{what}", TensorProto.FLOAT, cache))
        inputs = [*parts, f"{k}.past_keys", f"{k}.past_values", "lengths", "total", "cos", "sin"]
        heads = {"num_heads": s.hidden // HEAD, "kv_num_heads": s.kept // HEAD, "do_rotary": 1}
        y = self.op("GroupQueryAttention", inputs, f"{k}.a", (f"{k}.keys", f"{k}.values"), ms=True, **heads)
        return self.product(y, f"{k}.o", *s.products["o"])

    def feed_forward(self, x: str, k: int) -> str:
        gate, up = (self.product(x, f"{k}.{name}", *self.shape.products[name]) for name in ("gate", "up"))
        swish = self.op("Mul", [gate, self.op("Sigmoid", [gate], f"{k}.sigmoid")], f"{k}.swish")
        y = self.op("Mul", [swish, up], f"{k}.gated")
        return self.product(y, f"{k}.down", *self.shape.products["down"])

    def normed(self, x: str, y: str, name: str) -> tuple[str, str]:
        """The sum of both, and it over its root mean square."""
        norm = self.op(
            "SkipSimplifiedLayerNormalization",
            [x, y, self.gain(f"{name}.gain")],
            name,
            ("", "", f"{name}.sum"),
            ms=True,
            epsilon=EPSILON,
        )
        return f"{name}.sum", norm

    def write(self, path: Path) -> Path:
        s = self.shape
        table = self.rng.standard_normal((s.vocabulary, s.hidden), np.float32)
        angles = np.arange(s.context)[:, None] / 10_000 ** (np.arange(HEAD // 2) / (HEAD // 2))
        self.constant("cos", np.cos(angles).astype(np.float32))
        self.constant("sin", np.sin(angles).astype(np.float32))
        self.constant("lengths", np.array([s.context - 1], np.int32))
        self.constant("total", np.array(s.context, np.int32))
        x = self.op("Gather", [self.constant("table", table), "token"], "embedded")
        gain = self.gain("first.gain")
        normed = self.op("SimplifiedLayerNormalization", [x, gain], "first", epsilon=EPSILON, axis=-1)
        for k in range(s.layers):
            x, normed = self.normed(x, self.attention(normed, k), f"{k}.norm")
            x, normed = self.normed(x, self.feed_forward(normed, k), f"{k + 1}.before")
        self.product(normed, "logits", s.hidden, s.vocabulary)
        self.made.append(helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, s.tokens, s.vocabulary]))
        graph = helper.make_graph(self.nodes, "decoder", self.given, self.made, self.init)
        imports = [helper.make_opsetid("", 17), helper.make_opsetid(MS, 1)]
        save(helper.make_model(graph, opset_imports=imports, ir_version=8), path)
        return path

    def feeds(self) -> dict[str, NDArray[Any]]:
        feeds: dict[str, NDArray[Any]] = {
            "token": self.rng.integers(0, self.shape.vocabulary, (1, self.shape.tokens), np.int64)
        }
        for value in self.given[1:]:
            dims = [d.dim_value for d in value.type.tensor_type.shape.dim]
            feeds[value.name] = self.rng.standard_normal(dims, np.float32)
        return feeds


class Repeated(ABC):
    """What takes turns with the engines in this process."""

    @abstractmethod
    def once(self) -> None:
        """One run."""

    def time(self, seconds: float) -> list[float]:
        """Milliseconds of each run, in about so many seconds."""
        taken, end = list[float](), time.perf_counter() + seconds
        while not taken or time.perf_counter() < end:
            start = time.perf_counter()
            self.once()
            taken.append(1e3 * (time.perf_counter() - start))
        return taken


class Reading(Repeated):
    """READ_BYTES are read, an equal part by each of the threads."""

    def __init__(self, threads: int) -> None:
        self.parts = np.array_split(np.ones(READ_BYTES // 8, np.int64), threads)
        self.pool = ThreadPoolExecutor(threads)

    def once(self) -> None:
        list(self.pool.map(np.sum, self.parts))


class Llama(Repeated):
    """llama.cpp on a model of the same shape. The new tokens are forgotten after each run."""

    def __init__(self, shape: Shape, path: Path, threads: int) -> None:
        import llama_cpp as c

        write_gguf(shape, path)
        c.llama_backend_init()
        self.silent = c.llama_log_callback(lambda level, text, user: None)  # which has to live
        c.llama_log_set(self.silent, None)
        self.c, self.shape = c, shape
        model = c.llama_model_default_params()
        model.use_mmap = False  # so that weights are put in the order that its kernels read
        self.model = c.llama_model_load_from_file(str(path).encode(), model)
        context = c.llama_context_default_params()
        context.n_ctx, context.n_batch, context.n_ubatch = shape.context, shape.context, shape.context
        context.n_threads = context.n_threads_batch = threads
        self.context = c.llama_init_from_model(self.model, context)
        if not self.model or not self.context:
            raise SystemExit("llama.cpp does not load the model")
        if shape.context > shape.tokens:
            self._decode(shape.context - shape.tokens)

    def _decode(self, tokens: int) -> None:
        ids = (self.c.llama_token * tokens)(*range(1, tokens + 1))
        if self.c.llama_decode(self.context, self.c.llama_batch_get_one(ids, tokens)):
            raise SystemExit("llama.cpp does not run the model")
        self.c.llama_get_logits(self.context)

    def once(self) -> None:
        self._decode(self.shape.tokens)
        memory = self.c.llama_get_memory(self.context)
        self.c.llama_memory_seq_rm(memory, 0, self.shape.context - self.shape.tokens, -1)


def write_gguf(shape: Shape, path: Path) -> None:
    """A model of llama.cpp's architecture `llama` in Q4_0, with drawn weights."""
    import gguf

    rng, q4 = np.random.default_rng(0), gguf.GGMLQuantizationType.Q4_0
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.inner)
    writer.add_head_count(shape.hidden // HEAD)
    writer.add_head_count_kv(shape.kept // HEAD)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_rope_dimension_count(HEAD)
    writer.add_vocab_size(shape.vocabulary)
    writer.add_tokenizer_model("no_vocab")

    def matrix(name: str, depth: int, columns: int) -> None:
        blocks = rng.integers(0, 256, (columns, depth // BLOCK, 2 + BLOCK // 2), np.uint8)
        scales = (rng.uniform(0.5, 1.5, (columns, depth // BLOCK, 1)) / 4.6 / depth**0.5).astype(np.float16)
        blocks[..., :2] = scales.view(np.uint8)
        writer.add_tensor(f"{name}.weight", blocks.reshape(columns, -1), raw_dtype=q4)

    def gain(name: str) -> None:
        writer.add_tensor(f"{name}.weight", rng.uniform(0.8, 1.2, shape.hidden).astype(np.float32))

    names = {"q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output"}
    matrix("token_embd", shape.hidden, shape.vocabulary)
    for k in range(shape.layers):
        gain(f"blk.{k}.attn_norm")
        gain(f"blk.{k}.ffn_norm")
        for name, (depth, columns) in shape.products.items():
            matrix(f"blk.{k}.{names.get(name, f'ffn_{name}')}", depth, columns)
    gain("output_norm")
    matrix("output", shape.hidden, shape.vocabulary)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", metavar="N", type=count, default=8, help="default 8")
    parser.add_argument("--hidden", metavar="N", type=count, default=1024, help="a multiple of 256, default 1024")
    parser.add_argument("--vocabulary", metavar="N", type=count, default=32_000, help="default 32000")
    parser.add_argument("--context", metavar="N", type=count, default=128, help="default 128")
    parser.add_argument("--tokens", metavar="N", type=count, default=1, help="new ones in a run, default 1")
    parser.add_argument("--threads", metavar="N", type=count, default=1, help="default 1")
    parser.add_argument("--seconds", metavar="S", type=positive, default=8.0, help="for each engine, default 8")
    parser.add_argument("--llama", action="store_true", help="time llama.cpp too")
    asked = parser.parse_args()
    if asked.hidden % (HEAD * GROUP) or asked.tokens > asked.context:
        parser.error(f"expected --hidden of a multiple of {HEAD * GROUP}, and no more tokens than the context has")
    shape = Shape(asked.layers, asked.hidden, asked.vocabulary, asked.context, asked.tokens)
    with tempfile.TemporaryDirectory(prefix="modelc-bench-") as folder, ExitStack() as stack:
        decoder = Decoder(shape)
        model = decoder.write(Path(folder) / "decoder.onnx")
        result = modelc.compile(model, output=Path(folder) / "decoder.modelc", database=False)
        assert result.path is not None
        engines: dict[str, Any] = {}
        for name, engine, path in (("modelc", "modelc", result.path), ("ONNX Runtime", "ort", model)):
            engines[name] = stack.enter_context(Engine(engine, path, asked.threads))
            engines[name].run(decoder.feeds())
        if asked.llama:
            engines["llama.cpp"] = Llama(shape, Path(folder) / "decoder.gguf", asked.threads)
        engines["reading"] = Reading(asked.threads)
        times = alternating(engines, asked.seconds, lambda told: None)
    read = READ_BYTES / median(times["reading"]) / 1e6
    bits = {"llama.cpp": 4.5}
    table = Table("engine", "ms", "tokens/s", "GB/s of weights", "of what is read", "of modelc's time", box=None)
    for name in (name for name in times if name != "reading"):
        ms = median(times[name])
        speed = shape.weights * bits.get(name, 5.0) / 8 / ms / 1e6
        ratio = beside(times[name], times["modelc"])
        table.add_row(
            name,
            f"{ms:.3g}",
            f"{1e3 * shape.tokens / ms:.1f}",
            f"{speed:.1f}",
            f"{speed / read:.0%}",
            f"{ratio:.2f}",
        )
    out.print(table)
    out.print(f"{shape.weights / 1e6:.0f} million weights; {asked.threads} thread(s) read {read:.1f} GB/s")
    out.print(f"verification: {result.report.sentence() if result.report else 'none'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

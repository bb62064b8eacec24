"""What is known of a model before it is decided what of it is rounded: its layers, its samples, what it gives for those
that are held back, what its activations are, and what it takes in float32."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from modelc.compile.compilation import default_threads
from modelc.compile.pipeline import Run
from modelc.compile.request import CompileRequest
from modelc.errors import ConfigError
from modelc.frontend.quantize.equalise import smoothable
from modelc.frontend.quantize.floats import float_model
from modelc.frontend.quantize.layers import layers_of
from modelc.frontend.quantize.outputs import class_scores, embeddings
from modelc.frontend.quantize.recipe import INT8
from modelc.frontend.quantize.weights import LARGEST
from modelc.frontend.witness.surgery import save
from modelc.partition.narrow_products import HALF, multiplies
from modelc.quantize.float_run import run_at_usual_sizes
from modelc.quantize.measure import measure_of
from modelc.quantize.price import Priced, priced, require_bytes
from modelc.quantize.running import runs, spread
from modelc.quantize.samples import read_samples
from modelc.quantize.tables import Tables
from modelc.quantize.trials import Trials
from modelc.target import Target

STAGE = "calibrate"
MAX_DROP = 0.01  # by which outputs may be worse, as a share, where a request does not say
WATCHED = 4  # samples on which the error that each layer adds to the network is measured
MOST_JUDGED = 64  # samples that are held back and looked at; more where the drop that is allowed is a smaller share
MOST_COUNTED = 1024  # of these


class Subject:
    """The float model that a request is about, on its samples, for a target."""

    def __init__(self, request: CompileRequest, target: Target, folder: Path) -> None:
        self.request, self.model, self.folder = request, request.path, folder
        self.threads = request.threads or default_threads()
        self.max_drop = MAX_DROP if request.max_drop is None else request.max_drop
        self.run = run_at_usual_sizes(request, target)
        self.config = self.run.config
        require_bytes(target, self.config.policy.tensorize)
        assert request.calibrate is not None
        samples = read_samples(Path(request.calibrate), self.model, self.run.constants)
        floats = float_model(self.model)
        self.plain = folder / "float.onnx"
        save(floats.model, self.plain)
        layers = layers_of(floats)
        if not layers:
            raise ConfigError(
                f"the model {self.model} has no Conv, Gemm or MatMul in float32 whose weights are constants: nothing "
                "of it can multiply bytes"
            )
        self.names = [layer.name for layer in layers]
        self.judging = spread(samples.judging, judged_for(self.max_drop))
        self.watched = spread(samples.calibrating, WATCHED)
        self.say(f"{len(self.judging)} samples that are held back, in float32")
        outputs = list(runs(self.plain, [*self.judging, *self.watched], self.threads))
        wanted, self.watched_outputs = outputs[: len(self.judging)], outputs[len(self.judging) :]
        self.measure = measure_of(request.metric, wanted, self.judging, class_scores(floats), embeddings(floats))
        self.tables = Tables(floats)
        self.places = smoothable(floats)
        self.trials = Trials(floats, layers, LARGEST, samples.calibrating, folder, self.threads, self.say)
        self.statistics = self.trials.statistics({place.value: place.rank for place in self.places})
        self.say("the price of float32")
        self.before, self.half = priced(self.run, self.plain, self.names), self.price_of_half()

    def say(self, text: str) -> None:
        self.request.say(STAGE, text)

    @property
    def in_half(self) -> Run:
        """A compilation of what can be in float16."""
        return replace(self.run, config=self.config.allowing(precision="f16"))

    def price_of_half(self) -> Priced:
        """The estimates of the float model with all in float16 that can be: nothing where the target does not compute
        so, or auto asks, which takes no float16."""
        if self.request.precision != INT8 or not self.config.policy.tensorize or not multiplies(self.run.target, HALF):
            return Priced()
        self.say("the price of float16")
        return priced(self.in_half, self.plain, self.names)

    def saved(self, price: Priced, layer: str) -> float:
        """The seconds that a layer takes less than in float32."""
        return self.before.layers[layer] - price.layers[layer]

    def faster(self, price: Priced, among: Collection[str]) -> list[str]:
        """Which layers take less than in float32."""
        return [name for name in self.names if name in among and self.saved(price, name) > 0]


def judged_for(max_drop: float) -> int:
    """The most samples that are looked at: so many that each is no larger a share than the drop that is allowed."""
    needed = 1 / max_drop if max_drop else 0.0
    return math.ceil(min(max(needed, MOST_JUDGED), MOST_COUNTED))

"""int8 without samples: which products multiply bytes that are rounded by row as they are computed, and which tables
have rows of bytes. Errors are those on inputs that are drawn as verification draws them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from modelc.compile.request import CompileRequest, named_target
from modelc.errors import ConfigError, blaming
from modelc.frontend.quantize.dynamic import product_of_bytes, products_of, rounding_nodes, rounding_of_rows
from modelc.frontend.quantize.floats import FloatModel, float_model
from modelc.frontend.quantize.products import LEAST
from modelc.frontend.quantize.recipe import DYNAMIC, FLOAT32, SYMMETRIC, TABLE, LayerChoice, Recipe
from modelc.frontend.quantize.write import write_quantized
from modelc.frontend.witness.surgery import save
from modelc.quantize.drop import rounded
from modelc.quantize.float_run import QUANTIZE, drawn_inputs, error_on_drawn, run_at_usual_sizes
from modelc.quantize.price import PER_SIZE, limits_of_weights, priced, require_bytes, with_rounding
from modelc.quantize.running import runs
from modelc.quantize.tables import MOST_ERROR, TOO_FAR, Tables
from modelc.scratch import TemporaryFolder
from modelc.target import Target, load_target


def dynamic_recipe(request: CompileRequest) -> Recipe:
    """What of the request's model is in bytes on its target. Raises ModelcError."""
    target = named_target(request.target) or load_target("native")
    recipes = list[Recipe]()
    with blaming(f"model {request.path}"), TemporaryFolder("dynamic") as folder:
        dynamic = Dynamic(request, target, Path(folder))
        for most in limits_of_weights(target):
            recipes.append(dynamic.recipe(most))
            if not any(layer.why.startswith(TOO_FAR) for layer in recipes[-1].layers):
                break
    return min(recipes, key=lambda recipe: float(recipe.summary["int8_seconds"]))


@dataclass(frozen=True)
class Prices:
    """Estimated seconds: of the run in float32; of each product in float32, and in bytes with its part of what rounding
    the rows takes that it reads."""

    whole: float
    real: Mapping[str, float]
    narrow: Mapping[str, float]

    def lost(self, name: str) -> float:
        return self.narrow[name] - self.real[name]


class Dynamic:
    """What can be in bytes of one model: its errors and prices, and the choice among them."""

    def __init__(self, request: CompileRequest, target: Target, folder: Path) -> None:
        self.request, self.folder = request, folder
        self.run = run_at_usual_sizes(request, target)
        require_bytes(target, self.run.config.policy.tensorize)
        self.floats = float_model(request.path)
        every = products_of(self.floats)
        self.products = [product for product in every if product.size >= LEAST]
        self.small = [product.name for product in every if product.size < LEAST]
        self.tables = Tables(self.floats)
        if not self.products and not self.tables.every:
            raise ConfigError(_nothing(self.floats, request.path))
        self.plain = folder / "float.onnx"
        save(self.floats.model, self.plain)
        self.samples = drawn_inputs(self.run)
        self.say("the price of float32")
        self.before = priced(self.run, self.plain, [product.name for product in self.products])

    def say(self, text: str) -> None:
        self.request.say(QUANTIZE, text)

    def recipe(self, most: int) -> Recipe:
        """What is in bytes where weights go from -most to most."""
        errors, prices = self.errors(most), self.prices(most)
        why = {name: TOO_FAR for name, error in errors.items() if not error <= MOST_ERROR}
        why |= self.slower(prices, {product.name for product in self.products} - why.keys())
        rows = [
            LayerChoice(
                product.name,
                FLOAT32 if product.name in why else DYNAMIC,
                rounded(errors[product.name]),
                0.0,
                rounded(-prices.lost(product.name)),
                why.get(product.name, ""),
                "" if product.name in why else SYMMETRIC,
            )
            for product in self.products
        ]
        narrow = {row.name for row in rows if row.dtype == DYNAMIC}
        reading = narrow | {table.name for table in self.tables.every}
        rows += [table.choice(self.tables.refused(table, reading)) for table in self.tables.every]
        rows += [LayerChoice(name, FLOAT32, 0.0, 0.0, 0.0, f"fewer than {LEAST} weights") for name in self.small]
        places = {node.name: k for k, node in enumerate(self.floats.model.graph.node)}
        recipe = Recipe(tuple(sorted(rows, key=lambda row: places[row.name])), {}, largest_weight=most)
        lost = sum(prices.lost(name) for name in narrow)
        seconds = {"float32_seconds": rounded(prices.whole), "int8_seconds": rounded(prices.whole + lost)}
        return replace(recipe, summary={**self.judged(recipe), **seconds})

    def slower(self, prices: Prices, names: set[str]) -> dict[str, str]:
        """Those that bytes slow down by more than their weights are worth, each by itself and then with all that read
        the same rows."""
        sizes = {product.name: product.size for product in self.products}
        every = sum(sizes.values())

        def costs(some: set[str]) -> bool:
            lost, share = sum(map(prices.lost, some)), sum(sizes[name] for name in some) / every
            return lost > PER_SIZE * share * prices.whole

        slow = {name for name in names if costs({name})}
        for x in {product.x for product in self.products}:
            together = {product.name for product in self.products if product.x == x} & (names - slow)
            slow |= together if costs(together) else set()
        return {name: "slower in bytes by estimate, by more than its size is worth" for name in sorted(slow)}

    # --- errors and prices --------------------------------------------------------------------------------------------

    def errors(self, most: int) -> dict[str, float]:
        """The relative error of what each product writes, its inputs those of the float model."""
        self.say(f"{len(self.products)} products in bytes, on {len(self.samples)} drawn inputs")
        if not self.products:
            return {}
        model, nodes = self.floats.copy(outputs=False), list(self.floats.model.graph.node)
        for x in dict.fromkeys(product.x for product in self.products):
            nodes += rounding_of_rows(model, x)
        for product in self.products:
            tried = replace(product, name=f"{product.name}/trial")
            nodes += product_of_bytes(model, tried, f"{product.name}/dynamic", most)
        model.put(nodes)
        for product in self.products:
            y, prefix = self.floats.node(product.name).output[0], product.name
            off = model.add("Sub", [y, f"{prefix}/dynamic"], f"{prefix}/off")
            model.give(model.add("ReduceSumSquare", [off], f"{prefix}/squares", keepdims=0))
            model.give(model.add("ReduceSumSquare", [y], f"{prefix}/size", keepdims=0))
        path = self.folder / "trials.onnx"
        save(model.model, path)
        seen = list(runs(path, self.samples, self.run.threads))
        errors = dict[str, float]()
        for name in (product.name for product in self.products):
            squares, size = (sum(float(made[f"{name}/{part}"]) for made in seen) for part in ("squares", "size"))
            errors[name] = (squares / size) ** 0.5 if size > 0 else float(squares > 0)
        return errors

    def prices(self, most: int) -> Prices:
        """What every product takes in bytes, beside float32."""
        self.say("the price of bytes")
        layers = [LayerChoice(product.name, DYNAMIC, 0, 0, 0) for product in self.products]
        layers += [LayerChoice(table.name, TABLE, 0, 0, 0) for table in self.tables.every]
        path = self.folder / "narrow.onnx"
        model = write_quantized(self.request.path, Recipe(tuple(layers), {}, largest_weight=most), path)
        reads = {product.name: product.x for product in self.products}
        rounding = {node: x for node, x in rounding_nodes(model).items() if x in reads.values()}
        seconds = priced(self.run, path, [*reads, *rounding]).layers
        narrow = with_rounding(seconds, reads, rounding)
        return Prices(self.before.whole, self.before.layers, narrow)

    def judged(self, recipe: Recipe) -> dict[str, object]:
        """What the whole is off on the drawn inputs."""
        path = self.folder / "quantized.onnx"
        write_quantized(self.request.path, recipe, path)
        self.say("the quantized model on drawn inputs")
        summary = error_on_drawn(self.plain, path, self.samples, self.run.threads)
        convolutions = _convolutions(self.floats)
        unseen = f"in float32: {convolutions}, which read no rows; --calibrate quantizes them by samples"
        return {**summary, "unseen": [unseen] if convolutions else []}


def _nothing(floats: FloatModel, path: Path) -> str:
    """Why nothing of a model can be in bytes without samples."""
    convolutions = _convolutions(floats)
    has = f": it has {convolutions}, which --calibrate DATA.npz quantizes" if convolutions else ""
    return (
        "precision int8 without samples has products with constant float32 matrices and lookups in constant tables in "
        f"bytes, those of at least {LEAST} numbers; the model {path} has none of these{has}"
    )


def _convolutions(floats: FloatModel) -> str:
    """How many there are in words; "": none."""
    count = sum(node.op_type == "Conv" for node in floats.model.graph.node)
    return f"{count} convolution{'s' * (count > 1)}" if count else ""

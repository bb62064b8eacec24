"""An engine in a process of its own: reads commands as JSON lines, answers one line to each.

    {"open": {"engine": "ort", "path": "model.onnx", "threads": 2}}      {"about": "onnxruntime 1.23",
                                                                          "seconds": 0.2}
    {"run": {"inputs": "in.npz", "outputs": "out.npz"}}                  {}
    {"run each": {"runs": [[["in.npz", "more.npz"], "out.npz"], ...], "at_once": 2}}   so many runs side by side, each
                                          on what its files have together; {}
    {"reset": {}}                         makes what a package keeps zeros; {}
    {"count": {}}                         from now on steps of a package are counted; {}
    {"calls": {"variant": 0}}             {"calls": [1, 1, 0, ...]}
    {"watch": {"inputs": "in.npz", "outputs": "out.npz", "places": [...], "fd": 7}}   runs, and writes to the pipe what
                                          places hold (modelc/package/watch.py); {}
    {"keep": {"path": "m.modelc", "feeds": ["in0.npz"], "outputs": ["out0.npz"], "about": {"variant": 0, ...}}}
                                          what runs that were judged were given and made, as Judged (habits.py) says; {}
    {"run again": {"setting": [2, true, 1, 20, 0.5]}}   runs a package on that; {"made": 20, "differs": ""}
    {"time": {"seconds": 0.5}}            runs on the inputs of the last `run`; {"ms": [2.1, 2.0, ...]} once its threads
                                          are at rest: the next engine has all cores
    {"steps": {"seconds": 0.5, "variant": 0}}   runs; medians of what each step of a package took; {"ms": [0.3, ...]}

A process of its own, because ONNX Runtime heeds set_denormal_as_zero in a process's first session alone, because a
package that is wrong can crash, and because engines that are compared must not share threads and caches of allocations.
It ends with the process that started it, whatever it is doing.

With a socket's number as argument it is what engines are forked from (processes.py), so that each costs no start of
Python and no import of NumPy:

    {"fork": {"folder": ..., "environment": {...}, "cpus": [...]}}   and with it the files 0, 1, 2 and the pipe;
                                          {"pid": 77, "pipe": 8}
    {"wait": 77}                          {"status": 9}, as waitpid() gives it, once that engine has ended
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from modelc import runtime
from modelc.runtime import ModelError, as_bits
from modelc.verify.habits import Habits, Judged, Setting, shifted

HEAD = struct.Struct("<I")  # of a message to whom forks engines: the bytes of JSON that follow
FILES = 4
STEP_OF_REST, LONGEST_REST = 0.004, 0.5  # seconds
Arrays = dict[str, NDArray[Any]]
Run = Callable[[Arrays], Arrays]


class Opened(NamedTuple):
    """An engine: what it is, how to run it; and a package that can be asked about its steps."""

    about: str
    run: Run
    package: runtime.Model | None = None


def write_arrays(path: str, arrays: Mapping[str, NDArray[Any]]) -> None:
    """One npy after another in a file, the names first: a tensor's name can be anything."""
    with open(path, "wb") as file:
        np.save(file, np.array(json.dumps(list(arrays))), allow_pickle=False)
        for array in arrays.values():
            np.save(file, as_bits(array), allow_pickle=False)


def read_arrays(path: str) -> Arrays:
    with open(path, "rb") as file:
        names = json.loads(str(np.load(file, allow_pickle=False)))
        return {name: np.load(file, allow_pickle=False) for name in names}


def at_line(array: NDArray[Any]) -> NDArray[Any]:
    """A copy that begins at a cache line, as tensors of the engines' own do."""
    return shifted(array, 0)


def open_modelc(path: str, threads: int) -> Opened:
    model = runtime.load(path, threads=threads)
    return Opened(f"modelc {model.metadata['versions'].get('modelc', '')}".strip(), model.run, model)


def open_ort(
    path: str,
    threads: int,
    denormals_as_zero: bool = False,
    optimised: bool = True,
    whole_numbers: bool = True,
    exact: bool = False,
) -> Opened:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = level.ORT_ENABLE_ALL if optimised else level.ORT_DISABLE_ALL
    options.add_session_config_entry("session.intra_op.allow_spinning", "1")
    options.log_severity_level = 3
    if not whole_numbers:  # what is between DequantizeLinear and QuantizeLinear is computed in float32
        options.add_session_config_entry("session.disable_quant_qdq", "1")
    if denormals_as_zero:
        options.add_session_config_entry("session.set_denormal_as_zero", "1")
    if exact:  # weights of DequantizeLinear are made unsigned where products of signed ones saturate on this CPU
        options.add_session_config_entry("session.x64quantprecision", "1")
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [value.name for value in session.get_outputs()]
    input_names = {value.name for value in session.get_inputs()}

    def run(inputs: Arrays) -> Arrays:
        feeds = {name: array for name, array in inputs.items() if name in input_names}
        outputs = zip(names, session.run(names, feeds), strict=True)
        return {name: array for name, array in outputs if isinstance(array, np.ndarray)}  # lists of maps are none

    how = " with denormals as zero" * denormals_as_zero + " without optimisations" * (not optimised)
    how += " without products of bytes" * (not whole_numbers) + " with exact products of bytes" * exact
    return Opened(f"onnxruntime {ort.__version__}{how}", run)


def open_exact_ort(path: str, threads: int, optimised: bool) -> Opened:
    """With products of bytes that are exact on every CPU."""
    from modelc.frontend.witness.unsigned import with_unsigned_weights
    from modelc.scratch import TemporaryFolder

    with TemporaryFolder("ort") as folder:
        model = with_unsigned_weights(path, Path(folder) / "model.onnx")
        return open_ort(str(model), threads, optimised=optimised, exact=optimised)


def open_openvino(path: str, threads: int, precision: str = "f32") -> Opened:
    import openvino

    options = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": precision}
    core = openvino.Core()
    model = core.read_model(path)
    request: Any = None

    def run(inputs: Arrays) -> Arrays:
        nonlocal request
        if request is None:  # free dimensions are fixed by the first inputs, as they are for a package
            model.reshape({name: list(array.shape) for name, array in inputs.items()})
            request = core.compile_model(model, "CPU", options).create_infer_request()
        results = request.infer(inputs, share_inputs=True, share_outputs=True)
        return {port.get_any_name(): np.asarray(array) for port, array in results.items()}

    return Opened(f"openvino {openvino.__version__.partition('-')[0]}{f' in {precision}' * (precision != 'f32')}", run)


ENGINES: dict[str, Callable[[str, int], Opened]] = {
    "modelc": open_modelc,
    "ort": open_ort,
    "ort-daz": lambda path, threads: open_ort(path, threads, denormals_as_zero=True),
    "ort-exact": lambda path, threads: open_exact_ort(path, threads, optimised=True),
    "ort-plain": lambda path, threads: open_exact_ort(path, threads, optimised=False),
    "ort-unoptimised": lambda path, threads: open_ort(path, threads, optimised=False),
    "ort-real": lambda path, threads: open_ort(path, threads, whole_numbers=False),
    "openvino": open_openvino,
    "openvino-bf16": lambda path, threads: open_openvino(path, threads, "bf16"),
}


def run_each(run: Run, runs: Sequence[tuple[Sequence[str], str]], at_once: int) -> None:
    """Runs on the arrays in files, so many times side by side, and writes what comes of each to another file."""

    def one(files: tuple[Sequence[str], str]) -> None:
        inputs = {name: array for file in files[0] for name, array in read_arrays(file).items()}
        write_arrays(files[1], run(inputs))

    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(one, runs))


def timed(run: Run, inputs: Arrays, seconds: float) -> list[float]:
    """Milliseconds of every run until `seconds` are over, at least one; returns when the threads are at rest."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        start = time.perf_counter()
        run(inputs)
        times.append(1e3 * (time.perf_counter() - start))
    rest()
    return times


def rest() -> None:
    """Waits until no thread of this process computes: ONNX Runtime's go on asking for work for 40 ms after a run."""
    end = time.perf_counter() + LONGEST_REST
    while time.perf_counter() < end:
        before = time.process_time()
        time.sleep(STEP_OF_REST)
        if time.process_time() - before < STEP_OF_REST / 4:
            return


def steps_timed(package: runtime.Model, inputs: Arrays, seconds: float, variant: int) -> list[float]:
    """Milliseconds that each step takes in a run, all its calls together: medians of runs until `seconds` are over."""
    package.profile_start()
    runs = [[step.seconds for step in package.profile_read(variant)]]
    end = time.perf_counter() + seconds
    while len(runs) < 2 or time.perf_counter() < end:
        package.run_anew(inputs)
        runs.append([step.seconds for step in package.profile_read(variant)])
    package.profile_stop()
    medians: list[float] = np.median(np.diff(np.array(runs), axis=0), axis=0).tolist()
    return [1e3 * seconds_of_step for seconds_of_step in medians]


def watched(package: runtime.Model, inputs: Arrays, places: Sequence[Sequence[Any]], fd: int) -> Arrays:
    """Runs, and writes to `fd` what `places` (package/watch.py) hold, as run_main.c does with --watch: the number of
    the place and that of the call as int64, and the bytes; at last -1 and -1."""
    by_step: dict[tuple[int, bool], list[int]] = {}
    for number, (step, after, *_) in enumerate(places):
        by_step.setdefault((step, bool(after)), []).append(number)
    calls = [0] * len(places)

    def write(data: bytes | memoryview) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]

    def look(step: int, after: bool, frame: runtime.Frame) -> None:
        for number in by_step.get((step, after), ()):
            _, _, space, index, offset, stride, size, most = places[number]
            call = calls[number]
            calls[number] += 1
            if call >= most and call & (call - 1):
                continue
            base = getattr(frame, space if space in ("arena", "params", "made", "random") else f"{space}s")
            if space in ("input", "output", "slot"):
                base = base[index]
            address = (base or 0) + offset + frame.iteration * stride + (8 * index if space in ("size", "dim") else 0)
            write(struct.pack("<qq", number, call))
            if size:
                write(memoryview((ctypes.c_uint8 * size).from_address(address)).cast("B"))

    package.watch(look)
    try:
        return package.run(inputs)
    finally:
        package.watch(None)
        write(struct.pack("<qq", -1, -1))


def end_with_parent() -> None:
    """A thread that waits until the parent has ended or closed its end of the pipe, and then ends this process without
    asking the engines' threads, which may be in the middle of a run that never ends."""
    poll = select.poll()
    poll.register(sys.stdin.fileno(), 0)  # only that nobody can write any more
    with suppress(OSError, AttributeError):  # an old kernel, another system: the pipe has to do
        poll.register(os.pidfd_open(os.getppid()), select.POLLIN)

    def wait() -> None:
        poll.poll()
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


def serve() -> None:
    end_with_parent()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints must not be taken for an answer
    opened: Opened | None = None
    inputs: Arrays = {}
    habits: Habits | None = None
    for line in sys.stdin:
        [(command, given)] = json.loads(line).items()
        answer: dict[str, Any] = {}
        try:
            if command == "open":
                start = time.perf_counter()
                opened = ENGINES[given["engine"]](given["path"], given["threads"])
                answer["about"], answer["seconds"] = opened.about, time.perf_counter() - start
            assert opened is not None
            if command == "shapes":
                made = opened.run(read_arrays(given["inputs"]))
                answer["shapes"] = {name: (as_bits(array).dtype.name, array.shape) for name, array in made.items()}
            elif command == "run":
                inputs = {name: at_line(array) for name, array in read_arrays(given["inputs"]).items()}
                write_arrays(given["outputs"], opened.run(inputs))
            elif command == "run each":
                run_each(opened.run, given["runs"], given["at_once"])
            elif command == "watch":
                assert opened.package is not None
                inputs = {name: at_line(array) for name, array in read_arrays(given["inputs"]).items()}
                outputs = watched(opened.package, inputs, given["places"], given["fd"])
                write_arrays(given["outputs"], outputs)
            elif command == "keep":
                fed, made_of_it = ([read_arrays(file) for file in given[kind]] for kind in ("feeds", "outputs"))
                habits = Habits(given["path"], Judged(feeds=fed, outputs=made_of_it, **given["about"]))
            elif command == "run again":
                assert habits is not None
                answer["made"], answer["differs"] = habits.use(Setting(*given["setting"]))
            elif command == "time":
                run = opened.run if opened.package is None else opened.package.run_anew
                answer["ms"] = timed(run, inputs, given["seconds"])
            elif command == "steps":
                assert opened.package is not None
                answer["ms"] = steps_timed(opened.package, inputs, given["seconds"], given["variant"])
            elif command == "reset":
                assert opened.package is not None
                opened.package.reset()
            elif command == "count":
                assert opened.package is not None
                opened.package.profile_start()
            elif command == "calls":
                assert opened.package is not None
                answer["calls"] = [step.calls for step in opened.package.profile_read(given["variant"])]
        except Exception as error:
            sentence = isinstance(error, ImportError | ModelError)
            answer = {"error": f"{error}" if sentence else f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def fork_engines(control: socket.socket) -> None:
    """Answers until the other end of the socket is closed, or the process that has it ends."""
    poll, parent = select.poll(), -1
    poll.register(control, select.POLLIN)
    with suppress(OSError, AttributeError):  # whoever else was forked from the parent may have its end of the socket
        parent = os.pidfd_open(os.getppid())
        poll.register(parent, select.POLLIN)
    while [ready for ready, _ in poll.poll()] == [control.fileno()]:
        head, files, _, _ = socket.recv_fds(control, HEAD.size, FILES)
        if len(head) < HEAD.size:
            return
        text = b""
        while len(text) < HEAD.unpack(head)[0]:
            text += control.recv(1 << 16)
        [(command, given)] = json.loads(text).items()
        if command == "fork" and (child := os.fork()) == 0:
            control.close()
            if parent >= 0:
                os.close(parent)
            _become(files[:3], given)
            serve()
            os._exit(0)
        answer = {"pid": child, "pipe": files[3]} if command == "fork" else {"status": os.waitpid(given, 0)[1]}
        for file in files:
            os.close(file)
        control.sendall(json.dumps(answer).encode() + b"\n")


def _become(standard: Sequence[int], given: Mapping[str, Any]) -> None:
    """Makes a forked process one that was started by whoever asked for it."""
    os.setsid()
    for number, file in enumerate(standard):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(given["environment"])
    with suppress(OSError):
        os.chdir(given["folder"])
    with suppress(OSError, AttributeError):
        os.sched_setaffinity(0, given["cpus"])


if __name__ == "__main__":
    if len(sys.argv) > 1:
        fork_engines(socket.socket(fileno=int(sys.argv[1])))
    else:
        serve()

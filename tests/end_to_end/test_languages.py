"""Packages from other interfaces: ONNX Runtime's session, DLPack, C++."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import small_model as small
from tiny_package import NATIVE_TRIPLE, check_outputs, inputs_of, spec_of

from modelc import runtime
from modelc.package import Form, find_toolchain, write_package

SCRIPT = """
import numpy as np
options = SessionOptions()
options.intra_op_num_threads = 1
session = InferenceSession(path, options, providers=["CPUExecutionProvider"])
inputs, outputs = session.get_inputs(), session.get_outputs()
described = [(t.name, t.type) for t in (*inputs, *outputs)]
x = np.random.default_rng(0).standard_normal((1, 3, 20, 24)).astype(np.float32)
(y,) = session.run(None, {inputs[0].name: x})
(again,) = session.run([outputs[0].name], {"x": x})
binding = session.io_binding()
binding.bind_cpu_input("x", x)
binding.bind_output("y")
session.run_with_iobinding(binding)
(bound,) = binding.copy_outputs_to_cpu()
assert np.array_equal(y, again) and np.array_equal(y, bound)
"""


def test_a_script_for_onnx_runtime_changes_its_import_alone() -> None:
    results = []
    for module, path in ((onnxruntime, small.model()), (runtime, small.package())):
        names = {name: getattr(module, name) for name in ("InferenceSession", "SessionOptions")}
        scope = {**names, "path": str(path)}
        exec(SCRIPT, scope)
        results.append((scope["described"], scope["y"]))
    assert results[0][0] == results[1][0]
    np.testing.assert_allclose(results[0][1], results[1][1], rtol=1e-3, atol=1e-5)


def test_a_session_says_shapes_and_refuses_what_it_has_not(package: Path) -> None:
    session = runtime.InferenceSession(package, threads=1)
    assert [t.shape for t in session.get_inputs()] == [[None, 64], [5]]
    assert [t.type for t in session.get_outputs()] == ["tensor(float)", "tensor(int64)"]
    assert session.get_providers() == ["CPUExecutionProvider"]
    with pytest.raises(runtime.ModelError, match="there is no output 'z'; the model's outputs are y, total"):
        session.run(["z"], inputs_of())
    with pytest.raises(runtime.ModelError, match="packages run on the CPU"):
        runtime.InferenceSession(package, providers=["CUDAExecutionProvider"])
    with pytest.raises(runtime.ModelError, match="the path of a package, and not on bytes"):
        runtime.InferenceSession(b"model")  # type: ignore[arg-type]
    session.close()


def test_arrays_go_in_and_out_by_dlpack(package: Path) -> None:
    class Foreign:
        """An array of another library, which has DLPack's protocol alone."""

        def __init__(self, array: np.ndarray) -> None:
            self.array = array

        def __dlpack__(self, **options: object) -> object:
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self) -> tuple[int, int]:
            return self.array.__dlpack_device__()

    session, inputs = runtime.InferenceSession(package), inputs_of()
    y, total = session.run(None, {"x": Foreign(inputs["x"]), "mask": inputs["mask"]})
    check_outputs({"y": y, "total": total}, inputs)
    assert np.from_dlpack(y).ctypes.data == y.ctypes.data
    binding, place = session.io_binding(), np.empty((40, 64), np.float32)
    for name, array in inputs.items():
        binding.bind_cpu_input(name, array)
    binding.bind_ortvalue_output("y", runtime.OrtValue.ortvalue_from_numpy(place))
    session.run_with_iobinding(binding)
    assert np.array_equal(place, y)


CPP = r"""
#include <cstdio>
#include <vector>

#include "face.hpp"

int main(int, char **argv) {
    try {
        face::model model(argv[1], 2);
        std::vector<float> x(40 * 64, 1.0f), y(40 * 64);
        std::vector<unsigned char> mask{1, 0, 1, 1, 0};
        std::int64_t total = 0;
        model.run({x, mask}, {y, {&total, 1}});
        face::model moved = std::move(model);
        std::printf("%d %s %d %zu\n", (int)total, moved.input(0)->name, moved.threads(), moved.output(0)->bytes);
        moved.run({mask, x}, {y, {&total, 1}});
    } catch (const modelc::error &e) {
        std::printf("%d %s\n", (int)e.status, e.what());
    }
    try {
        face::model model("/nowhere");
    } catch (const modelc::error &e) {
        std::printf("%d %s\n", (int)e.status, e.what());
    }
}
"""


@pytest.mark.skipif(not shutil.which("c++"), reason="no C++ compiler")
def test_cpp_has_handles_that_close_and_errors_that_are_thrown(tmp_path: Path) -> None:
    path = write_package(spec_of(form=Form.of("net", "face")), tmp_path / "p").path
    (tmp_path / "app.cpp").write_text(CPP)
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-I", str(path), f"-L{path}", f"-Wl,-rpath,{path}"]
    subprocess.run(["c++", *flags, "app.cpp", "-lface", "-o", "app"], cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "app", path], capture_output=True, text=True, check=True)
    first, second, third = done.stdout.splitlines()
    assert first == "3 x 2 10240"
    assert second == "1 input 0 ('x') has 10240 bytes, and a buffer of 5 was given"
    assert third.startswith("2 cannot open /nowhere/manifest.json")


BARE = r"""
#include <cstdio>

#include "bare.hpp"

alignas(64) static unsigned char memory[1 << 20];

int main() {
    std::vector<float> x(40 * 64, 1.0f), y(40 * 64), z(40 * 64);
    std::vector<unsigned char> mask{1, 0, 1, 1, 0};
    std::int64_t total = 0;
    try {
        bare::model own, given(memory);
        own.run({x, mask}, {y, {&total, 1}});
        own = std::move(given);
        own.run({x, mask}, {z, {&total, 1}});
        std::printf("%d %d\n", (int)total, y == z);
        x.resize(7 * 64);
        int variant = own.run_shaped({{7, 64}, {5}}, {x, mask}, {y, {&total, 1}});
        std::printf("%d %d\n", variant, (int)own.output_shape(0, variant)[0]);
        auto steps = own.profile();
        std::printf("%d %s %g %d\n", (int)steps.size(), steps[0].name, steps[0].bytes, (int)steps[0].calls);
        own.seed(7);
        int left = 2; // questions, before the steps of a run
        own.poll([&left] { return !left--; });
        try {
            own.run({x, mask}, {y, {&total, 1}}, variant);
        } catch (const modelc::error &e) {
            std::printf("%d %s\n", (int)e.status, e.what());
        }
        try {
            own.time_limit(std::chrono::seconds(1));
        } catch (const modelc::error &e) {
            std::printf("%d %s\n", (int)e.status, e.what());
        }
        bare::model crooked(memory + 1);
    } catch (const modelc::error &e) {
        std::printf("%d %s\n", (int)e.status, e.what());
    }
}
"""


@pytest.mark.skipif(not shutil.which("c++"), reason="no C++ compiler")
def test_cpp_has_free_standing_models_in_memory_of_their_own_or_the_programs(tmp_path: Path) -> None:
    form = Form.of("net", "bare", ("a",), freestanding=True)
    path = write_package(spec_of(form=form), tmp_path / "p").path
    (tmp_path / "app.cpp").write_text(BARE)
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-I", str(path)]
    subprocess.run(["c++", *flags, "app.cpp", str(path / "libbare.a"), "-lm", "-o", "app"], cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "app"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "3 1",
        "1 7",
        "4 scale 20480 0",
        "10 the run was interrupted",
        "1 a free-standing model has no time_limit",
        "1 init wants memory that is aligned to 64 bytes, not this",
    ]
    assert find_toolchain(NATIVE_TRIPLE).command

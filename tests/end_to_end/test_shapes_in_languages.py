"""Programs in C++, Rust and JavaScript say shapes, and get what Python gets: variants, sizes that depend on data, padding."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from language_models import expected, packages
from runtime_driver import skip_without_flag

CARGO = shutil.which("cargo") or shutil.which("cargo", path=str(Path.home() / ".cargo/bin"))

needs_cpp = pytest.mark.skipif(not shutil.which("c++"), reason="no C++ compiler")


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return packages(tmp_path_factory.mktemp("native"), emit=("so", "rust"))


CPP = r"""
#include <array>
#include <cstdio>
#include <fcntl.h>
#include <fstream>
#include <iterator>
#include <thread>
#if __cplusplus >= 202002L
#include <span>
#endif
#include <unistd.h>

#include "changing.hpp"
#include "padded.hpp"

template <class Numbers>
static void words(const Numbers &numbers, const char *end) {
    const char *space = "";
    for (auto n : numbers) {
        if constexpr (std::is_same_v<decltype(n), float>) std::printf("%s%.6f", space, n);
        else std::printf("%s%lld", space, (long long)n);
        space = " ";
    }
    std::printf("%s", end);
}

template <class Call>
static void refused(const Call &call) {
    try {
        call();
        std::printf("not refused\n");
    } catch (const modelc::error &e) {
        std::printf("%d %s\n", (int)e.status, e.what());
    }
}

static float x[16];

struct results {
    float twice[16], noise[3];
    std::array<std::int64_t, 32> places;
    std::vector<float> total = {0};
};

static void run(changing::model &model, const modelc::shape &shape) {
    results r;
#if __cplusplus >= 202002L
    std::span<const float> given(x);
#else
    const float(&given)[16] = x;
#endif
    int variant = model.run_shaped({shape}, {given}, {r.twice, r.places, r.total, r.noise});
    modelc::shape found = model.output_shape(1, variant);
    std::vector<std::int64_t> places;
    for (std::int64_t row = 0; row < found[0]; row++)
        places.insert(places.end(), &r.places[16 * row], &r.places[16 * row] + found[1]);
    std::printf("%d | ", variant);
    words(r.twice, " | ");
    std::printf("%dx%d ", (int)found[0], (int)found[1]);
    words(places, " | ");
    words(r.total, " | ");
    words(r.noise, "\n");
}

static void pad(padded::model &model, std::int64_t length) {
    std::vector<std::int64_t> ids, next(16);
    std::vector<float> pairs, sums(16);
    for (int i = 0; i < length; i++) ids.push_back(i);
    for (int i = 0; i < 2 * length; i++) pairs.push_back(float(i));
    std::vector<modelc::input> inputs{ids, pairs};
    std::array<modelc::output, 2> outputs{next, sums};
    std::vector<modelc::shape> shapes{{1, length}, {length, 2}};
    int variant = model.run_shaped(shapes, inputs, outputs);
    next.resize(std::size_t(model.output_shape(0, variant)[1]));
    sums.resize(std::size_t(model.output_shape(1, variant)[0]));
    std::printf("%d | ", variant);
    words(next, " | ");
    words(sums, "\n");
}

static void share_out(int count, const modelc::task &task) {
    std::vector<std::thread> threads;
    for (int i = 0; i < count; i++) threads.emplace_back([&task, i] { task(i); });
    for (std::thread &thread : threads) thread.join();
}

int main(int, char **argv) {
    for (int i = 0; i < 16; i++) x[i] = float(i - 9);
    const std::string folder = argv[1], params = folder + "/params.bin";
    modelc::options options(2);
    options.seed = 7;
    options.check = true;
    options.parallel_for = share_out;
    changing::model model(folder, options);
    run(model, {4, 4});
    run(model, {2, 8});
    model.reset();
    model.seed(7);
    run(model, {4, 4});
    padded::model other(argv[2]);
    for (int length : {3, 11, 16}) pad(other, length);

    std::ifstream file(params, std::ios::binary);
    std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    std::vector<char> room(bytes.size() + 64);
    char *place = room.data() + (64 - reinterpret_cast<std::uintptr_t>(room.data()) % 64) % 64;
    std::copy(bytes.begin(), bytes.end(), place);
    {
        changing::model in_memory(modelc::in_memory{{place, bytes.size()}}, options);
        run(in_memory, {4, 4});
        int fd = ::open(params.c_str(), O_RDONLY);
        in_memory = changing::model(modelc::in_file{fd}, options);
        ::close(fd);
        run(in_memory, {4, 4});
    }

    results r;
    auto outputs = [&r] { return modelc::buffers<modelc::output>{r.twice, r.places, r.total, r.noise}; };
    model.profile_start();
    model.time_limit(std::chrono::hours(1));
    model.run({x}, outputs(), 1);
    model.profile_stop();
    std::size_t calls = 0;
    for (const modelc_step_profile &step : model.profile(1)) calls += step.calls;
    std::printf("%d\n", calls == model.profile(1).size() && calls > 2);

    refused([&] { model.fit({{3, 5}}); });
    refused([&] { model.fit({{2, -8}}); });
    refused([&] { model.fit({{16}}); });
    refused([&] { model.fit({}); });
    refused([&] { model.run_shaped({{4, 4}}, {std::vector<float>(15)}, outputs()); });
    refused([&] { model.run_shaped({{4, 4}}, {std::vector<std::int32_t>(16)}, outputs()); });
    refused([&] { model.run_shaped({{4, 4}}, {x}, {r.twice, r.places, r.total, {r.noise, 2}}); });
    refused([&] { model.run({x}, {r.twice}); });
    refused([&] { model.run({x}, outputs(), 2); });
    refused([&] { model.output_shape(9); });
    refused([&] { other.run_shaped({{1, 5}, {6, 2}}, {r.places, x}, {r.places, x}); });
    refused([&] { model.time_limit(std::chrono::nanoseconds(-1)); });
    refused([&] { changing::model(modelc::in_memory{{place + 1, bytes.size()}}); });
    model.poll([] { return true; });
    model.run({x}, outputs());
    model.poll(nullptr);
    model.stop();
    refused([&] { model.run({x}, outputs()); });
    refused([&] { model.output_shape(1); });
    model.stop(false);
    model.run({x}, outputs());
    model.close();
    refused([&] { model.run({x}, outputs()); });
    refused([&] { model.reset(); });
    refused([&] { model.output_shape(1); });
}
"""

NO_VARIANT = "it was compiled for x [2, 8]; x [4, 4]"
REFUSED_IN_CPP = [
    f"1 the model was given x [3, 5]; {NO_VARIANT}",
    f"1 the model was given x [2, -8]; {NO_VARIANT}",
    "1 a shape of 1 extents was given for input 'x', which has 2",
    "1 0 shapes were given; the model has 1 inputs",
    "1 input 0 ('x') has 64 bytes, and a buffer of 60 was given",
    "1 input 0 ('x') has the dtype 1 of modelc_dtype, and a buffer of 7 was given",
    "1 output 3 ('noise') has 12 bytes, and a buffer of 8 was given",
    "1 variant 0 has 1 inputs and 4 outputs",
    "1 variant 2 has 0 inputs and 0 outputs",
    "1 the shape of output 9 was asked for, into a place; variant 0 has 4 outputs",
    "1 the model was given ids [1, 5], x [6, 2]; it was compiled for ids [1, 8], x [8, 2]; ids [1, 16], x [16, 2]; inputs "
    "may be shorter, all of them alike, along seq",
    "1 a time limit is less than 0",
    "1 the memory begins 1 bytes behind a multiple of 64; parameters are aligned to that",
    "9 the run was stopped",
    "1 the shape of output 'places' depends on what is run: it is known after a run of variant 0 that succeeds",
    "1 the model is closed",
    "1 the handle is NULL",
    "1 the handle is NULL",
]


@needs_cpp
@pytest.mark.parametrize("flag", ["-std=c++17", "-std=c++20"])
def test_cpp(native: tuple[Path, Path], tmp_path: Path, flag: str) -> None:
    sanitizer = "-fsanitize=address,undefined"
    skip_without_flag(tmp_path, sanitizer)
    (tmp_path / "app.cpp").write_text(CPP)
    places = [word for path in native for word in (f"-I{path}", f"-L{path}", f"-Wl,-rpath,{path}")]
    flags = [flag, "-Wall", "-Wextra", "-Werror", "-g", sanitizer, "-fno-sanitize-recover=all", *places]
    command = ["c++", *flags, "app.cpp", "-lchanging", "-lpadded", "-pthread", "-o", "app"]
    subprocess.run(command, cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "app", *native], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    lines = expected(*native)
    assert done.stdout.splitlines() == [*lines, lines[0], lines[0], "1", *REFUSED_IN_CPP]

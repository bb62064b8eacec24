"""Programs in C++ and Rust say shapes, and get what Python gets: variants, sizes that depend on data, any length."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from language_models import NO_LENGTH, NO_SHAPE, expected, packages
from runtime_driver import skip_without_flag

CARGO = shutil.which("cargo") or shutil.which("cargo", path=str(Path.home() / ".cargo/bin"))

needs_cpp = pytest.mark.skipif(not shutil.which("c++"), reason="no C++ compiler")


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return packages(tmp_path_factory.mktemp("native"), emit=("so", "rust") if CARGO else ("so",))


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
#include "lengths.hpp"

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
    float weighted[16], noise[3];
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
    int variant = model.run_shaped({shape}, {given}, {r.weighted, r.places, r.total, r.noise});
    modelc::shape extents = model.output_shape(1, variant);
    std::vector<std::int64_t> places;
    for (std::int64_t row = 0; row < extents[0]; row++)
        places.insert(places.end(), &r.places[16 * row], &r.places[16 * row] + extents[1]);
    std::printf("%d | ", variant);
    words(r.weighted, " | ");
    std::printf("%dx%d ", (int)extents[0], (int)extents[1]);
    words(places, " | ");
    words(r.total, " | ");
    words(r.noise, "\n");
}

static void of_length(lengths::model &model, std::int64_t length) {
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
    lengths::model other(argv[2]);
    for (int length : {3, 11, 16}) of_length(other, length);

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
    auto outputs = [&r] { return modelc::buffers<modelc::output>{r.weighted, r.places, r.total, r.noise}; };
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
    refused([&] { model.run_shaped({{4, 4}}, {x}, {r.weighted, r.places, r.total, {r.noise, 2}}); });
    refused([&] { model.run({x}, {r.weighted}); });
    refused([&] { model.run({x}, outputs(), 2); });
    refused([&] { model.output_shape(9); });
    refused([&] { other.run_shaped({{1, 5}, {6, 2}}, {r.places, x}, {r.places, x}); });
    refused([&] { model.time_limit(std::chrono::nanoseconds(-1)); });
    refused([&] { changing::model(modelc::in_memory{{place + 1, bytes.size()}}); });
    model.time_limit(std::chrono::nanoseconds(1));
    refused([&] { model.run({x}, outputs()); });
    model.time_limit(std::chrono::nanoseconds(0));
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

REFUSED_IN_CPP = [
    f"1 the model was given x [3, 5]; {NO_SHAPE}",
    f"1 the model was given x [2, -8]; {NO_SHAPE}",
    "1 a shape of 1 extents was given for input 'x', which has 2",
    "1 0 shapes were given; the model has 1 inputs",
    "1 input 0 ('x') has 64 bytes, and a buffer of 60 was given",
    "1 input 0 ('x') is float32, and a buffer of int32 was given",
    "1 output 3 ('noise') has 12 bytes, and a buffer of 8 was given",
    "1 variant 0 has 1 inputs and 4 outputs",
    "1 variant 2 was asked for; the package has 2",
    "1 the shape of output 9 was asked for, into a place; variant 0 has 4 outputs",
    f"1 {NO_LENGTH}",
    "1 a time limit is less than 0",
    "1 the memory begins 1 bytes behind a multiple of 64; parameters are aligned to that",
    "11 the run lasted longer than its limit of 1 nanoseconds",
    "9 the run was stopped",
    "1 the shape of output 'places' depends on what is run: it is known after a run of variant 0 that succeeds",
    "1 the model is closed",
    "1 the handle is NULL",
    "1 the handle is NULL",
]


@needs_cpp
def test_cpp(native: tuple[Path, Path], tmp_path: Path) -> None:
    """It is run as C++20, where it has spans, and compiles as C++17."""
    sanitizer = "-fsanitize=address,undefined"
    skip_without_flag(tmp_path, sanitizer)
    (tmp_path / "app.cpp").write_text(CPP)
    places = [word for path in native for word in (f"-I{path}", f"-L{path}", f"-Wl,-rpath,{path}")]
    command = ["c++", "-Wall", "-Wextra", "-Werror", "-g", *places, "app.cpp"]
    subprocess.run([*command, "-std=c++17", "-fsyntax-only"], cwd=tmp_path, check=True)
    flags = ["-std=c++20", sanitizer, "-fno-sanitize-recover=all"]
    libraries = ["-lchanging", "-llengths", "-pthread", "-o", "app"]
    subprocess.run([*command, *flags, *libraries], cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "app", *native], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    lines = expected(*native)
    assert done.stdout.splitlines() == [*lines, lines[0], lines[0], "1", *REFUSED_IN_CPP]


RUST = r"""
use std::{ffi::CString, fmt::Display, fs, os::fd::AsRawFd, thread, time::Duration};

fn words<T: Display>(numbers: impl IntoIterator<Item = T>, places: usize) -> String {
    numbers.into_iter().map(|n| format!("{n:.places$}")).collect::<Vec<_>>().join(" ")
}

fn refused<T>(result: Result<T, impl Display>) {
    match result {
        Ok(_) => println!("not refused"),
        Err(error) => println!("{error}"),
    }
}

#[derive(Default)]
struct Results {
    weighted: [f32; 16],
    places: [i64; 32],
    total: [f32; 1],
    noise: [f32; 3],
}

impl Results {
    fn buffers(&mut self) -> [&mut [u8]; 4] {
        [
            changing::bytes_of_mut(&mut self.weighted),
            changing::bytes_of_mut(&mut self.places),
            changing::bytes_of_mut(&mut self.total),
            changing::bytes_of_mut(&mut self.noise),
        ]
    }
}

fn x() -> Vec<f32> {
    (0..16).map(|i| (i - 9) as f32).collect()
}

fn run(model: &mut changing::Model, shape: [i64; 2]) {
    let mut r = Results::default();
    let variant = model.run_shaped([&shape], [changing::bytes_of(&x())], r.buffers()).unwrap();
    let extents = model.output_shape(variant, 1).unwrap();
    let places = (0..2).flat_map(|row| r.places[16 * row..][..extents[1] as usize].to_vec());
    let (weighted, total, noise) = (words(r.weighted, 6), words(r.total, 6), words(r.noise, 6));
    println!("{variant} | {weighted} | {}x{} {} | {total} | {noise}", extents[0], extents[1], words(places, 0));
}

fn of_length(model: &mut lengths::Model, length: i64) {
    let (ids, mut next, mut sums) = ((0..length).collect::<Vec<_>>(), [0i64; 16], [0f32; 16]);
    let pairs: Vec<f32> = (0..2 * length).map(|i| i as f32).collect();
    let inputs = [lengths::bytes_of(&ids), lengths::bytes_of(&pairs)];
    let outputs = [lengths::bytes_of_mut(&mut next), lengths::bytes_of_mut(&mut sums)];
    let variant = model.run_shaped([&[1, length], &[length, 2]], inputs, outputs).unwrap();
    let mut extent = |output, axis: usize| model.output_shape(variant, output).unwrap()[axis] as usize;
    println!("{variant} | {} | {}", words(&next[..extent(0, 1)], 0), words(&sums[..extent(1, 0)], 6));
}

fn share_out(count: i32, task: &(dyn Fn(i32) + Sync)) {
    thread::scope(|scope| {
        for index in 0..count {
            scope.spawn(move || task(index));
        }
    });
}

fn main() {
    let folder = CString::new("changing.modelc").unwrap();
    let options = || changing::Options { threads: 2, seed: 7, check: true, parallel_for: Some(Box::new(share_out)) };
    let mut model = changing::Model::open_with(Some(&folder), options()).unwrap();
    run(&mut model, [4, 4]);
    run(&mut model, [2, 8]);
    model.reset().unwrap();
    model.seed(7).unwrap();
    run(&mut model, [4, 4]);
    let mut other = lengths::Model::open(Some(c"lengths.modelc"), 1).unwrap();
    [3, 11, 16].iter().for_each(|&length| of_length(&mut other, length));

    let bytes = fs::read("changing.modelc/params.bin").unwrap();
    let room: &'static mut [u8] = vec![0; bytes.len() + 64].leak();
    let start = room.as_ptr().align_offset(64);
    room[start..start + bytes.len()].copy_from_slice(&bytes);
    let place: &'static [u8] = &room[start..start + bytes.len()];
    run(&mut changing::Model::open_memory(place, options()).unwrap(), [4, 4]);
    let file = fs::File::open("changing.modelc/params.bin").unwrap();
    let mut in_file = changing::Model::open_fd(file.as_raw_fd(), 0, 0, options()).unwrap();
    drop(file);
    run(&mut in_file, [4, 4]);

    let (x, mut r) = (x(), Results::default());
    let x = changing::bytes_of(&x);
    model.profile_start().unwrap();
    model.time_limit(Some(Duration::from_secs(3600))).unwrap();
    model.run(1, [x], r.buffers()).unwrap();
    model.profile_stop().unwrap();
    let steps: Vec<_> = (0..model.steps(1)).map(|step| model.profile(1, step).unwrap()).collect();
    println!("{}", steps.len() > 2 && steps.iter().all(|step| step.calls == 1 && !step.name.is_empty()));

    refused(model.fit([&[3, 5]]));
    refused(model.fit([&[16]]));
    refused(model.run_shaped([&[4, 4]], [&x[4..]], r.buffers()));
    let mut short = [0f32; 2];
    let mut buffers = r.buffers();
    buffers[3] = changing::bytes_of_mut(&mut short);
    refused(model.run(0, [x], buffers));
    refused(model.run(2, [x], r.buffers()));
    refused(model.output_shape(0, 9));
    refused(model.output_shape(5, 0));
    println!("{}", model.profile(0, 99).is_err());
    refused(changing::Model::open_memory(&room[start + 1..], options()));
    refused(changing::Model::open_fd(-1, 0, 0, options()));
    model.stopper().stop(true);
    refused(model.run(0, [x], r.buffers()));
    refused(model.output_shape(0, 1));
}
"""

REFUSED_IN_RUST = [
    f"the model was given x [3, 5]; {NO_SHAPE}",
    "a shape of 1 extents was given for input 'x', which has 2",
    "a buffer of 60 bytes was given for input 'x' of 64 bytes in the shape [4, 4]",
    "a buffer of 8 bytes was given for output 'noise' of 12 bytes in the shape [3]",
    "variant 2 was asked for; the package has 2",
    "the shape of output 9 was asked for, into a place; variant 0 has 4 outputs",
    "variant 5 was asked for; the package has 2",
    "true",
    "the memory has 127 bytes instead of the 64 of the package's params.bin",
    "descriptor -1 is of no file that can be mapped: Bad file descriptor",
    "the run was stopped",
    "the shape of output 'places' depends on what is run: it is known after a run of variant 0 that succeeds",
]


@pytest.mark.skipif(not CARGO, reason="Rust is not installed")
def test_rust(native: tuple[Path, Path], tmp_path: Path) -> None:
    for path in native:
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src/main.rs").write_text(RUST)
    crates = "".join(f'{path.stem} = {{ path = "{path.name}" }}\n' for path in native)
    package = '[package]\nname = "shapes"\nversion = "0.1.0"\nedition = "2021"\n[dependencies]\n'
    (tmp_path / "Cargo.toml").write_text(package + crates)
    path = f"{Path(str(CARGO)).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "RUSTFLAGS": "-Dwarnings"}
    command = [str(CARGO), "run", "-q", "--offline"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, env=env)
    assert (done.returncode, done.stderr) == (0, "")
    lines, said = expected(*native), done.stdout.splitlines()
    assert said[:9] == [*lines, lines[0], lines[0], "true"]
    assert said[9:] == REFUSED_IN_RUST

"""Programs that CMake and pkg-config link with a package, which has been moved since it was made."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from tiny_package import NATIVE_TRIPLE, spec_of

from modelc.package import Form, find_toolchain, write_package
from modelc.package.texts import package_texts

APP = r"""
#include <stdio.h>
#include "face.h"

int main(int argc, char **argv) {
    modelc_handle *model;
    float x[40 * 64] = {0}, y[40 * 64];
    unsigned char mask[5] = {1, 0, 1, 1, 0};
    long long total = 0;
    const void *inputs[] = {x, mask};
    void *outputs[] = {y, &total};
    if (argc < 2 || face_open(argv[1], NULL, &model) || face_run(model, 0, inputs, outputs)) return 1;
    printf("%lld\n", total);
    face_close(model);
    return 0;
}
"""
BARE = r"""
#include <stdio.h>
#include "face.h"

static _Alignas(64) char memory[1 << 20];

int main(void) {
    modelc_handle *model = face_init(memory);
    printf("%d\n", model && face_memory_size() < sizeof memory ? 3 : 0);
    return 0;
}
"""
CMAKE = """
cmake_minimum_required(VERSION 3.12)
project(app C)
enable_testing()
find_package(face CONFIG REQUIRED)
find_package(face CONFIG REQUIRED) # twice, as two parts of a program may
foreach(target TARGETS)
    add_executable(app_${target} app.c)
    target_link_libraries(app_${target} face::${target})
    add_test(NAME ${target} COMMAND app_${target} "${face_PACKAGE}")
    set_tests_properties(${target} PROPERTIES PASS_REGULAR_EXPRESSION "^3\\n$")
endforeach()
"""
FORMS = {
    "shared": (("so",), False),
    "static": (("a",), False),
    "object": (("o",), False),
    "all": (("so", "a", "o"), False),
    "bare": (("a", "o"), True),
}


def moved(folder: Path, kind: str) -> tuple[Path, tuple[str, ...]]:
    """A package that lies elsewhere, under a name with a space; and what it is emitted as."""
    emit, freestanding = FORMS[kind]
    made = write_package(spec_of(form=Form.of("net", "face", emit, freestanding=freestanding)), folder / "made").path
    (folder / "app.c").write_text(BARE if freestanding else APP)
    (folder / "other place").mkdir()
    return Path(shutil.move(made, folder / "other place/face.modelc")), emit


@pytest.mark.skipif(not shutil.which("cmake"), reason="CMake is not installed")
@pytest.mark.parametrize("kind", FORMS)
def test_cmake(tmp_path: Path, kind: str) -> None:
    package, emit = moved(tmp_path, kind)
    targets = ["face", *(f"face_{other}" for other in emit[1:])]
    (tmp_path / "CMakeLists.txt").write_text(CMAKE.replace("TARGETS", " ".join(targets)))
    configured = ["cmake", "-S", ".", "-B", "build", f"-DCMAKE_PREFIX_PATH={package.parent}"]
    for command in (configured, ["cmake", "--build", "build"], ["ctest", "--test-dir", "build", "--no-tests=error"]):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    assert f"100% tests passed, 0 tests failed out of {len(targets)}" in done.stdout


@pytest.mark.skipif(not shutil.which("pkg-config"), reason="pkg-config is not installed")
@pytest.mark.parametrize("kind", FORMS)
def test_pkg_config(tmp_path: Path, kind: str) -> None:
    package, _ = moved(tmp_path, kind)
    (tmp_path / "build.sh").write_text(
        'set -e\nexport PKG_CONFIG_PATH="$1"\npkg-config --validate face\n'
        'eval "$2 app.c $(pkg-config --cflags --libs face) -o app"\n'
        'export LD_LIBRARY_PATH="$1"\neval "./app $(pkg-config --variable=package face)"\n'
    )
    compiler = " ".join(find_toolchain(NATIVE_TRIPLE).command)
    command = ["sh", "build.sh", str(package), compiler]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")


@pytest.mark.parametrize(
    ("triple", "emit", "lines"),
    [
        ("x86_64-windows-gnu", ("so",), ['IMPORTED_LOCATION "${CMAKE_CURRENT_LIST_DIR}/face.dll"', "/face.lib"]),
        ("aarch64-macos", ("so",), ['IMPORTED_SONAME "@rpath/libface.dylib"', "/libface.dylib"]),
        ("aarch64-linux-android", ("a",), ['INTERFACE_LINK_LIBRARIES "m"', "/libface.a"]),
    ],
)
def test_other_systems(triple: str, emit: tuple[str, ...], lines: list[str]) -> None:
    texts = package_texts(spec_of(form=Form.of("net", "face", emit, triple=triple)))
    assert all(line in texts["faceConfig.cmake"] for line in lines) and "pthread" not in texts["face.pc"]

"""Packages within an application: parameters in its memory or its files, its threads, seeds."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from runtime_driver import build_driver, skip_without_flag
from tiny_package import NATIVE_TRIPLE, spec_of

from modelc.package import Form, find_toolchain, write_package

DRIVER = Path(__file__).with_name("test_embedding_driver.c")


@pytest.mark.parametrize("flag", ["-fsanitize=address,undefined", "-fsanitize=thread"])
def test_memory_descriptors_and_threads_of_the_applications(package: Path, tmp_path: Path, flag: str) -> None:
    skip_without_flag(tmp_path, flag)
    driver = build_driver(DRIVER, tmp_path, package, flag, "-fno-sanitize-recover=all")
    environment = {**os.environ, "TSAN_OPTIONS": "halt_on_error=1"}
    command = [driver, package, tmp_path / "container"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "3 the memory has 319 bytes instead of the 320 of the package's params.bin",
        "3 the memory has 321 bytes instead of the 320 of the package's params.bin",
        "1 the memory begins 4 bytes behind a multiple of 64; parameters are aligned to that",
        "1 open_memory wants the parameters, not NULL",
        "1 open wants a place for the handle, not NULL",
        "3 the parameters are damaged, or of another build: their checksum differs from the one in the library",
        "1 what the descriptor gives begins 36 bytes behind a multiple of 64; parameters are aligned to that",
        "3 what the descriptor gives has 384 bytes instead of the 320 of the package's params.bin",
        "3 320 bytes at 5000 were named of a file that has 4608",
        "3 0 bytes at 18446744073709551615 were named of a file that has 4608",
        "2 descriptor -1 is of no file that can be mapped: Bad file descriptor",
        "2 descriptor PIPE is of no file that can be mapped: Illegal seek",
        "1 the handle is NULL",
        "1 the handle is NULL",
        "ok",
    ]


EMBEDDED = r"""
#include <stdio.h>
#include "face.h"

int main(void) {
    static _Alignas(64) unsigned char params[320];
    modelc_handle *model;
    modelc_status status = face_open_memory(params, sizeof params, NULL, &model);
    printf("%d %s\n", (int)status, face_last_error());
    status = face_open_fd(0, 0, 0, NULL, &model);
    printf("%d %s\n", (int)status, face_last_error());
    return face_open(NULL, NULL, &model);
}
"""


def test_parameters_in_the_library_are_nowhere_else(tmp_path: Path) -> None:
    path = write_package(spec_of(form=Form.of("net", "face", embed_params=True)), tmp_path / "p").path
    (tmp_path / "main.c").write_text(EMBEDDED)
    library = ["-I", str(path), "main.c", str(path / "libface.so"), f"-Wl,-rpath,{path}"]
    find_toolchain(NATIVE_TRIPLE).compile([*library, "-o", "main"], tmp_path)
    with (tmp_path / "main.c").open() as file:
        done = subprocess.run([tmp_path / "main"], stdin=file, capture_output=True, text=True)
    sentence = "1 the model's parameters are in its library: open it without a folder\n"
    assert (done.returncode, done.stdout) == (0, 2 * sentence)

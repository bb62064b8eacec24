"""Faces found in a photograph by a package, and drawn into it: `python examples/faces.py yunet.modelc`.

The package is of YuNet (OpenCV's zoo), 640 x 640 pixels. It needs Pillow to read and write pictures. examples/faces.jpg
is a portrait of Eileen Collins by NASA, which is in the public domain.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

import modelc

SIDE = 640  # pixels of the network's input
STRIDES = (8, 16, 32)
SURE, ALIKE = 0.6, 0.3  # the least score of a face, the share that two boxes of one face have in common
PHOTO = Path(__file__).with_name("faces.jpg")

Array = NDArray[np.float32]


class Face(NamedTuple):
    """A box and five landmarks (eyes, nose, corners of the mouth), in pixels of the photograph."""

    score: float
    box: tuple[float, float, float, float]
    landmarks: Array


def fitted(photo: Image.Image) -> tuple[Array, float]:
    """The network's input, blue first, with the photograph in its upper left corner; and by what that was scaled."""
    scale = SIDE / max(photo.size)
    small = photo.resize((round(photo.width * scale), round(photo.height * scale)), Image.Resampling.BILINEAR)
    canvas = np.zeros((SIDE, SIDE, 3), np.float32)
    canvas[: small.height, : small.width] = np.asarray(small)[:, :, ::-1]
    return np.ascontiguousarray(canvas.transpose(2, 0, 1)[None]), scale


def faces_of(outputs: dict[str, Array], scale: float) -> list[Face]:
    """What the outputs say, the surest first, each face once."""
    candidates = []
    for stride in STRIDES:
        score = np.sqrt(outputs[f"cls_{stride}"][0, :, 0] * outputs[f"obj_{stride}"][0, :, 0])
        for place in np.flatnonzero(score >= SURE):
            cell = np.array([place % (SIDE // stride), place // (SIDE // stride)], np.float32)
            dx, dy, w, h = outputs[f"bbox_{stride}"][0, place]
            x, y = (cell + np.array((dx, dy))) * stride
            w, h = np.exp(w) * stride, np.exp(h) * stride
            box = tuple(float(v) / scale for v in (x - w / 2, y - h / 2, x + w / 2, y + h / 2))
            landmarks = (outputs[f"kps_{stride}"][0, place].reshape(5, 2) + cell) * stride / scale
            candidates.append(Face(float(score[place]), box, landmarks))
    faces: list[Face] = []
    for face in sorted(candidates, key=lambda face: -face.score):
        if all(common(face.box, other.box) < ALIKE for other in faces):
            faces.append(face)
    return faces


def common(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    """The area that two boxes share, over that which they cover."""
    shared = max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    return shared / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared)


def drawn(photo: Image.Image, faces: list[Face]) -> Image.Image:
    picture = photo.copy()
    pen, thick = ImageDraw.Draw(picture), max(2, photo.width // 150)
    for face in faces:
        pen.rectangle(face.box, outline=(80, 220, 100), width=thick)
        for x, y in face.landmarks:
            pen.ellipse((x - thick, y - thick, x + thick, y + thick), fill=(255, 200, 60))
        pen.text((face.box[0], face.box[1] - 12), f"{face.score:.0%}", fill=(80, 220, 100))
    return picture


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("package", type=Path)
    parser.add_argument("photo", type=Path, nargs="?", default=PHOTO)
    parser.add_argument("-o", "--output", type=Path, default=Path("faces.png"))
    arguments = parser.parse_args()
    photo = Image.open(arguments.photo).convert("RGB")
    image, scale = fitted(photo)
    with modelc.load(arguments.package) as model:
        faces = faces_of(model.run({"input": image}), scale)
    drawn(photo, faces).save(arguments.output)
    print(f"{len(faces)} face(s) in {arguments.photo}; they are drawn in {arguments.output}")


if __name__ == "__main__":
    main()

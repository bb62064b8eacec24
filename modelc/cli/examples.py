"""What --help ends with: commands to start from, by verb."""

from __future__ import annotations

import click

EXAMPLES = {
    "compile": (
        "modelc compile MODEL.onnx -o MODEL.modelc",
        "modelc compile TEXT.onnx --dim batch=1 --dim seq=1..16 -o TEXT.modelc",
        "modelc compile MODEL.onnx --target raspberry-pi-5 -o PI.modelc",
        "modelc compile DECODER.onnx --weights int4 --block 32 --emit-onnx DECODER4.onnx",
    ),
    "build": (
        "modelc build --dry-run",
        "modelc build modelc.yaml --only 'yunet*:cortex-a76' --jobs 4",
        "modelc build modelc.yaml --shard 2/4 --baseline main/build.json",
    ),
    "tune": (
        "modelc tune MODEL.onnx --budget 5m -o MODEL.modelc",
        "modelc tune MODEL.onnx --target raspberry-pi-5 --runner ssh://pi@board -o PI.modelc",
    ),
    "verify": ("modelc verify MODEL.modelc --against MODEL.onnx --per-layer",),
    "bench": (
        "modelc bench MODEL.modelc --against ort --model MODEL.onnx",
        "modelc bench NEW.modelc --against OLD.modelc --fail-if slower:3%",
    ),
    "diff": ("modelc diff OLD.modelc NEW.modelc", "modelc diff OLD.modelc NEW.modelc --no-times --json"),
    "profile": ("modelc profile MODEL.modelc --threads 2",),
    "report": (
        "modelc report MODEL.modelc -o report.html",
        "modelc report NEW.modelc --against OLD.modelc -o report.html",
        "modelc report build/build.json -o build.html",
    ),
    "run": (
        "modelc run MODEL.modelc --repeat 20",
        "modelc run MODEL.modelc --inputs F.npz --outputs G.npz",
        "modelc run MODEL.modelc --input x=x.npy --outputs G.npz",
    ),
    "inspect": ("modelc inspect MODEL.onnx", "modelc inspect MODEL.modelc --json"),
    "reduce": ("modelc reduce MODEL.onnx -o SMALL.onnx",),
    "targets": ("modelc targets list", "modelc targets probe -o mine.yaml", "modelc targets check mine.yaml"),
    "database": ("modelc database show --tasks", "modelc database prune --stale"),
    "cache": ("modelc cache show", "modelc cache clear"),
    "doctor": ("modelc doctor",),
    "help": ("modelc help compile",),
}


def add_examples(group: click.Group) -> None:
    """Gives each verb the end of its --help."""
    for name, command in group.commands.items():
        lines = "\n".join(f"  {line}" for line in EXAMPLES[name])
        command.epilog = f"\b\nExamples:\n{lines}"

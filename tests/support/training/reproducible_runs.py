"""Trainings with --reproducible that are short, of all trainers that take it."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from edsr.data import synthetic_image

FEW = ("--steps", 4, "--batch-size", 1, "--reproducible", 4, "--log-every", 1)
EDSR = ("edsr.train", "--synthetic", "--blocks", 1, "--features", 8, "--patch", 8, "--clip", 0.01)
_MESH = ("mesh.train", "--synthetic", "--size", 64, "--samples", 24, "--held-out", 0)
_COSMOFLOW = ("cosmoflow.train", "--synthetic", "--width", 32, "--thin", 8, "--samples", 24)
TRAINERS = {
    "edsr": (*EDSR, *FEW),
    "mesh": (*_MESH, *FEW),
    "cosmoflow": (*_COSMOFLOW, "--held-out", 0, *FEW),
}


def resnet(images: Path, output: Path) -> tuple[object, ...]:
    """The command that trains ResNet for an epoch of 6 steps on the images."""
    command = ("resnet.train", "--model", "resnet18", "--image-size", 64, "--epochs", 1)
    command = (*command, "--train-dir", images, "--val-dir", images, *FEW[2:])
    return (*command, "--log-dir", output, "--checkpoint-format", output / "{epoch}.pt")


def draw_images(folder: Path) -> None:
    """Draw 24 images of two classes."""
    for number in range(24):
        (folder / f"c{number % 2}").mkdir(parents=True, exist_ok=True)
        path = folder / f"c{number % 2}" / f"{number}.png"
        Image.fromarray(synthetic_image(7, number, 48)).save(path)

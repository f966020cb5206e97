"""The quality of a ResNet on images that it has not learned from: loss, top-1, top-5."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor, nn

from hvd_ext.errors import UsageError
from hvd_ext.system.files import write_json
from resnet.folder import Images, Sample, centred, load_batches, normalised, read_images
from resnet.model import MODELS
from resnet.readable import check_images
from resnet.weights import load_weights, read_weights
from training import ranks

FIGURES = ("loss", "accuracy", "top5")


def sums(loss: Tensor, logits: Tensor, truth: Tensor) -> Tensor:
    """(4,): sum of the losses, right answers, those among the first five, images; float64.

    On the logits' device, where nothing waits for it.
    """
    count = len(truth)
    best = logits.topk(min(5, logits.shape[1])).indices == truth[:, None]
    parts = (loss.detach() * count, best[:, 0].sum(), best.sum(), torch.tensor(count))
    return torch.stack([part.to(logits.device, torch.float64) for part in parts])


def means(sums: Tensor) -> dict[str, float]:
    """FIGURES of what `sums` gave, added up."""
    *parts, count = sums.tolist()
    return {name: part / count for name, part in zip(FIGURES, parts, strict=True)}


@torch.no_grad()
def validate(
    model: nn.Module,
    images: Images,
    args: argparse.Namespace,
    hvd: ModuleType,
    device: torch.device,
    program: str,
) -> dict[str, float]:
    """FIGURES over all images, each counted once by one rank. A collective.

    Args:
        model: a model on the device; it is left as it is for validation.
        images: the same on every rank.
        args: --image-size, --val-batch-size, --workers, --skip-unreadable, --bf16 and
            --channels-last.
        hvd: the exchange.
        device: device of this rank.
        program: the name that errors begin with.

    Raises:
        SystemExit: an image cannot be read, and is not to be skipped; rank 0 has said which.
    """
    model.eval()
    side, batch = args.image_size, args.val_batch_size
    mine = range(hvd.rank(), len(images), hvd.size())
    batches = (mine[k : k + batch] for k in range(0, len(mine), batch))
    total = torch.zeros(4, dtype=torch.float64, device=device)

    def load(index: int) -> Sample | None:
        try:
            return centred(images[index], side)
        except UsageError:
            if args.skip_unreadable:
                return None
            raise

    with ranks.collective_errors(hvd, program):
        for pixels, labels in load_batches(batches, load, args.workers):
            truth = labels.to(device)
            with ranks.autocast(args, device):
                pixels = pixels.to(device, memory_format=ranks.memory_format(args))
                logits = model(normalised(pixels))
                loss = nn.functional.cross_entropy(logits, truth)
            total += sums(loss, logits, truth)
    return means(hvd.allreduce(total.cpu(), op=hvd.Sum, name="validation"))


def evaluate(args: argparse.Namespace, hvd: ModuleType, program: str, weights: Path) -> None:
    """Validate weights alone, and print what comes of it. A collective.

    Raises:
        SystemExit: weights or images cannot be used; rank 0 has said why.
    """
    with ranks.collective_errors(hvd, program):
        device = ranks.device(args, hvd)
        state, classes = read_weights(weights)
    images = read_images(args.val_dir, hvd, program, classes)
    with ranks.collective_errors(hvd, program):
        model = MODELS[args.model](len(images.classes))
        load_weights(model, state, weights)
    check_images((images,), args, hvd, program)
    found = validate(model.to(device), images, args, hvd, device, program)
    if hvd.rank() != 0:
        return
    print(f"{weights}: {describe(found)} of {len(images)} images")
    if args.json:
        write_json(args.json, {"weights": str(weights), "images": len(images), **found})


def describe(figures: dict[str, float]) -> str:
    """FIGURES as text."""
    return (
        f"loss {figures['loss']:.4f}, accuracy {figures['accuracy']:.2%}, "
        f"top-5 {figures['top5']:.2%}"
    )


def latest(pattern: str, epochs: Sequence[int]) -> Path | None:
    """The checkpoint of the last of these epochs that has one."""
    paths = (Path(pattern.format(epoch=epoch)) for epoch in reversed(epochs))
    return next(filter(Path.is_file, paths), None)


def require_weights(args: argparse.Namespace) -> Path:
    """The weights that --evaluate evaluates: --load, or the latest checkpoint.

    Raises:
        UsageError: there is none.
    """
    if not args.val_dir:
        raise UsageError("--evaluate: no images to evaluate: give --val-dir")
    path = args.load or latest(args.checkpoint_format, range(1, args.epochs + 1))
    if path is None:
        raise UsageError(
            f"--evaluate: no checkpoint at {args.checkpoint_format}: name weights with --load"
        )
    return Path(path)

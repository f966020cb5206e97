"""Train ResNet on a folder of classes, judge weights, or time it on random data (--synthetic).

The recipe is that of Goyal et al., "Accurate, Large Minibatch SGD", 2017: section 5.1.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from hvd_ext.cli import above_zero, at_least, not_negative, output_file, run
from hvd_ext.errors import UsageError
from resnet.imagenet import ImageNetTrainer
from resnet.model import MODELS
from resnet.schedule import SCHEDULES
from resnet.synthetic import benchmark
from resnet.validation import evaluate, require_weights
from training import ranks
from training.arguments import (
    Parser,
    add_exchange_arguments,
    add_loading_arguments,
    add_precision_arguments,
    add_store_argument,
    add_tensorboard_argument,
)
from training.by_epochs import EpochLoop

PROGRAM = "resnet.train"
EXAMPLE = "horovodrun -np 2 python -m resnet.train --synthetic --batch-size 8"


def parser() -> Parser:
    """The command line; flags that Horovod's examples have bear their names."""
    cli = Parser(PROGRAM, __doc__ or "", EXAMPLE)
    positive, natural = at_least(1), at_least(0)
    cli.add_argument("--model", choices=MODELS, default="resnet50", help="what is trained")
    cli.add_argument("--batch-size", type=positive, default=32, help="images per rank")
    cli.add_argument("--image-size", type=at_least(32), default=224, help="length of an image")
    cli.add_argument("--seed", type=natural, default=42, help="of weights and samples")
    cli.add_argument("--fp16-allreduce", action="store_true", help="exchange 16-bit gradients")
    cli.add_argument("--use-adasum", action="store_true", help="combine gradients by Adasum")
    cli.add_argument(
        "--gradient-predivide-factor", type=above_zero, default=1.0, help="before the sum"
    )
    add_precision_arguments(cli)
    add_exchange_arguments(cli)
    cli.add_argument(
        "--no-cuda", action="store_const", dest="device", const="cpu", help="as --device cpu"
    )
    cli.add_argument(
        "--json",
        type=output_file,
        metavar="FILE",
        help="gets the result of --synthetic or --evaluate",
    )

    synthetic = cli.add_argument_group("on random data")
    synthetic.add_argument("--synthetic", action="store_true", help="time it on random data")
    synthetic.add_argument("--num-warmup-batches", type=natural, default=10, help="not timed")
    synthetic.add_argument("--num-batches-per-iter", type=positive, default=10, help="timed as one")
    synthetic.add_argument("--num-iters", type=positive, default=10, help="timings taken")

    folder = cli.add_argument_group("on a folder of classes")
    folder.add_argument(
        "--train-dir", type=Path, metavar="DIR", help="DIR/class/image, or FILE.pack of it"
    )
    folder.add_argument(
        "--val-dir", type=Path, metavar="DIR", help="DIR/class/image, or FILE.pack of it"
    )
    folder.add_argument(
        "--load",
        type=Path,
        metavar="FILE",
        help="start from its weights, or torchvision's; of other classes, from all but the last "
        "layer's",
    )
    folder.add_argument(
        "--evaluate",
        action="store_true",
        help="judge the weights of --load, or of the latest checkpoint, on --val-dir, and end",
    )
    folder.add_argument("--log-dir", type=Path, default=Path("logs"), help="gets log.csv, best.pt")
    folder.add_argument(
        "--checkpoint-format",
        default="checkpoint-{epoch}.pth.tar",
        help="path of checkpoints; the latest one is resumed",
    )
    folder.add_argument(
        "--checkpoint-every", type=natural, default=0, help="steps; 0: after epochs only"
    )
    folder.add_argument(
        "--keep", type=natural, default=0, metavar="N", help="last checkpoints; 0: all"
    )
    folder.add_argument("--log-every", type=positive, default=50, help="steps per line shown")
    add_tensorboard_argument(folder)
    folder.add_argument(
        "--batches-per-allreduce", type=positive, default=1, help="batches per rank and step"
    )
    folder.add_argument("--val-batch-size", type=positive, default=32, help="images per rank")
    folder.add_argument("--epochs", type=positive, default=90, help="epochs in all")
    folder.add_argument(
        "--base-lr",
        type=above_zero,
        default=0.0125,
        help="learning rate of 32 images; it grows with the batch of all ranks",
    )
    folder.add_argument(
        "--warmup-epochs", type=not_negative, default=5, help="epochs until it is full"
    )
    folder.add_argument(
        "--schedule",
        choices=SCHEDULES,
        default="steps",
        help="of the rate: a tenth after 3/9, 6/9 and 8/9 of --epochs, or half a cosine",
    )
    folder.add_argument("--momentum", type=not_negative, default=0.9, help="of SGD (Nesterov)")
    folder.add_argument(
        "--wd", type=not_negative, default=1e-4, help="weight decay, of all but batch norms"
    )
    folder.add_argument(
        "--label-smoothing", type=not_negative, default=0.0, metavar="X", help="as in 0.1"
    )
    folder.add_argument(
        "--no-augmentation",
        action="store_false",
        dest="augment",
        help="train on images cut as for validation, not at random and mirrored",
    )
    add_loading_arguments(folder, workers=4)
    add_store_argument(folder)
    return cli


def main(arguments: Sequence[str]) -> int:
    args, hvd = ranks.start(parser(), arguments)
    with ranks.collective_errors(hvd, PROGRAM):
        if args.image_size <= 32 and args.batch_size == 1 and not args.evaluate:
            raise UsageError(
                f"--batch-size 1 of --image-size {args.image_size}: the last layers see one pixel, "
                "of which no batch norm can learn: raise one of them"
            )
    advice = ImageNetTrainer.advice
    if args.synthetic:
        with ranks.abort_on_error(hvd, PROGRAM), ranks.enough_memory(advice):
            benchmark(args, hvd, PROGRAM)
        return 0
    if args.evaluate:
        with ranks.collective_errors(hvd, PROGRAM):
            weights = require_weights(args)
        with ranks.abort_on_error(hvd, PROGRAM), ranks.enough_memory(advice):
            evaluate(args, hvd, PROGRAM, weights)
        return 0
    with ranks.collective_errors(hvd, PROGRAM):
        trainer = ImageNetTrainer(_checked(args), hvd, PROGRAM)
    EpochLoop(trainer).train()
    return 0


def _checked(args: argparse.Namespace) -> argparse.Namespace:
    if not (args.train_dir and args.val_dir):
        raise UsageError("nothing to train on: give --train-dir and --val-dir, or --synthetic")
    try:
        names = {args.checkpoint_format.format(epoch=epoch) for epoch in (1, 2)}
    except (KeyError, IndexError, ValueError, AttributeError) as error:
        raise UsageError(
            f"--checkpoint-format {args.checkpoint_format!r}: only {{epoch}} is known, as in "
            "checkpoint-{epoch}.pth.tar"
        ) from error
    if len(names) < 2:
        raise UsageError(f"--checkpoint-format {args.checkpoint_format!r} lacks {{epoch}}")
    return args


if __name__ == "__main__":
    run(main, PROGRAM)

"""Train ResNet-50 on a folder of classes, or time it on random data (--synthetic).

The recipe is that of Goyal et al., "Accurate, Large Minibatch SGD", 2017.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from hvd_ext.cli import above_zero, at_least, not_negative, output_file, run
from hvd_ext.errors import UsageError
from resnet.imagenet import ImageNetTrainer
from resnet.synthetic import benchmark
from training import ranks
from training.arguments import (
    Parser,
    add_exchange_arguments,
    add_loading_arguments,
    add_precision_arguments,
)

PROGRAM = "resnet.train"
EXAMPLE = "horovodrun -np 2 python -m resnet.train --synthetic --batch-size 8"


def parser() -> Parser:
    """The command line; flags that Horovod's examples have bear their names."""
    cli = Parser(PROGRAM, __doc__ or "", EXAMPLE)
    positive, natural = at_least(1), at_least(0)
    cli.add_argument("--model", choices=("resnet50",), default="resnet50", help="what is trained")
    cli.add_argument("--batch-size", type=positive, default=32, help="images per rank")
    cli.add_argument("--image-size", type=at_least(64), default=224, help="length of an image")
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

    synthetic = cli.add_argument_group("on random data")
    synthetic.add_argument("--synthetic", action="store_true", help="time it on random data")
    synthetic.add_argument("--num-warmup-batches", type=natural, default=10, help="not timed")
    synthetic.add_argument("--num-batches-per-iter", type=positive, default=10, help="timed as one")
    synthetic.add_argument("--num-iters", type=positive, default=10, help="timings taken")
    synthetic.add_argument("--json", type=output_file, metavar="FILE", help="gets the result")

    folder = cli.add_argument_group("on a folder of classes")
    folder.add_argument(
        "--train-dir", type=Path, metavar="DIR", help="DIR/class/image, or FILE.pack of it"
    )
    folder.add_argument(
        "--val-dir", type=Path, metavar="DIR", help="DIR/class/image, or FILE.pack of it"
    )
    folder.add_argument("--log-dir", type=Path, default=Path("logs"), help="gets log.csv")
    folder.add_argument(
        "--checkpoint-format",
        default="checkpoint-{epoch}.pth.tar",
        help="path of checkpoints; the latest one is resumed",
    )
    folder.add_argument(
        "--checkpoint-every", type=natural, default=0, help="steps; 0: after epochs only"
    )
    folder.add_argument(
        "--batches-per-allreduce", type=positive, default=1, help="batches per rank and step"
    )
    folder.add_argument("--val-batch-size", type=positive, default=32, help="images per rank")
    folder.add_argument("--epochs", type=positive, default=90, help="epochs in all")
    folder.add_argument(
        "--base-lr", type=above_zero, default=0.0125, help="learning rate of one rank's batch"
    )
    folder.add_argument("--warmup-epochs", type=natural, default=5, help="epochs until it is full")
    folder.add_argument("--momentum", type=not_negative, default=0.9, help="of SGD")
    folder.add_argument("--wd", type=not_negative, default=5e-5, help="weight decay")
    add_loading_arguments(folder, workers=4)
    return cli


def main(arguments: Sequence[str]) -> int:
    args, hvd = ranks.start(parser(), arguments)
    advice = "lower --batch-size or --image-size"
    if args.synthetic:
        with ranks.abort_on_error(hvd, PROGRAM), ranks.enough_memory(advice):
            benchmark(args, hvd, PROGRAM)
        return 0
    with ranks.collective_errors(hvd, PROGRAM):
        trainer = ImageNetTrainer(_checked(args), hvd, PROGRAM)
    trainer.start()
    with ranks.abort_on_error(hvd, PROGRAM), ranks.enough_memory(advice):
        trainer.train()
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

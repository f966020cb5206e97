"""Train ResNet on a folder of classes, evaluate weights, or time it on random data (--synthetic).

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
    add_check_argument,
    add_exchange_arguments,
    add_loading_arguments,
    add_precision_arguments,
    add_store_argument,
    add_tensorboard_argument,
    may_change,
)
from training.by_epochs import EpochLoop

PROGRAM = "resnet.train"
EXAMPLE = "hvd-launch run -np 2 -- python -m resnet.train --synthetic --batch-size 8"


def parser() -> Parser:
    """The command line; flags that Horovod's examples have bear their names."""
    cli = Parser(PROGRAM, __doc__ or "", EXAMPLE)
    positive, natural = at_least(1), at_least(0)
    cli.add_argument("--model", choices=MODELS, default="resnet50", help="network")
    cli.add_argument("--batch-size", type=positive, default=32, help="images per rank")
    cli.add_argument("--image-size", type=at_least(32), default=224, help="image size in pixels")
    cli.add_argument("--seed", type=natural, default=42, help="random seed of weights and samples")
    cli.add_argument(
        "--fp16-allreduce", action="store_true", help="send 16-bit gradients between nodes"
    )
    cli.add_argument(
        "--use-adasum",
        action="store_true",
        help="combine gradients by Adasum (Horovod's optimizer)",
    )
    cli.add_argument(
        "--gradient-predivide-factor",
        type=above_zero,
        default=1.0,
        help="divisor applied before the sum",
    )
    add_precision_arguments(cli)
    add_exchange_arguments(cli)
    cli.add_argument(
        "--no-cuda", action="store_const", dest="device", const="cpu", help="same as --device cpu"
    )
    cli.add_argument(
        "--json",
        type=output_file,
        metavar="FILE",
        help="file for the result of --synthetic or --evaluate",
    )

    synthetic = cli.add_argument_group("on random data")
    synthetic.add_argument(
        "--synthetic", action="store_true", help="measure throughput on random data"
    )
    synthetic.add_argument(
        "--num-warmup-batches", type=natural, default=10, help="batches before the first timing"
    )
    synthetic.add_argument(
        "--num-batches-per-iter", type=positive, default=10, help="batches per timing"
    )
    synthetic.add_argument("--num-iters", type=positive, default=10, help="number of timings")

    folder = cli.add_argument_group("on a folder of classes")
    folder.add_argument(
        "--train-dir",
        type=Path,
        metavar="DIR",
        help="folder with one folder of images per class, or a packed file",
    )
    folder.add_argument(
        "--val-dir",
        type=Path,
        metavar="DIR",
        help="folder with one folder of images per class, or a packed file",
    )
    folder.add_argument(
        "--load",
        type=Path,
        metavar="FILE",
        help="file of initial weights: of a checkpoint or torchvision; with other classes, all"
        " but the last layer",
    )
    folder.add_argument(
        "--evaluate",
        action="store_true",
        help="evaluate the weights of --load, or of the latest checkpoint, on --val-dir and exit",
    )
    folder.add_argument(
        "--log-dir", type=Path, default=Path("logs"), help="folder for log.csv and best.pt"
    )
    folder.add_argument(
        "--checkpoint-format",
        default="checkpoint-{epoch}.pth.tar",
        help="path of checkpoints; training resumes from the latest one",
    )
    folder.add_argument(
        "--checkpoint-every",
        type=natural,
        default=0,
        help="steps between checkpoints; 0 saves after each epoch only",
    )
    folder.add_argument(
        "--keep",
        type=natural,
        default=0,
        metavar="N",
        help="number of checkpoints to keep; 0 keeps all",
    )
    folder.add_argument(
        "--log-every", type=positive, default=50, help="steps between progress lines"
    )
    add_tensorboard_argument(folder)
    folder.add_argument(
        "--batches-per-allreduce", type=positive, default=1, help="batches per rank in each step"
    )
    folder.add_argument("--val-batch-size", type=positive, default=32, help="images per rank")
    folder.add_argument("--epochs", type=positive, default=90, help="number of epochs")
    folder.add_argument(
        "--base-lr",
        type=above_zero,
        default=0.0125,
        help="learning rate for 32 images, scaled by the global batch",
    )
    folder.add_argument(
        "--warmup-epochs", type=not_negative, default=5, help="epochs of learning-rate warm-up"
    )
    folder.add_argument(
        "--schedule",
        choices=SCHEDULES,
        default="steps",
        help="learning-rate schedule: a tenth after 3/9, 6/9 and 8/9 of --epochs, or half a cosine",
    )
    folder.add_argument(
        "--momentum", type=not_negative, default=0.9, help="momentum of SGD (Nesterov)"
    )
    folder.add_argument(
        "--wd", type=not_negative, default=1e-4, help="weight decay, except for batch norms"
    )
    folder.add_argument(
        "--label-smoothing",
        type=not_negative,
        default=0.0,
        metavar="X",
        help="label smoothing, as in 0.1",
    )
    folder.add_argument(
        "--no-augmentation",
        action="store_false",
        dest="augment",
        help="crop training images as for validation, without random crops and flips",
    )
    add_check_argument(folder)
    folder.add_argument(
        "--skip-unreadable",
        action="store_true",
        help="train with the next image in place of one that cannot be read, validate without it, "
        "and report which they are",
    )
    add_loading_arguments(folder, workers=4)
    add_store_argument(folder)
    may_change(cli, "--json", "--num-warmup-batches", "--num-batches-per-iter", "--num-iters")
    may_change(cli, "--train-dir", "--val-dir", "--load", "--evaluate", "--log-dir", "--keep")
    may_change(cli, "--checkpoint-format", "--checkpoint-every", "--log-every")
    may_change(cli, "--val-batch-size", "--skip-unreadable")
    return cli


def main(arguments: Sequence[str]) -> int:
    args, hvd = ranks.start(parser(), arguments)
    with ranks.collective_errors(hvd, PROGRAM):
        if args.synthetic and args.reproducible is not None:
            raise UsageError(
                f"--reproducible {args.reproducible} with --synthetic, which only measures "
                "throughput: leave one of them out"
            )
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
    trainer.check()
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

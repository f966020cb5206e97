"""Training to --epochs, with a log row, validation and a checkpoint after each."""

from __future__ import annotations

import time
from abc import abstractmethod
from pathlib import Path

from torch import Tensor

from hvd_ext.system.files import check_writable, make_folder
from hvd_ext.units import counted
from training.log import CsvLog, tensorboard
from training.loop import Loop, Trainer


class EpochTrainer(Trainer):
    """A model and its data, for an `EpochLoop`.

    Attributes:
        recipe: description of the learning, for the first line; known once `start` was called.
    """

    recipe: str

    @abstractmethod
    def gather(self) -> None:
        """Collect the ranks' separate state on rank 0 before a checkpoint. A collective."""

    @abstractmethod
    def figures_of_epoch(self) -> tuple[float, ...]:
        """`figures` of the epoch's training samples, after `gather`. A collective.

        The figures of the next epoch begin.
        """


class EpochLoop(Loop[EpochTrainer]):
    """Writes log.csv and best.pt to --log-dir, and checkpoints to --checkpoint-format.

    Positions count the steps of an epoch; a checkpoint within one has the name of its end.
    """

    _log: CsvLog | None = None

    def open_logs(self) -> None:
        trainer, args, at = self.trainer, self.run.args, self.run.position.epoch
        first = self._checkpoint_path(1)
        make_folder(args.log_dir)
        make_folder(first.parent)
        check_writable(first)
        trained, found = (
            [f"{when}_{name}" for name in trainer.figures] for when in ("train", "val")
        )
        columns = ("epoch", *trained, *found, *trainer.columns, "img_per_s")
        board = tensorboard(args.tensorboard, at)
        self._log = CsvLog(args.log_dir / "log.csv", columns, resumed_at=at, board=board)

    def take_steps(self) -> None:
        run, epochs = self.run, self.run.args.epochs
        if run.leads and run.position.epoch == epochs:
            print(f"{run.program}: nothing to do: {self._checkpoint_path(epochs)} is the last")
        elif run.leads:
            recipe = self.trainer.recipe
            print(
                f"{counted(run.hvd.size(), 'rank')}, batch {run.global_batch} of all, {recipe}",
                flush=True,
            )
        while run.position.epoch < epochs:
            per_second = 0.0 if run.pending else self._take_steps_of_epoch()
            self._finish_epoch(per_second)

    def _take_steps_of_epoch(self) -> float:
        """Take the rest of this epoch's steps; returns samples per second of all ranks."""
        trainer, run = self.trainer, self.run
        began_s, first = time.perf_counter(), run.position.step
        end = run.position.epoch + 1

        def rate() -> float:
            taken = (run.position.step - first) * run.global_batch
            return taken / (time.perf_counter() - began_s)

        def note(loss: Tensor) -> str:
            if not run.due(run.args.log_every):
                return ""
            return f"loss {loss.item():.4f} on rank 0  {rate():.1f} {trainer.unit}/s"

        def save() -> None:
            trainer.gather()
            self.save(self._checkpoint_path(end))

        run.take_steps(f"epoch {end}", first + len(trainer.loader), trainer.step, note, save)
        per_second = rate()
        run.pending = True
        save()  # before the validation, in which an image may have become unreadable
        return per_second

    def _finish_epoch(self, per_second: float) -> None:
        """Validate, save and log. A collective."""
        trainer, run, args = self.trainer, self.run, self.run.args
        trained = dict(zip(trainer.figures, trainer.figures_of_epoch(), strict=True))
        improved = self.validate()
        position, run.pending = run.position, False
        position.epoch, position.step = position.epoch + 1, 0
        self.save(self._checkpoint_path(position.epoch))
        if improved:
            self.save(args.log_dir / "best.pt")
        if self._log is None:
            return
        figures = (*trained.values(), *self.figures.values())
        self._log.write(position.epoch, *figures, *trainer.row(), per_second)
        shown = f"{trainer.describe(trained)}; validation {trainer.describe(self.figures)}"
        print(f"epoch {position.epoch}: {shown}", flush=True)
        if args.keep:
            self._checkpoint_path(position.epoch - args.keep).unlink(missing_ok=True)

    def _checkpoint_path(self, epoch: int) -> Path:
        return Path(self.run.args.checkpoint_format.format(epoch=epoch))

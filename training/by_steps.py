"""Training to --steps, with a log, validation and checkpoints at intervals of steps."""

from __future__ import annotations

import statistics
from functools import partial

from torch import Tensor

from hvd_ext.system.files import make_folder, write_json
from hvd_ext.units import counted
from training import ranks
from training.checkpoint import keep_last
from training.log import CsvLog, tensorboard
from training.loop import Loop, Trainer


class StepLoop(Loop[Trainer]):
    """Writes log.csv, validation.csv, checkpoint.pt, best.pt and summary.json to --output."""

    _log: CsvLog | None = None
    _validation: CsvLog | None = None
    _loss = float("nan")

    def open_logs(self) -> None:
        trainer, args, at = self.trainer, self.run.args, self.run.position.step
        make_folder(args.output)
        usual = ("step", "loss", f"{trainer.unit}_per_second", "read_share")
        open_log = partial(CsvLog, resumed_at=at, board=tensorboard(args.tensorboard, at))
        self._log = open_log(args.output / "log.csv", (*usual, *trainer.columns))
        if trainer.figures:
            path = args.output / "validation.csv"
            open_log = partial(open_log, resumed_at=at - self.run.pending)
            self._validation = open_log(path, ("step", *trainer.figures))

    def take_steps(self) -> None:
        run = self.run
        if run.pending:
            self._validate_and_keep_best()
            self._save_and_keep()
        run.take_steps(
            run.program, run.args.steps, self.trainer.step, self._after_step, self._save_and_keep
        )
        if run.step_times_s:
            self._save_and_keep()
            if run.leads:
                self._summarise()
        elif run.leads:
            steps = run.args.steps
            print(
                f"{run.program}: nothing to do: {run.checkpoint_path} has all of "
                f"{counted(steps, 'step')}"
            )

    def _after_step(self, local_loss: Tensor) -> str:
        """Log and validate if it is due; returns the text of the progress. A collective."""
        run, args = self.run, self.run.args
        last = run.position.step == args.steps
        shown = []
        if last or run.due(args.log_every):
            shown.append(self._write_row(local_loss))
        every = args.validate_every
        if self.trainer.figures and (last or (run.due(every) if every else run.epoch_ended())):
            shown.append(self._validate_and_keep_best())
        return "  ".join(shown)

    def _write_row(self, local_loss: Tensor) -> str:
        trainer, run = self.trainer, self.run
        self._loss = run.hvd.allreduce(local_loss.cpu(), name="loss").item()
        window_s = run.step_times_s[-run.args.log_every :]
        per_second = run.global_batch * len(window_s) / sum(window_s)
        if self._log:
            read_share = trainer.loader.statistics().wait_s / sum(run.step_times_s)
            self._log.write(run.position.step, self._loss, per_second, read_share, *trainer.row())
        return f"loss {self._loss:.4f}  {per_second:.2f} {trainer.unit}/s"

    def _validate_and_keep_best(self) -> str:
        self.run.pending = True
        self.save(
            self.run.checkpoint_path
        )  # before the validation, in which an image may have become unreadable
        improved = self.validate()
        self.run.pending = False
        if self._validation:
            self._validation.write(self.run.position.step, *self.figures.values())
        if improved:
            self.save(self.run.args.output / "best.pt")
        return self.trainer.describe(self.figures)

    def _save_and_keep(self) -> None:
        """Write the checkpoint of this step, and remove old ones."""
        run = self.run
        self.save(run.checkpoint_path)
        with ranks.collective_errors(run.hvd, run.program):
            if run.leads:
                keep_last(run.checkpoint_path, run.position.step, run.args.keep)

    def _summarise(self) -> None:
        trainer, run = self.trainer, self.run
        args, size = run.args, run.hvd.size()
        figures = {"loss": self._loss, **self.figures}
        # The first steps allocate memory and agree on names.
        warm_up = min(10, len(run.step_times_s) // 5)
        step_time_s = statistics.median(run.step_times_s[warm_up:])
        per_second = run.global_batch / step_time_s
        summary = {
            "exchange": args.exchange,
            "size": size,
            "arch": trainer.architecture,
            "batch_size": args.batch_size,
            "steps": run.position.step,
            **figures,
            "step_time_s": step_time_s,
            f"{trainer.unit}_per_second": per_second,
            **dict(zip(trainer.columns, trainer.row(), strict=True)),
        }
        write_json(args.output / "summary.json", summary)
        print(
            f"{counted(run.position.step, 'step')} on {counted(size, 'rank')}{trainer.layout}: "
            f"{trainer.describe(figures)}, {per_second:.2f} {trainer.unit}/s; "
            f"wrote {run.checkpoint_path}"
        )

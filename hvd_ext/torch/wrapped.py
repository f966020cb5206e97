"""The methods that DistributedOptimizer adds to an optimizer's class."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from hvd_ext.errors import HvdExtError, UsageError
from hvd_ext.shm.regions import WindowError
from hvd_ext.torch import fallback, horovods
from hvd_ext.torch.audit.auditor import Auditor
from hvd_ext.torch.own import refuse_own
from hvd_ext.torch.parameters import trainable
from hvd_ext.torch.reduction.protocol import Reduces
from hvd_ext.torch.reduction.sparse import made_sparse
from hvd_ext.torch.sync.late_reducer import LateReducer
from hvd_ext.torch.sync.rounds import Rounds
from hvd_ext.torch.torch_internals import needs_no_hooks

# Entries of state_dict() in addition to torch's: "residuals" by parameter, and "rounds".
Drained = dict[str, Any]

log = logging.getLogger("hvd_ext")


class DistributedMixin(torch.optim.Optimizer):
    """An optimizer whose step() takes gradients reduced over all ranks.

    Among the bases of the wrapped optimizer's class, it comes before the class of the user's
    optimizer.

    Attributes:
        op: Horovod's Average or Sum.
        backward_passes_per_step: how many backward passes fill a gradient.
        drained: result of drain(), if no step was taken since.
        auditor: takes the fingerprints of its steps, if requested.
    """

    def _attach(
        self,
        reducer: Reduces | None,
        op: Any,
        passes: int,
        names: dict[torch.nn.Parameter, str],
        rounds: Rounds | None = None,
        sparse_as_dense: bool = False,
    ) -> None:
        self._reducer, self._rounds = reducer, rounds
        # SparseAdam accepts only sparse gradients.
        self._takes_sparse = sparse_as_dense and isinstance(self, torch.optim.SparseAdam)
        self._parameter_names = names  # as Horovod's has it
        self._synchronized = False  # by the user
        self._clipped = False
        self._should_synchronize = True
        self.drained: Drained | None = None
        self.auditor: Auditor | None = None
        self.op = op
        self.backward_passes_per_step = passes

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change how many backward passes fill a gradient, between two steps, on all ranks."""
        self.backward_passes_per_step = passes
        if self._reducer:
            self._reducer.set_passes_per_step(passes)

    def explain(self) -> str:
        """Report the buckets and their reason, the compression, and how buckets are reduced.

        Returns:
            Lines of text. The last says how long the last step waited for the exchange after its
            backward pass.
        """
        if self._reducer:
            rounds = f"\n{self._rounds.explain()}" if self._rounds else ""
            return self._reducer.explain() + rounds
        return "one rank: nothing is exchanged"

    def synchronize(self) -> None:
        """Wait until all gradients are reduced, and leave them in `.grad`; collective.

        For scripts that read or change gradients before step(), which must then be inside `with
        optimizer.skip_synchronize():`. A parameter without a gradient takes part with zeros.

        Raises:
            StallError: ranks did not reach this in time; names them.
            UsageError: a gradient was changed while it was exchanged, or hvd.shutdown() was called.
        """
        if self._reducer:
            self._reducer.synchronize()
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """A context in which step() exchanges nothing, because synchronize() has done so."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    @needs_no_hooks
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Wait for the reduced gradients, and take the step of the wrapped class; collective.

        Args:
            closure: passed to the wrapped class; it may not call backward().

        Returns:
            The result of the wrapped class's step.

        Raises:
            StallError: ranks did not reach this in time; names them.
            UsageError: a gradient was changed while it was exchanged, or has not been exchanged.
        """
        if self._should_synchronize and not self._clipped:
            if self._synchronized:
                # Horovod's text, because scripts filter by it.
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() context "
                    "after optimizer.synchronize(). The gradients are exchanged again.",
                    stacklevel=2,
                )
            self._exchange()
        elif self._reducer and self._reducer.in_flight:
            raise UsageError(
                "step() inside skip_synchronize(), and gradients of this step are not "
                "exchanged yet: call optimizer.synchronize() after the last backward()"
            )
        self._synchronized = self._clipped = False
        self.drained = None
        if self._rounds:
            self._rounds.begin_step()
        if self.auditor:
            self.auditor.before_update(exchanged=self._reducer is not None)
        result = self._update(closure)
        if self._reducer and self._reducer.in_flight:
            raise UsageError(
                "a closure that calls backward() makes gradients that no rank exchanges: call "
                "backward() before step(), as Horovod asks for, and pass no closure"
            )
        if self._rounds:
            self._rounds.end_step()
        if self.auditor:
            self.auditor.after_update()
        return result

    def _exchange(self) -> None:
        """Make the sums of all gradients available for the step."""
        if self._reducer:
            self._reducer.synchronize()

    def _update(self, closure: Callable[[], Any] | None) -> Any:
        if not (self._reducer and self._takes_sparse):
            return super().step(closure)
        with made_sparse(self._parameters()):
            return super().step(closure)

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
    ) -> torch.Tensor:
        """Clip the reduced gradients as one vector, between backward() and step().

        Like `torch.nn.utils.clip_grad_norm_` after synchronize(), but the ranks of a sharded
        optimizer clip the parts that each has summed.

        Returns:
            The norm before, the same on every rank.

        Raises:
            RuntimeError: it is not finite, and `error_if_nonfinite` is True.
            UsageError: ranks have different filters.
        """
        refuse_own(self._parameters(), "clip_grad_norm_", "clip each gradient by its values")
        if not (self._synchronized or self._clipped):
            self._exchange()
        self._clipped = True
        return self._clip(max_norm, norm_type, error_if_nonfinite)

    def _clip(self, *arguments: Any) -> torch.Tensor:
        return torch.nn.utils.clip_grad_norm_(self._parameters(), *arguments)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Like torch's.

        Raises:
            AssertionError: gradients are being exchanged, as in Horovod.
        """
        if self._reducer and self._reducer.in_flight:
            raise AssertionError(
                "optimizer.zero_grad() between backward() and step() or synchronize() would "
                "wipe gradients while they are exchanged: call it before backward()"
            )
        super().zero_grad(set_to_none)

    def drain(self) -> None:
        """Make all nodes continue with the same weights, and state_dict() hold the whole state.

        Call it on all ranks, after step(), before the model is evaluated or state_dict() is saved.
        It ends a round and takes the mean of the nodes' optimizer states; gradients that are one
        step late are used. Residuals of compression are neither lost nor sent: they become part of
        the state, which can be used on any number of nodes. It costs an exchange without
        compression.
        """
        if not self._reducer:
            self.drained = {}
            return
        if isinstance(self._reducer, LateReducer) and self._reducer.collect_late():
            self._update(None)
            super().zero_grad()
        drained: Drained = {}
        if self._rounds:
            self._rounds.end()
            self._rounds.average(self.state)
            drained = {"rounds": self._rounds.state()}
        of = self._reducer.drain()
        if residuals := {i: of[p] for i, p in enumerate(self._parameters()) if p in of}:
            drained["residuals"] = residuals
        self.drained = drained

    def state_dict(self) -> dict[str, Any]:
        """Like torch's, with the result of drain() under "hvd_ext".

        Raises:
            UsageError: nodes have different weights, or gradients are late: drain() first.
        """
        self.require_drained("optimizer.state_dict()")
        state: dict[str, Any] = super().state_dict()
        if self.drained:
            state["hvd_ext"] = self.drained
        elif self.drained is None and self._reducer and self._reducer.has_residuals:
            log.warning(
                "hvd_ext: state_dict() without what compression rounded away and not sent yet: "
                "call optimizer.drain() on all ranks before"
            )
        return state

    @property
    def keeps_more(self) -> bool:
        """Whether there is state in addition to torch's."""
        late = isinstance(self._reducer, LateReducer)
        rounded = self._reducer is not None and self._reducer.has_residuals
        return late or rounded or self._rounds is not None

    def require_drained(self, what: str) -> None:
        """Check that nodes have the same weights, and no gradients are late.

        Raises:
            UsageError: they do not; names `what`, which would be incomplete.
        """
        if self._rounds and self._rounds.steps:
            reason = "nodes have different weights, in the middle of a round"
        elif isinstance(self._reducer, LateReducer) and self._reducer.is_behind:
            reason = "the last step's gradients are under way"
        else:
            return
        raise UsageError(f"{what} while {reason}: call optimizer.drain() on all ranks before")

    def load_state_dict(self, state_dict: Any) -> None:
        """Like torch's; gradients of this step are forgotten, and the result of drain() is kept."""
        if self._reducer:
            self._reducer.reset()
        self._synchronized = self._clipped = False
        self._should_synchronize = True
        super().load_state_dict(state_dict)
        self.keep_drained(state_dict.get("hvd_ext"))

    def keep_drained(self, drained: Drained | None) -> None:
        """Resume with the result of another optimizer's drain(); the same on all ranks."""
        self.drained = drained = drained or {}
        if self._reducer:
            parameters, residuals = self._parameters(), drained.get("residuals", {})
            self._reducer.keep({parameters[i]: value for i, value in residuals.items()})
        if self._rounds:
            self._rounds.keep(drained.get("rounds", {}))

    def _parameters(self) -> list[torch.nn.Parameter]:
        return [p for group in self.param_groups for p in group["params"]]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Like torch's; the gradients get buckets after the existing ones. Collective.

        Raises:
            UsageError: the group's gradients cannot be exchanged, or `sync` was requested.
            HvdExtError: ranks of a node cannot share memory for them.
        """
        super().add_param_group(param_group)
        group = len(self.param_groups) - 1
        if self._reducer and (reason := fallback.reason_against_memory(self.param_groups)):
            raise UsageError(f"a group that cannot be exchanged: {reason}")
        if self._rounds:
            raise UsageError(
                "add_param_group() of an optimizer with sync=: nodes exchange the weights that "
                "DistributedOptimizer() was given: give it all groups"
            )
        pairs = [
            (f"allreduce.noname.{group}.{i}", p)
            for i, p in enumerate(self.param_groups[group]["params"])
        ]
        if self._reducer:
            try:
                self._reducer.add(trainable(pairs))
                self._reducer.frozen.add(pairs)
            except WindowError as error:
                raise HvdExtError(f"no memory for the gradients of a new group: {error}") from error
        self._parameter_names.update({p: name for name, p in pairs})


class _PlainStep(DistributedMixin):
    """Gives Horovod's broadcast_optimizer_state the step that exchanges nothing.

    On ranks that have no state it makes some by `super(type(optimizer), optimizer).step()`, for
    which the other ranks do not wait.
    """

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        return super(DistributedMixin, self).step(closure)


def distributed_class(base: type[torch.optim.Optimizer]) -> type[DistributedMixin]:
    """Derive a class from an optimizer's, with the same name, that reduces gradients."""
    return derive((_PlainStep, base), {"step": DistributedMixin.step})


def derive(
    bases: tuple[type[DistributedMixin], type[torch.optim.Optimizer]], namespace: Mapping[str, Any]
) -> Any:
    """Make a class with the optimizer's name, in the module by which Horovod recognizes it."""
    return type(bases[1].__name__, bases, {**namespace, "__module__": horovods.WRAPPED_MODULE})

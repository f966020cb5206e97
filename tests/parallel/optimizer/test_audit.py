"""Faults are put into a training, and an audit names their step, kind, parameter and rank."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace

import numpy
import pytest
import torch

import hvd_ext.torch as hvd
from hvd_ext.audit import read_folder
from hvd_ext.errors import MismatchError, UsageError
from hvd_ext.torch.audit import auditor
from hvprof.analysis.audit import between_ranks, between_runs

pytestmark = [pytest.mark.ranks(2, pytest.param(3, marks=pytest.mark.long))]
pytestmark += [pytest.mark.usefixtures("hvd")]

STEPS, AT = 7, 5  # a step that is faulty; buckets were laid out again before it
LAYER = "2.weight"


def flip(tensor):
    """Flip a bit of one element that is not lost in what is computed from it."""
    numpy.asarray(tensor.detach()).reshape(-1).view(numpy.int32)[3] ^= 1 << 20


def build(seed=0, lr=0.1, **arguments):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    inner = torch.optim.Adam(model.parameters(), lr)
    return model, hvd.DistributedOptimizer(inner, model.named_parameters(), **arguments)


def train(fault=None, at=AT, seed=0, lr=0.1, **arguments):
    """Some steps; `fault` is one of the hooks below, by name, with what is to be called there."""
    point, act = fault or ("", None)
    model, optimizer = build(seed, lr, **arguments)
    named = dict(model.named_parameters())
    handle = None
    for step in range(1, STEPS + 1):
        here = SimpleNamespace(model=model, optimizer=optimizer, parameter=named[LAYER])
        generator = torch.Generator().manual_seed(100 * step + hvd.rank())
        here.x = torch.randn(5, 6, generator=generator)
        if step == at and point == "before":
            handle = act(here)
        torch.nn.functional.mse_loss(model(here.x), torch.zeros(5, 4)).backward()
        if step == at and point == "sum":
            optimizer.synchronize()
            act(here)
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
        optimizer.zero_grad()
        if handle is not None:
            handle.remove()
            handle = None


def on_rank_1(act):
    return lambda here: act(here) if hvd.rank() == 1 else None


def swap_samples(here):
    here.x[[0, 1]] = here.x[[1, 0]]


def flip_gradient(here):
    def flipped(gradient):
        gradient = gradient.clone()
        flip(gradient)
        return gradient

    return here.parameter.register_hook(flipped)


def scale_output(here):
    return here.model.register_forward_hook(lambda module, inputs, result: 1.01 * result)


def another_relu(here):
    return here.model[1].register_forward_hook(
        lambda module, inputs, result: torch.nn.functional.leaky_relu(inputs[0], 0.1)
    )


def another_rate(here):
    here.optimizer.param_groups[0]["lr"] = 0.2


# By what is done: kind, parameter, ranks between two runs; and kind and ranks within the second.
FAULTS = {
    "samples": (("before", on_rank_1(swap_samples)), ("input", None, (1,)), None),
    "gradient": (("before", on_rank_1(flip_gradient)), ("gradient", LAYER, (1,)), None),
    "hook": (("before", on_rank_1(scale_output)), ("gradient", "2.bias", (1,)), None),
    "operator": (("before", another_relu), ("gradient", "2.bias", None), None),
    "sum": (
        ("sum", on_rank_1(lambda here: flip(here.parameter.grad))),
        ("sum", LAYER, (1,)),
        "sum",
    ),
    "parameter": (
        ("before", on_rank_1(lambda here: flip(here.parameter))),
        ("gradient", None, (1,)),
        "update",
    ),
    "rate": (("before", on_rank_1(another_rate)), ("update", "0.weight", (1,)), "update"),
}


@pytest.fixture
def audited(tmp_path, comm, monkeypatch):
    """`audited(name, ...)` trains, and gives what each rank has written."""
    folder = comm.bcast(tmp_path)

    def run(name, *arguments, **named):
        monkeypatch.setenv("HVD_EXT_AUDIT", str(folder / name))
        train(*arguments, **named)
        comm.Barrier()
        return read_folder(folder / name)[0]

    return run


def test_faults_are_named(audited):
    healthy = audited("healthy")
    assert [len(one.records) for one in healthy] == [STEPS + 1] * hvd.size()
    again = audited("again")
    assert between_ranks(healthy).difference is None
    assert between_runs(healthy, again).difference is None
    for name, (fault, (kind, parameter, ranks), within) in FAULTS.items():
        faulty = audited(name, fault)
        found = between_runs(healthy, faulty).difference
        assert found is not None, name
        told = (found.step, found.after_step, found.kind)
        assert told == (AT, AT - 1, kind), name
        assert parameter in (None, found.parameter), name
        assert found.ranks == (tuple(range(hvd.size())) if ranks is None else ranks), name
        found = between_ranks(faulty).difference
        if within is None:
            assert found is None, name
        else:
            assert (found.step, found.kind, found.ranks) == (AT, within, (1,)), name
            if name != "rate":
                assert (found.parameter, found.more) == (LAYER, 0), name
    found = between_runs(healthy, audited("seed", seed=1)).difference
    assert (found.step, found.kind) == (0, "initial parameters")


def test_parameters_that_are_broadcast_after_the_optimizer_is_made(tmp_path, comm, monkeypatch):
    folder = comm.bcast(tmp_path)
    monkeypatch.setenv("HVD_EXT_AUDIT", str(folder))
    model, optimizer = build(seed=hvd.rank())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    model(torch.ones(1, 6)).sum().backward()
    optimizer.step()
    comm.Barrier()
    audits = read_folder(folder)[0]
    assert between_ranks(audits).difference is None
    # Bias first, in each layer from the last on.
    assert audits[0].header.backward == ("2.bias", "2.weight", "0.bias", "0.weight")


def test_sharded_is_compared_by_its_parameters(audited):
    whole, sharded = audited("whole"), audited("sharded", sharded=True)
    assert not any(any(record.sums) for record in sharded[0].records)
    assert all(all(record.gradients) for record in sharded[0].records[1:])
    assert between_runs(whole, sharded).difference is None


def test_other_bits_of_the_exchange_are_the_sums(audited, nodes):
    nodes(1)
    exact, rounded = audited("exact"), audited("rounded", compression="bf16")
    found = between_runs(exact, rounded).difference
    assert (found.step, found.kind, found.ranks) == (1, "sum", tuple(range(hvd.size())))


def test_every_second_step(audited, monkeypatch):
    monkeypatch.setenv("HVD_EXT_AUDIT_EVERY", "2")
    healthy = audited("healthy")
    assert [record.step for record in healthy[0].records] == [0, 2, 4, 6]
    found = between_runs(healthy, audited("faulty", FAULTS["gradient"][0])).difference
    # The sixth step's inputs are the same, its gradients come from other parameters.
    assert (found.step, found.after_step, found.kind) == (6, 4, "gradient")


def test_steps_between_audits_are_only_counted(tmp_path, comm, monkeypatch):
    monkeypatch.setenv("HVD_EXT_AUDIT", str(comm.bcast(tmp_path)))
    monkeypatch.setenv("HVD_EXT_AUDIT_EVERY", "3")
    model, optimizer = build()
    called = []

    def note(frame, event, argument):
        if event == "call" and "/torch/audit/" in frame.f_code.co_filename:
            called[-1].add(frame.f_code.co_name)

    for _ in range(4):
        called.append(set())
        sys.setprofile(note)
        try:
            model(torch.ones(5, 6)).sum().backward()
            optimizer.step()
        finally:
            sys.setprofile(None)
        optimizer.zero_grad()
    assert called[2] >= {"_before", "note_gradients", "of_memory"}
    assert called[3] == {"before_update", "after_update", "_prepare"}


def test_a_rank_with_other_parameters_ends_the_job_by_name(monkeypatch, caplog):
    monkeypatch.setenv("HVD_EXT_AUDIT_EVERY", "2")
    with pytest.raises(MismatchError) as caught:
        train(FAULTS["parameter"][0])
    assert "after step 6 (not yet after step 4), rank 1 (" in str(caught.value)
    if hvd.size() > 2:
        assert f"holds other values of '{LAYER}' than the other 2 of 3 ranks" in str(caught.value)
    monkeypatch.setenv("HVD_EXT_AUDIT_EVERY", "6:warn")
    with caplog.at_level(logging.WARNING, "hvd_ext"):
        train(FAULTS["parameter"][0])
    assert len(caplog.records) == (hvd.rank() == 0)
    monkeypatch.setenv("HVD_EXT_AUDIT_EVERY", "1")
    train()


def test_settings_of_recordings_are_not_taken_for_evidence(monkeypatch):
    for name in ("HVPROF_DIR", "HVD_EXT_AUDIT", "HVD_EXT_BUCKET_BYTES"):
        monkeypatch.setenv(name, "1")
    found = auditor.environment()
    assert "HVD_EXT_BUCKET_BYTES" in found
    assert not {"HVPROF_DIR", "HVD_EXT_AUDIT"} & found.keys()


def test_what_cannot_be_audited_is_refused(audited, monkeypatch):
    audited("used")
    auditor._numbers.clear()  # as another process begins
    with pytest.raises(UsageError, match="holds an audit"):
        audited("used")
    monkeypatch.setenv("HVD_EXT_AUDIT_EVERY", "often")
    with pytest.raises(UsageError, match="'often': give a number of steps"):
        audited("new")

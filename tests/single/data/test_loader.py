"""The loader: the same batches on any number of threads, a bounded number ahead."""

from __future__ import annotations

import gc
import threading
from concurrent.futures import thread
from typing import Any, ClassVar

import numpy as np
import pytest

from hvd_ext.data import DataLoader, Order
from hvd_ext.errors import UsageError


class Squares:
    """Sample i is i * i, and the sample named `bad` cannot be read; `seen` are those asked for."""

    def __init__(self, samples: int, bad: int = -1) -> None:
        self.samples, self.bad = samples, bad
        self.seen: list[int] = []
        self.threads: set[int] = set()

    def __getitem__(self, sample: int) -> dict[str, Any]:
        self.seen.append(sample)
        self.threads.add(threading.get_ident())
        if sample == self.bad:
            raise UsageError(f"sample {sample} is damaged")
        return {"square": np.full(2, sample * sample), "number": sample, "text": f"{sample}"}


def add_noise(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return sample | {"noise": rng.random()}


def batches(workers: int, ahead: int, count: int = 6) -> list[dict[str, Any]]:
    loader = DataLoader(
        Squares(10), 4, Order(10, 1), transform=add_noise, num_workers=workers,
        prefetch_factor=ahead,
    )  # fmt: skip
    return [next(loader) for _ in range(count)]


def test_batches_do_not_depend_on_threads_or_look_ahead() -> None:
    expected = batches(1, 0)
    for workers, ahead in ((1, 3), (4, 0), (4, 2)):
        for batch, other in zip(expected, batches(workers, ahead), strict=True):
            assert batch["square"].shape == (4, 2)
            assert np.array_equal(batch["square"], other["square"])
            assert np.array_equal(batch["noise"], other["noise"])
            assert batch["text"] == other["text"] == [str(n) for n in other["number"]]


def test_the_ranks_together_have_the_batch_of_one() -> None:
    order = Order(10, 1)
    whole = DataLoader(Squares(10), 6, order)
    parts = [DataLoader(Squares(10), 2, order, rank=r, size=3) for r in range(3)]
    for _ in range(4):
        numbers = [n for part in parts for n in next(part)["number"]]
        assert numbers == list(next(whole)["number"])


def test_an_epoch_ends_with_its_last_sample_and_the_next_goes_on() -> None:
    loader = DataLoader(Squares(10), 4, Order(10, 1))
    assert [len(loader), len(list(loader)), len(list(loader)), len(list(loader))] == [3, 3, 2, 3]
    assert loader.statistics().samples == 32


def test_look_ahead_is_bounded() -> None:
    for ahead in (0, 1, 3):
        dataset = Squares(1000)
        loader = DataLoader(dataset, 5, Order(1000, 1), prefetch_factor=ahead, num_workers=8)
        for taken in range(1, 4):
            next(loader)
            assert len(dataset.seen) <= 5 * (taken + ahead)
        loader.close()  # waits for those that are being read
        assert len(set(dataset.seen)) == len(dataset.seen)
        assert threading.get_ident() not in dataset.threads


def test_a_step_is_announced_before_its_samples_are_read() -> None:
    class Announced(Squares):
        announced: ClassVar[list[int]] = []

        def announce(self, sample: int) -> None:
            assert self.seen == self.announced[: len(self.announced) // 3 * 3]
            self.announced.append(sample)
            if len(self.announced) % 3 == 0:
                raise OSError("whoever reads it will see")

    dataset = Announced(10)
    loader = DataLoader(dataset, 3, Order(10, 1), num_workers=1, prefetch_factor=0)
    numbers = [n for _ in range(3) for n in next(loader)["number"]]
    assert dataset.announced == dataset.seen == numbers


def test_a_loader_that_is_forgotten_is_collected_whatever_locks_are_held() -> None:
    # The collector may run in a thread that another one starts under this lock.
    next(DataLoader(Squares(10), 4, Order(10, 1)))
    with thread._global_shutdown_lock:  # type: ignore[attr-defined]
        collector = threading.Thread(target=gc.collect)
        collector.start()
        collector.join(20)
        assert not collector.is_alive()


def test_an_error_is_raised_at_its_batch() -> None:
    order = Order(20, 3)
    loader = DataLoader(Squares(20, bad=order.sample(9)), 4, order, prefetch_factor=3)
    assert [len(next(loader)["number"]) for _ in range(2)] == [4, 4]
    with pytest.raises(UsageError, match=f"sample {order.sample(9)} is damaged"):
        next(loader)
    assert loader.state_dict()["position"] == 8


def test_a_state_is_of_what_was_handed_out() -> None:
    order = Order(10, 1, data="a")
    first = DataLoader(Squares(10), 4, order, prefetch_factor=3)
    before = [n for _ in range(3) for n in next(first)["number"]]
    state = first.state_dict()
    assert state == {"seed": 1, "position": 12, "data": "a"}
    # Two ranks of another batch go on; so does the first, after it was elsewhere.
    ranks = [DataLoader(Squares(10), 3, order, rank=r, size=2) for r in range(2)]
    for loader in (*ranks, first):
        next(loader)
        loader.load_state_dict(state)
    after = [n for _ in range(2) for loader in ranks for n in next(loader)["number"]]
    assert before + after == [order.sample(p) for p in range(24)]
    assert list(next(first)["number"]) == after[:4]
    with pytest.raises(UsageError, match="give the data it was started with"):
        DataLoader(Squares(10), 4, Order(10, 1, data="b")).load_state_dict(state)

"""A gate lets all pass once it is set, whoever waits, sets it twice, or comes later."""

from __future__ import annotations

import threading

from hvd_ext.job.gate import Gate


def test_who_waits_and_who_comes_later_passes() -> None:
    gate, passed = Gate(), []
    waiting = [threading.Thread(target=lambda: passed.append(gate.wait(60))) for _ in range(5)]
    for thread in waiting:
        thread.start()
    assert not gate.is_set()
    assert not gate.wait(0.01)
    gate.set()
    gate.set()
    for thread in waiting:
        thread.join()
    assert passed == [True] * 5
    assert gate.is_set()
    assert gate.wait()


def test_it_may_be_set_by_many_at_once() -> None:
    for _ in range(200):
        gate = Gate()
        threads = [threading.Thread(target=gate.set) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert gate.wait(60)

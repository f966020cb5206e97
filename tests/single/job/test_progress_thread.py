import time
from collections.abc import Callable

from hvd_ext.job.closing import close_later, wait_until_closed
from hvd_ext.job.progress_thread import ProgressThread


class Arena:
    """One whose memory takes a while to free."""

    def __init__(self, freed: Callable[[], None]) -> None:
        self.freed = freed

    def close(self) -> None:
        pass

    def hurry(self, within_s: float) -> bool:
        del within_s
        return False

    def __del__(self) -> None:
        time.sleep(0.2)
        self.freed()


def test_closed_arenas_are_freed_before_the_program_goes_on() -> None:
    """The interpreter ends next: a thread that frees a tensor then aborts the process."""
    freed: list[bool] = []
    close_later(ProgressThread(), [Arena(lambda: freed.append(True))])
    wait_until_closed(5.0)
    assert freed == [True]


def test_an_end_is_not_waited_for_longer_than_asked() -> None:
    thread = ProgressThread()
    began_s = time.monotonic()
    ended = thread.close(lambda: time.sleep(1.0))
    wait_until_closed(0.1)
    assert time.monotonic() - began_s < 0.9
    ended.result()

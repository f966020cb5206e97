"""Models of video, split over height and width, equal the unsplit ones; time stays whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("torch", reason="spatial layers need torch")

import torch
from torch import nn

from hvd_ext.spatial import GridShape, UnsupportedError, verify
from tests.support.spatial import video

MODELS: dict[str, Callable[[], nn.Module]] = {
    "norms over the video": lambda: video.Autoencoder("replicate", nn.GroupNorm),
    "norms of each frame": lambda: video.Autoencoder("repeat", video.FrameNorm),
    "a cache of frames": video.Cached,
    "patches": video.Patched,
    "images and frames": video.Factorized,
}
GRIDS = [
    *(GridShape(height=2), GridShape(width=3), GridShape(height=2, width=2)),
    *(GridShape(height=2, channels=2), GridShape()),
]


@pytest.mark.parametrize("frames", [1, 5, 6])
@pytest.mark.parametrize("what", MODELS)
def test_split_is_unsplit(what: str, frames: int, caplog: pytest.LogCaptureFixture) -> None:
    if what == "patches" and frames != 6:
        pytest.skip("patches are of 2 frames")
    torch.manual_seed(0)
    model = MODELS[what]()
    for grid in GRIDS:
        report = verify(model, (1, 3, frames, 10, 12), grid)
        assert report.passed, report
    # Attention alone takes the whole.
    gathers = [record.message for record in caplog.records if "every rank" in record.message]
    assert all("layer 'encoder.4'" in line for line in gathers), gathers


def test_a_cache_stays_the_callers_where_a_module_is_gathered() -> None:
    torch.manual_seed(0)
    report = verify(
        video.Cached(), (1, 3, 5, 10, 12), GridShape(height=2), gather_before=["time", "last"]
    )
    assert report.passed, report


def test_split_time_is_refused_by_name() -> None:
    for what in ("norms over the video", "a cache of frames"):
        with pytest.raises(UnsupportedError, match="layer '"):
            verify(MODELS[what](), (1, 3, 5, 10, 12), GridShape(depth=2))

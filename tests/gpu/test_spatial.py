"""Spatial layers between the GPUs that there are, at 2 and 4 processes."""

from __future__ import annotations

import re

import pytest


@pytest.mark.parametrize("np", [2, 4])
def test_split_models_train_as_whole_ones_and_halos_go_directly(launch, np):
    done = launch(np, ["tests/programs/spatial/gpu_halos.py", "cuda"], timeout=120)
    assert done.returncode == 0, done.stdout
    assert len(re.findall(r"\bok \d+$", done.stdout, re.MULTILINE)) == np, done.stdout

"""Models of others, from the extra `models`: split they equal themselves, or are refused."""

from __future__ import annotations

import importlib.util

import pytest

pytest.importorskip("torch", reason="spatial layers need torch")

from tests.support.spatial.public_models import MODELS, Public
from tests.support.spatial.public_outcomes import outcome


@pytest.mark.parametrize("public", MODELS, ids=lambda public: f"{public.package} {public.name}")
def test_a_public_model_is_split_or_refused(public: Public) -> None:
    package = public.package.replace("-", "_")
    if package and importlib.util.find_spec(package) is None:
        pytest.skip(f"{public.package} is not installed: pip install 'hvd-ext[models]'")
    found = outcome(public)
    assert public.refused in found.refused
    assert bool(public.refused) == bool(found.refused), found.refused

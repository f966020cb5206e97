"""What tests of arenas share."""

from __future__ import annotations

import pytest


@pytest.fixture
def made(monkeypatch):
    """Note the carriers and the explanation of each device arena that is made."""
    from hvd_ext.arena.cuda.arena import DeviceArena

    found = []
    init = DeviceArena.__init__

    def noted(self, *given, **named):
        init(self, *given, **named)
        found.append((set(self.carriers), self.explain()))

    monkeypatch.setattr(DeviceArena, "__init__", noted)
    return found

"""All that reports show of a recording."""

from __future__ import annotations

from functools import cached_property

from hvprof.analysis.advice.case import Advice
from hvprof.analysis.advice.rules import advise
from hvprof.analysis.findings import Findings


class Analysis(Findings):
    """The findings of a recording, and the advice that follows; reporters use only this."""

    @cached_property
    def advice(self) -> list[Advice]:
        """Return changes to try next, the most promising first."""
        return advise(self)

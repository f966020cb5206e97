"""Train EDSR several times in one job: `trains_in_turn.py FLAGS... --then FLAGS...`."""

from __future__ import annotations

import sys

from edsr import train

for flags in " ".join(sys.argv[1:]).split("--then"):
    train.main(flags.split())

"""python -m hvprof: the same as the command hvprof."""

from hvprof.cli import entry

entry()

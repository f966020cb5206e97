"""`python -m hvd_launch` is `hvd-launch`."""

from hvd_launch.cli import entry

entry()

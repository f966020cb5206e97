"""The version of the distribution hvd-ext."""

VERSION = "0.1.0"

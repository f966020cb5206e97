"""Every command's help, as a person reads it."""

from __future__ import annotations

import importlib

import pytest

import hvd_launch.cli
import hvprof.cli

TRAINERS = (
    "cosmoflow.prepare",
    "cosmoflow.train",
    "edsr.evaluate",
    "edsr.photographs",
    "edsr.train",
    "edsr.upscale",
    "mesh.train",
    "resnet.digits",
    "resnet.train",
)
COMMANDS = [
    *(("hvprof.cli", [name]) for name in hvprof.cli.SUBCOMMANDS),
    *(("hvd_launch.cli", [name]) for name in hvd_launch.cli.SUBCOMMANDS),
    *((module, []) for module in ("hvprof.cli", "hvd_launch.cli", "hvd_ext.__main__", *TRAINERS)),
]


@pytest.mark.parametrize(("module", "words"), COMMANDS)
def test_help_is_printed_as_it_is_meant(
    module: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(module).main([*words, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert text
    # argparse reads "%%" as "%" in an option's help, but not in a description.
    assert "%%" not in text
    assert "%(" not in text

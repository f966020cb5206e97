"""Every command's help, as a person reads it."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import hvd_ext
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


@pytest.mark.parametrize(
    "module",
    [
        *("hvprof.cli", "hvd_launch.cli", "hvd_ext.__main__", "hvd_ext.data.__main__"),
        *("hvd_ext.allreduce.measure", *TRAINERS),
    ],
)
def test_every_command_says_its_version(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(module).main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"hvd_ext {hvd_ext.__version__}\n"


def test_without_torch_one_line_says_what_to_do(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from hvd_ext.__main__ import main\nfrom hvd_ext.cli import run\n"
        f"sys.argv[1:] = [{str(script)!r}]\nrun(main, 'hvd_ext')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "needs torch, which is not installed" in line

"""hvd-launch's help and completion, as a person and a shell read them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hvd_launch.cli import SUBCOMMANDS, main, parser, separate

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("name", ["", *SUBCOMMANDS])
def test_help_ends_with_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*filter(None, [name]), "--help"])
    assert ended.value.code == 0
    _, example, rest = capsys.readouterr().out.rpartition("example: ")
    assert example
    assert f"hvd-launch {name}".strip() in " ".join(rest.split())


def complete(line: str, answer: Path) -> list[str]:
    """What a shell is offered after this line."""
    pytest.importorskip("argcomplete")
    variables = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "COMP_LINE": f"hvd-launch {line}",
        "COMP_POINT": str(len(f"hvd-launch {line}")),
    }
    command = [sys.executable, "-m", "hvd_launch"]
    path = os.pathsep.join([str(ROOT), str(ROOT / "launch"), os.environ.get("PYTHONPATH", "")])
    subprocess.run(command, env={**os.environ, "PYTHONPATH": path, **variables}, check=True)
    return answer.read_text().split()


def test_a_shell_completes_what_is_ours_and_then_the_command(tmp_path: Path) -> None:
    answer = tmp_path / "answer"
    assert set(complete("", answer)) == {*SUBCOMMANDS, "--help", "--version"}
    assert complete("do", answer) == ["doctor"]
    assert complete("run --pro", answer) == ["--profile"]
    assert "mpi-reg" in complete("env --preset ", answer)
    assert complete("run --visibility ro", answer) == ["rotate"]
    assert complete("exec --rep", answer) == []
    assert complete("tune allreduce --ro", answer) == ["--rounds"]
    assert "sh" in complete("run -np 2 -- s", answer)


def test_every_option_of_ours_has_a_help_text() -> None:
    top = parser()
    children = next(a for a in top._actions if a.dest == "subcommand").choices
    assert children is not None
    for name in children:
        for action in children[name]._actions:  # type: ignore[call-overload]
            assert action.help or action.choices, f"{name}: {action.option_strings}"


@pytest.mark.parametrize(
    ("words", "own", "command"),
    [
        ("run -np 2 -- python x -- -y", "run -np 2", "python x -- -y"),
        ("run -np 2 python x", "run -np 2 python x", ""),
        ("exec --visibility pin -- python x -- -y", "exec --visibility pin", "python x -- -y"),
        ("exec --visibility=pin python x -- -y", "exec --visibility=pin", "python x -- -y"),
        ("exec --report python", "exec --report", "python"),
        ("exec --backend mpich --report python -h", "exec --backend mpich --report", "python -h"),
        ("exec --unknown python x", "exec --unknown", "python x"),
        ("exec", "exec", ""),
    ],
)
def test_the_ranks_words_are_not_ours(words: str, own: str, command: str) -> None:
    assert separate(words.split())[:2] == (own.split(), command.split())

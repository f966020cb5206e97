"""hvd-launch's help and completion, as a person and a shell read them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hvd_launch.cli import SUBCOMMANDS, main, parser, separate

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", ["", *SUBCOMMANDS])
def test_help_ends_with_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*filter(None, [name]), "--help"])
    assert ended.value.code == 0
    _, example, rest = capsys.readouterr().out.rpartition("example: ")
    assert example
    assert f"hvd-launch {name}".strip() in " ".join(rest.split())


def complete(words: list[str]) -> list[str]:
    """What bash offers after these words."""
    script = subprocess.run(
        [sys.executable, "-m", "hvd_launch", "completion", "bash"],
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'launch'}"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    ask = 'COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)); _hvd_launch; printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(
        ["bash", "-c", f"{script}\n{ask}", "bash", "hvd-launch", *words],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_what_is_ours_and_then_the_command() -> None:
    assert complete([""]) == list(SUBCOMMANDS)
    assert complete(["do"]) == ["doctor"]
    assert complete(["run", "--pro"]) == ["--profile"]
    assert "mpi-reg" in complete(["env", "--preset", ""])
    assert complete(["run", "--visibility", "ro"]) == ["rotate"]
    assert complete(["completion", "f"]) == ["fish"]
    assert complete(["exec", "--rep"]) == []
    assert "bash" in complete(["run", "-np", "2", "--", "bas"])


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_accept_their_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for name in SUBCOMMANDS:
        assert name in script
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} to read the script")
    subprocess.run([shell, "-n"], input=script, text=True, check=True)


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
        ("exec", "exec", ""),
    ],
)
def test_the_ranks_words_are_not_ours(words: str, own: str, command: str) -> None:
    assert separate(words.split())[:2] == (own.split(), command.split())

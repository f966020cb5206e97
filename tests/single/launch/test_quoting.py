"""Whatever a word or a value holds, a shell that reads what hvd-launch prints gets it back."""

from __future__ import annotations

import json
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hvd_ext.errors import UsageError
from hvd_launch.backends.libraries import Backend, build_launch
from hvd_launch.commands.run import script
from hvd_launch.job import Host, Job
from hvd_launch.settings import Setting, render

SHELL = "/bin/sh"
# What can be in an environment or an argument: no NUL, and what UTF-8 can hold.
WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
HOSTILE = WORDS | st.sampled_from(
    ["", " ", "'", '"', "\\", "$HOME", "`id`", "$(id)", "a;b", "\n", "\nid\n", "#", "!", "*", "~"]
)


def read_back(lines: str, ask: str) -> list[str]:
    done = subprocess.run(
        [SHELL, "-c", f"{lines}\n{ask}"], capture_output=True, check=True, env={}, timeout=30
    )
    return done.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]


@settings(max_examples=60, deadline=None)
@given(value=HOSTILE, form=st.sampled_from(["sh", "slurm"]))
def test_a_shell_reads_back_a_settings_value(value: str, form: str) -> None:
    text = render([Setting("HVD_X", value, "default", "why", "source")], form, "title")
    assert read_back(text, 'printf "%s\\0" "$HVD_X"') == [value]


@given(HOSTILE)
def test_json_holds_the_value(value: str) -> None:
    text = render([Setting("HVD_X", value, "default", "why", "source")], "json", "title")
    assert json.loads(text)["settings"][0]["value"] == value


@settings(max_examples=60, deadline=None)
@given(command=st.lists(HOSTILE, max_size=4), value=HOSTILE, yours=HOSTILE)
def test_a_dry_run_is_a_script_that_starts_just_this(
    command: list[str], value: str, yours: str
) -> None:
    backend = Backend("openmpi4", (4, 1), "mpirun", "show")
    job = Job(2, (Host("n1", 2),), 2, ("HVD_X",), False, ("program", *command))
    environ = {"HVD_X": value, "HVD_Y": yours}
    setting = Setting("HVD_X", value, "default", "why", "source")
    kept = Setting("HVD_Y", "other", "default", "why", "source")
    try:
        launch = build_launch(backend, job, environ)
    except UsageError:
        assert ":" in command
        return
    printed = script(backend, launch, [setting], [kept])
    show = 'show() { printf "%s\\0" "$HVD_X" "$@"; }\n'
    assert read_back(show + printed, "") == [value, *launch.argv[1:]]
    assert launch.argv[-len(command) - 1 :] == ("program", *command)


@pytest.mark.parametrize("name", ["", "A B", "A=B", "1A", "A\n", "Ä", "A;id"])
def test_no_variable_has_such_a_name(name: str) -> None:
    with pytest.raises(UsageError, match="invalid variable name"):
        Setting(name, "1", "", "", "")

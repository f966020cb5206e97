"""README and docs: links lead somewhere, and commands have the flags that they are shown with."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
from collections.abc import Mapping

import pytest

import hvd_launch.cli
import hvprof.cli
from testbed.ranks import ROOT
from tests.support.training.trainer_runs import run_in_turn

DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "RELEASING.md")), *DOCS]
OURS = ("edsr", "resnet", "mesh", "cosmoflow", "benchmarks")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    missing = [
        link for link in links if "://" not in link and not (page.parent / link).resolve().exists()
    ]
    assert not missing


def test_what_readers_are_sent_to_is_short() -> None:
    """Guides and first pages are read as a whole; the reference may be longer."""
    read = [page for page in DOCS if page.parent.name in ("start", "guides")]
    assert len(read) > 10
    assert sum(len(page.read_text().split()) for page in read) <= 18_000
    assert len(DOCS) <= 34


def test_examples_start_jobs_by_the_projects_launcher() -> None:
    """Except for the one that writes Horovod's timeline."""
    found = {
        line.strip()
        for page in PAGES
        for line in re.findall(r"^    .*\bhorovodrun\b.*$", page.read_text(), re.MULTILINE)
    }
    assert found == {"HOROVOD_TIMELINE=t.json horovodrun -np 8 python train.py"}


COMMANDS = {"hvprof": hvprof.cli.parser(), "hvd-launch": hvd_launch.cli.parser()}


def flags_of(parser: argparse.ArgumentParser, words: list[str]) -> set[str]:
    """The flags of a parser and of its subcommands that the words name."""
    flags = {flag for action in parser._actions for flag in action.option_strings}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word in words:
                if word in action.choices:
                    return flags | flags_of(action.choices[word], words[words.index(word) + 1 :])
    return flags


def test_commands_have_the_flags_that_are_shown() -> None:
    wrong = []
    for page in PAGES:
        text = page.read_text().replace("\\\n", " ")
        for found in re.findall(r"^    (?:\$ )?(\S.*)|`([^`\n]+)`", text, re.MULTILINE):
            for part in re.split(r" -- |\s{2,}#|&&|\|", "".join(found)):
                match = re.match(r"(?:\S+=\S+ )*(hvprof|hvd-launch)((?: [^#]*)?)$", part.strip())
                if match is None:
                    continue
                words = [word.partition("=")[0] for word in match[2].split()]
                known = flags_of(COMMANDS[match[1]], words)
                wrong += [
                    f"{page.name}: {part.strip()}: {word}"
                    for word in words
                    if re.fullmatch(r"--?[a-z][a-z-]*", word) and word not in known
                ]
    assert wrong == []


def modules() -> dict[str, set[str]]:
    """The flags that the pages show with `python -m MODULE` of the checkout."""
    found: dict[str, set[str]] = {}
    for page in PAGES:
        text = page.read_text().replace("\\\n", " ")
        for line in re.findall(r"^    (\S.*)|`([^`\n]+)`", text, re.MULTILINE):
            command = "".join(line).split("  #")[0]
            match = re.search(r"python -m ((\w+)(?:\.\w+)+)\b(.*)", command)
            if match and match[2] in OURS:
                words = shlex.split(match[3], comments=True)
                flags = {word.partition("=")[0] for word in words if word.startswith("--")}
                found.setdefault(match[1], set()).update(flags)
    return found


@pytest.fixture(scope="module")
def helped(
    tmp_path_factory: pytest.TempPathFactory,
) -> Mapping[str, subprocess.CompletedProcess[str]]:
    commands = {module: (module, "--help") for module in modules()}
    return run_in_turn(0, tmp_path_factory.mktemp("helped"), commands)


@pytest.mark.parametrize(("module", "flags"), sorted(modules().items()))
def test_a_program_has_the_flags_that_are_shown(helped, module: str, flags: set[str]) -> None:
    done = helped[module]
    assert done.returncode == 0, done.stderr
    if module != "benchmarks.tuned_cluster":  # passes on what it does not know
        assert flags <= set(re.findall(r"--[a-z0-9-]+", done.stdout))

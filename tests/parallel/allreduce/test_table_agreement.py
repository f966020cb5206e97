"""All ranks take the table that rank 0 reads, or fail with the same line."""

from __future__ import annotations

import pytest

from tests.ranks.asserts import parallel_assert

ROW = '{"nodes": 1, "ranks_per_node": 1, "memory": "host", "choices": [[0, "ring"]]}'


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (f'{{"version": 1, "r\\u006fws": [{ROW}]}}', None),
        (f'{{"version": 1, "rows": [{ROW}, {ROW}], "x": {{"rows": [1]}}}}', None),
        (f'{{"version": 1, "r\\u006fws": [{ROW}, 1]}}', "row 1: must be an object"),
        ('{"version": 1, "rows": ' + "[" * 5000 + "]" * 5000 + "}", "nested too deep"),
        ('{"version": 1, "rows": [' + "1" * 5000 + "]}", "not JSON"),
        ("\udcff", "not JSON"),
    ],
)
def test_a_crafted_table_is_read_or_refused_on_every_rank_alike(
    comm, tmp_path, monkeypatch, content: str, says: str | None
) -> None:
    from hvd_ext.allreduce.agreed import read_table
    from hvd_ext.errors import UsageError

    path = tmp_path / "table.json"
    path.write_bytes(content.encode(errors="surrogateescape"))
    monkeypatch.setenv("HVD_EXT_TABLE", str(path))
    try:
        answer = repr(read_table(comm))
        parallel_assert(comm, says is None, answer)
    except UsageError as error:
        answer = str(error)
        parallel_assert(comm, says and says in answer and "\n" not in answer, answer)
    answers = comm.allgather(answer)
    parallel_assert(comm, len(set(answers)) == 1, answers)

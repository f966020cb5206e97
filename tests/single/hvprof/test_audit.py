"""The file of an audit, its comparison without a training, and hvprof audit."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest

from hvd_ext.audit import UNKNOWN, Audit, Header, Record, Writer, read, read_folder
from hvd_ext.errors import UsageError
from hvd_ext.torch.audit.replicas import describe
from hvprof.analysis.audit import between_ranks, between_runs
from hvprof.cli import main
from tests.support.hvprof.made_recordings import write_job

NAMES = ("first", "second", "third")


def record(step, inputs=1, gradients=(1, 2, 3), sums=(4, 5, 6), parameters=(7, 8, 9)):
    return Record(step, inputs, list(gradients), list(sums), list(parameters))


def audit(rank=0, size=1, records=None, **header):
    made = Header(rank, size, 0, NAMES, **header)
    return Audit(made, [record(step) for step in range(4)] if records is None else records)


def changed(step, **values):
    return [record(n, **(values if n == step else {})) for n in range(4)]


def write(folder, one):
    writer = Writer(folder, one.header.optimizer, one.header.rank)
    writer.begin(one.header)
    for each in one.records:
        writer.add(each)
    writer.close()


def test_what_is_written_is_read(tmp_path):
    written = audit(environment={"threads": "2"}, every=3, backward=("third", "first"), replicas=2)
    written.records[1] = record(1, 2**64 - 1, gradients=(UNKNOWN, 2**63, 1))
    write(tmp_path, written)
    assert read_folder(tmp_path) == {0: [written]}


def test_a_file_that_is_cut_anywhere_ends_at_its_last_whole_record(tmp_path):
    write(tmp_path, audit())
    path = next(tmp_path.iterdir())
    whole = path.read_bytes()
    header = whole.index(b"\n") + 1
    for length in range(header, len(whole)):
        path.write_bytes(whole[:length])
        assert read(path).records == audit().records[: (length - header) // (8 * 11)]
    path.write_bytes(b"")
    with pytest.raises(UsageError, match="is empty: that rank ended before its first step"):
        read(path)
    for content in (whole[:20], b"[]\n", b'{"hvd_ext_audit": 1}\n', b"\xff\n"):
        path.write_bytes(content)
        with pytest.raises(UsageError, match="is not an audit"):
            read(path)
    path.write_bytes(whole.replace(b'"hvd_ext_audit": 1', b'"hvd_ext_audit": 9'))
    with pytest.raises(UsageError, match="has format 9: this version reads 1"):
        read(path)


def test_a_rank_without_a_file_is_named(tmp_path):
    with pytest.raises(UsageError, match="holds no audit"):
        read_folder(tmp_path)
    write(tmp_path, audit(rank=0, size=3))
    write(tmp_path, audit(rank=2, size=3))
    with pytest.raises(UsageError, match="lacks optimizer 0 of rank 1 of 3"):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    ("values", "kind", "parameter", "more"),
    [
        ({"inputs": 9}, "input", None, 0),
        ({"inputs": 9, "gradients": (9, 9, 9)}, "input", None, 0),
        ({"gradients": (1, 0xF, 3), "parameters": (0, 1, 2)}, "gradient", "second", 0),
        ({"gradients": (9, 9, 3)}, "gradient", "second", 1),
        ({"sums": (9, 5, 6)}, "sum", "first", 0),
        ({"parameters": (7, 9, 10)}, "update", "second", 1),
        ({"sums": (UNKNOWN, UNKNOWN, UNKNOWN)}, None, None, 0),
    ],
)
def test_what_differs_first_is_named(values, kind, parameter, more):
    found = between_runs([audit()], [audit(records=changed(2, **values))]).difference
    if kind is None:
        assert found is None
        return
    assert (found.step, found.after_step) == (2, 1)
    assert (found.kind, found.parameter, found.more) == (kind, parameter, more)


def test_runs_on_other_numbers_of_ranks_are_compared_by_what_all_ranks_share():
    other = changed(3, inputs=5, gradients=(5, 5, 5), parameters=(7, 8, 0xF))
    two = [audit(rank, 2, other, environment={"threads": "2"}) for rank in range(2)]
    found = between_runs([audit(environment={"threads": "1"})], two)
    assert found.compared == ("sum", "update")
    assert (found.difference.kind, found.difference.parameter) == ("update", "third")
    assert found.difference.evidence == ("ranks: 1 and 2", "threads: 1 and 2")


def test_runs_without_a_common_step_or_parameter_are_refused():
    with pytest.raises(ValueError, match="step in common"):
        between_runs([audit()], [audit(records=[])])
    names = replace(audit().header, names=("another",))
    with pytest.raises(ValueError, match="parameter in common"):
        between_runs([audit()], [Audit(names, [])])


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_the_rank_that_differs_from_most_is_named(wrong):
    ranks = [audit(rank, 3) for rank in range(3)]
    ranks[wrong] = audit(wrong, 3, changed(1, inputs=77, parameters=(7, 1, 9)))
    found = between_ranks(ranks).difference
    assert (found.step, found.kind, found.parameter) == (1, "update", "second")
    assert found.ranks == (wrong,)
    assert between_ranks([audit(rank, 3) for rank in range(3)]).difference is None


def test_the_first_gradient_is_that_of_backward():
    first = [audit(backward=("second", "third", "first"))]
    faulty = [audit(records=changed(2, gradients=(0xF, 0xF, 0xF), parameters=(9, 9, 9)))]
    found = between_runs(first, faulty).difference
    assert (found.kind, found.parameter, found.more) == ("gradient", "second", 2)
    faulty = [audit(records=changed(2, gradients=(0xF, 2, 0xF)))]
    assert between_runs(first, faulty).difference.parameter == "third"
    faulty = [audit(records=changed(2, parameters=(0xF, 0xF, 9)))]
    assert between_runs(first, faulty).difference.parameter == "first"


def test_another_run_decides_between_two_halves():
    healthy = [audit(rank, 2) for rank in range(2)]
    for wrong in range(2):
        faulty = [audit(rank, 2) for rank in range(2)]
        # The sums then differ on both ranks, as do the parameters; the gradients on one.
        for rank in range(2):
            values = {"sums": (0xF, 0xF, 0xF), "parameters": (0xF, 0xF, 0x10 + rank)}
            values |= {"gradients": (1, 2, 0xF)} if rank == wrong else {}
            faulty[rank] = audit(rank, 2, changed(2, **values))
        found = between_ranks(faulty, healthy).difference
        assert (found.step, found.kind, found.parameter) == (2, "update", "third")
        assert found.ranks == (wrong,)
        assert between_ranks(faulty).difference.ranks == (1,)


def test_only_ranks_that_ought_to_hold_the_same_are_compared():
    records = [audit().records, changed(2, sums=(1, 1, 1), parameters=(1, 1, 1))]
    nodes = [audit(rank, 4, records[rank // 2], replicas=rank // 2 * 2) for rank in range(4)]
    assert between_ranks(nodes).difference is None
    nodes[3] = audit(3, 4, changed(3, sums=(1, 2, 1)), replicas=2)
    found = between_ranks(nodes).difference
    assert (found.step, found.kind, found.ranks) == (2, "sum", (3,))


def test_of_two_halves_rank_0s_is_right():
    assert describe([[1, 2], [1, 3]], ("a", "b"), NAMES[:2]) == (
        "rank 1 (b) holds other values of 'second' than the other 1 of 2 ranks"
    )
    assert describe([[0, 3], [1, 2], [1, 2], [0, 2]], (), NAMES[:2]).startswith(
        "ranks 0, 3 hold other values of 'first' and 1 more"
    )


def test_the_page_of_a_recording_has_its_audit(tmp_path):
    run, out = write_job(tmp_path / "run", 2), tmp_path / "run.html"

    def html():
        main(["report", str(run), "--html", str(out)])
        return out.read_text()

    def page():
        text = html()
        table = text.partition("Audit of the ranks")[2].partition("<tbody>")[2]
        cells = re.findall(r"<t[dh][^>]*>([^<]*)</t[dh]>", table)
        data = json.loads(re.search(r'id="hvprof-data"[^>]*>(.*?)</script>', text, re.S)[1])
        return cells[:5], data.get("audit"), table

    assert "Audit of the ranks" not in html()
    write(run / "audit", audit(0, 2))
    assert "lacks optimizer 0 of rank 1 of 2" in page()[0][0]
    write(run / "audit", audit(1, 2, changed(2, parameters=(7, 1, 1))))
    cells, data, after = page()
    assert cells == ["0", "in step 2", "update", "second and 1 more", "rank 1"]
    assert "A difference in the update points to the optimizer: its settings" in after
    assert data["comparisons"][0]["difference"]["parameter"] == "second"
    for path in (run / "audit").iterdir():
        path.unlink()
    for rank in range(2):
        write(run / "audit", audit(rank, 2))
    assert page()[0] == ["0", "none in 4 records", "-", "-", "-"]


def hvprof_audit(*words):
    command = [sys.executable, "-m", "hvprof", "audit", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_command(tmp_path):
    write(tmp_path / "a" / "audit", audit())
    write(tmp_path / "b", audit(records=changed(2, gradients=(1, 2, 9)), environment={"x": "y"}))
    done = hvprof_audit(tmp_path / "a", tmp_path / "b")
    assert done.returncode == 1, done.stderr
    assert "A and B differ in step 2: gradient of third, on rank 0" in done.stdout
    assert "also different: x: unset and y" in done.stdout
    assert len(done.stdout.splitlines()) < 24
    done = hvprof_audit("--json", tmp_path / "a", tmp_path / "b")
    assert done.returncode == 1
    last = json.loads(done.stdout)["comparisons"][-1]
    assert (last["compared"], last["difference"]["kind"]) == ("A and B", "gradient")
    done = hvprof_audit(tmp_path / "a")
    assert done.returncode == 0, done.stderr
    assert "no difference in 4 records" in done.stdout
    done = hvprof_audit(tmp_path / "a", tmp_path)
    assert done.returncode == 2
    assert "holds no audit" in done.stderr
    assert len(done.stderr.splitlines()) == 1

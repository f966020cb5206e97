"""Freed memory is kept: counted in page faults, of processes of their own; never against a user."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hvd_ext.errors import UsageError
from hvd_ext.system.freed_memory import VARIABLES, chosen_names, keep_freed_memory, left_alone
from tests.support.launch.page_faults import ASK, COUNT, ROOT

# As glibc comes, each of them goes back to the kernel: the last exceeds what a threshold may be.
SIZES_MIB = ([20] * 4, [5] * 16, [48] * 2)


def without_settings() -> dict[str, str]:
    names = {*chosen_names(os.environ), *VARIABLES, "HVD_EXT_KEEP_MEMORY"}
    return {name: value for name, value in os.environ.items() if name not in names}


def told(code: str, *words: object, python: str = sys.executable, **variables: str) -> list[str]:
    done = subprocess.run(
        [python, "-c", code, *map(str, words)],
        env={**without_settings(), "PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def faults(sizes_mib: list[int], **variables: str) -> tuple[str, int]:
    """Why memory is not kept, and the page faults of a round that fills blocks and frees them."""
    reason, count = told(ASK + COUNT, *sizes_mib, **variables)
    return reason, int(count)


@pytest.mark.parametrize("sizes_mib", SIZES_MIB, ids=str)
def test_a_round_uses_what_the_last_one_freed(sizes_mib: list[int]) -> None:
    left, plain = faults(sizes_mib, HVD_EXT_KEEP_MEMORY="0")
    assert left == "HVD_EXT_KEEP_MEMORY=0"
    assert faults(sizes_mib)[0] == ""
    # Where the kernel gives huge pages by itself, a round has one fault for 2 MiB.
    assert plain >= sum(sizes_mib) // 4
    assert 10 * faults(sizes_mib)[1] < plain


@pytest.mark.parametrize("sizes_mib", SIZES_MIB, ids=str)
def test_the_variables_do_the_same(sizes_mib: list[int]) -> None:
    _, plain = faults(sizes_mib, HVD_EXT_KEEP_MEMORY="0")
    _, kept = faults(sizes_mib, HVD_EXT_KEEP_MEMORY="0", **VARIABLES)
    assert 10 * kept < plain


@pytest.mark.parametrize(
    "variable",
    [
        "MALLOC_TRIM_THRESHOLD_=131072",
        "MALLOC_MMAP_THRESHOLD_=1048576",
        "MALLOC_MMAP_MAX_=65536",
        "MALLOC_ARENA_MAX=2",
        "GLIBC_TUNABLES=glibc.malloc.tcache_count=0",
    ],
)
def test_what_a_user_set_is_left_alone(variable: str) -> None:
    name, _, value = variable.partition("=")
    reason, count = faults([20] * 4, **{name: value})
    assert reason == f"{variable} is set"
    assert count >= 20


def test_variables_of_others_do_not_matter() -> None:
    other = {"MALLOC_CONF": "narenas:2", "GLIBC_TUNABLES": "glibc.rtld.nns=4"}
    assert not left_alone(other)
    assert faults([20] * 4, **other)[0] == ""
    assert not left_alone(VARIABLES)


def other_malloc(tmp_path: Path) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no C compiler")
    source, library = tmp_path / "other.c", tmp_path / "libother.so"
    source.write_text(
        "#include <stddef.h>\n"
        "void *__libc_malloc(size_t);\n"
        "void *malloc(size_t bytes) { return __libc_malloc(bytes); }\n"
    )
    subprocess.run([compiler, "-xc", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


def test_another_malloc_is_left_alone(tmp_path: Path) -> None:
    library = other_malloc(tmp_path)
    reason, count = faults([20] * 4, LD_PRELOAD=str(library))
    assert reason == f"malloc is that of {library}"
    assert count >= 20


def test_a_program_with_an_address_of_its_own_for_malloc(tmp_path: Path) -> None:
    debians = Path("/usr/bin/python3")
    type_of_file = debians.read_bytes()[16:18] if debians.exists() else b""
    if type_of_file != bytes([2, 0]):  # ET_EXEC
        pytest.skip("no Python that is linked to fixed addresses")
    assert told(ASK, python=str(debians)) == [""]
    library = other_malloc(tmp_path)
    reason = f"malloc is that of {library}"
    assert told(ASK, python=str(debians), LD_PRELOAD=str(library)) == [reason]


def test_a_switch_is_0_or_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVD_EXT_KEEP_MEMORY", "yes")
    with pytest.raises(UsageError, match="HVD_EXT_KEEP_MEMORY='yes': give 1, or 0"):
        keep_freed_memory()


# Blocks of 1 KiB to 48 MiB, any of which may outlive many others; brk tells how far the heap has
# grown. 20,000 of them together have some 90 GiB.
CHURN = """
import ctypes, json, random, sys
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes, libc.sbrk.restype = [ctypes.c_void_p], ctypes.c_void_p
start, live, blocks, peak, grown = libc.sbrk(0), 0, [], 0, []
dice = random.Random(int(sys.argv[1]))
for number in range(20000):
    size = int(2 ** dice.uniform(10, 25.6))
    blocks.append((libc.malloc(size), size))
    live += size
    while live > 256 << 20:
        block, size = blocks.pop(dice.randrange(len(blocks)))
        libc.free(block)
        live -= size
    peak = max(peak, live)
    if number % 5000 == 4999:
        grown.append(libc.sbrk(0) - start)
print(json.dumps([peak, grown]))
"""


@pytest.mark.parametrize("seed", range(3))
def test_memory_does_not_grow_without_bound(seed: int) -> None:
    reason, last = told(ASK + CHURN, seed)
    peak, grown = json.loads(last)
    assert reason == ""
    assert grown[-1] < 3 * peak
    # The heap's last holes: up to a fifth, by how it began. What grows on and on would double.
    assert grown[-1] < 1.4 * grown[1]

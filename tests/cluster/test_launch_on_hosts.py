"""hvd-launch with ranks on other hosts, of whose processes it sees none."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.launch.on_every_mpi import (
    IN_TEST_OR_LONG,
    backend_of,
    bin_of,
    environment,
    hvd_launch,
    on_two_hosts,
    wait_for,
)

# In place of ssh: hands its words and streams to whoever serves the socket, and waits.
ASKS = """#!/usr/bin/env python3
import os, socket, sys
asked = socket.socket(socket.AF_UNIX)
asked.connect({path!r})
socket.send_fds(asked, ["\\0".join(sys.argv[1:]).encode()], [0, 1, 2])
sys.exit(int(asked.recv(9) or 1))
"""
# Takes longer to write its checkpoint than launchers leave a rank that they end.
SAVES = """
import os, signal, sys, time
from mpi4py import MPI
rank = MPI.COMM_WORLD.rank
def save(*_):
    time.sleep(4)
    open(f"{sys.argv[1]}/saved {rank}", "w").close()
    MPI.COMM_WORLD.barrier()
    os._exit(99)
signal.signal(signal.SIGTERM, save)
MPI.COMM_WORLD.barrier()
open(f"{sys.argv[1]}/{rank}", "w").close()
while True: signal.pause()
"""


@contextmanager
def far_away(agent: str, folder: Path, environ: dict[str, str]) -> Iterator[str]:
    """An agent that starts commands as `agent` does, by processes that are not its own children."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(folder / "socket"))
    listening.listen()

    def serve() -> None:
        while True:
            try:
                asked, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=run, args=(asked,), daemon=True).start()

    def run(asked: socket.socket) -> None:
        words, streams, _, _ = socket.recv_fds(asked, 1 << 20, 3)
        command = [agent, *words.decode().split("\0")]
        done = subprocess.Popen(
            command, stdin=streams[0], stdout=streams[1], stderr=streams[2], env=environ
        )
        for stream in streams:
            os.close(stream)
        asked.sendall(str(done.wait()).encode())

    threading.Thread(target=serve, daemon=True).start()
    asks = folder / "agent"
    asks.write_text(ASKS.format(path=str(folder / "socket")))
    asks.chmod(0o755)
    try:
        yield str(asks)
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()


@pytest.mark.parametrize("name", IN_TEST_OR_LONG)
def test_ranks_of_other_hosts_get_time_after_sigterm_and_the_exit_code_is_theirs(
    name: str, tmp_path: Path
) -> None:
    library = bin_of(name, "network")
    wanted = backend_of(library).library
    saved = tmp_path / "saved"
    saved.mkdir()
    with on_two_hosts(library) as (enter, hosts, variables):
        environ = environment(library, **variables)
        with far_away(variables[wanted.agent_variable], tmp_path, environ) as agent:
            ranks = (str(library / "python"), "-c", SAVES, str(saved))
            job = subprocess.Popen(
                [*enter, *hvd_launch("run", "-np", "2", "-H", hosts, "--", *ranks)],
                env={**environ, wanted.agent_variable: agent},
                start_new_session=True,
                stderr=subprocess.PIPE,
                text=True,
            )
            try:
                wait_for(lambda: len(list(saved.iterdir())) == 2)
                job.send_signal(signal.SIGTERM)
                _, said = job.communicate(timeout=60)
            finally:
                job.kill()
    assert job.returncode == 99, said
    assert "hvd-launch: SIGTERM: the ranks ended the job with code 99" in said
    assert {path.name for path in saved.iterdir()} >= {"saved 0", "saved 1"}

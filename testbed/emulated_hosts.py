"""Several hosts on one machine, for tests and benchmarks of what happens between nodes.

A host is a set of namespaces: host name, network, processes, /dev/shm. To MPI that is a
separate node, whose ranks share memory with each other and talk TCP to the rest. The
hosts are joined by a bridge, each through a token bucket in either direction: all that
a host sends shares its link, and so does all that it receives.

A host lives as long as its first process, which ends when the pipe from this process is
closed, by whatever end this process meets; the kernel then kills the host's other
processes and takes the interfaces away. So there is nothing to clean up after a killed
run, and two runs do not meet: nothing is made in the machine's own network.

It takes Linux, root (in a container: `docker run --privileged`), iproute2, util-linux, and
Open MPI 4, whose launcher takes the command that enters a host.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hvd_ext.errors import HvdExtError

INTERFACE = "eth0"
_TOOLS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}
# Any would do: the network is the hosts' own.
_NETWORK, _ADDRESS = "10.77.0.0/24", "10.77.0.{}"
_SWITCH, _SWITCH_NUMBER = "switch", 254
_SPACES = ("uts", "net", "ipc", "mount", "pid")
# A bucket has to hold the packets that TCP hands down (64 KiB): one alone takes 5 % of the speed,
# two nothing. What it holds passes a link that was idle at no cost, so it holds no more than that.
# A queue has to hold what the peers' windows let them send at once: a dropped packet is a stall of
# 200 ms, which a cluster's network does not have.
_BURST, _QUEUE = "128kb", "64mb"
# Where hosts share a link evenly, packets are small: the first two pass a link that was idle at no
# cost, and a short message shall be many. A timer that is late by a packet's time costs nothing.
_MTU, _FRAME = 700, 714
# The first process. It reads its id before /proc becomes the host's own. Libraries tell machines
# apart by the id of their boot. The files by which hosts know each other's addresses, and that id,
# stay mounted when their names are gone.
_FIRST_PROCESS = """
read pid rest < /proc/self/stat
mount -t proc proc /proc && mount -t tmpfs tmpfs /dev/shm && hostname "$0" || exit
printf '%s' "$1" > /dev/shm/hosts && mount --bind /dev/shm/hosts /etc/hosts || exit
random=/proc/sys/kernel/random
cat $random/uuid > /dev/shm/boot_id && mount --bind /dev/shm/boot_id $random/boot_id || exit
rm /dev/shm/hosts /dev/shm/boot_id
echo "$pid"
exec cat
"""
# What Open MPI runs in place of ssh.
_AGENT = Path(__file__).with_name("enter_host.sh")


class EmulationError(HvdExtError):
    """This machine cannot emulate hosts; the message says why."""


@dataclass(frozen=True)
class Hosts:
    """Hosts that are up.

    Attributes:
        names: their host names.
        addresses: their IPv4 addresses.
        pids: their first processes, and last the switch's.
    """

    names: tuple[str, ...]
    addresses: tuple[str, ...]
    pids: tuple[int, ...]

    def mpirun(self, ranks_per_host: int | Sequence[int], mpirun: str = "mpirun") -> list[str]:
        """Open MPI's mpirun for as many ranks on every host, or on each; programs follow.

        It runs next to the switch, as on a head node. Waiting ranks give way, as there may
        be more ranks than cores, and TCP is set as `hvd-launch run` has it.
        """
        if isinstance(ranks_per_host, int):
            ranks_per_host = [ranks_per_host] * len(self.names)
        of_host = zip(self.names, ranks_per_host, strict=True)
        slots = ",".join(f"{name}:{count}" for name, count in of_host)
        parameters = {
            "plm_rsh_agent": str(_AGENT),
            "pml": "ob1",
            "btl": "tcp,vader,self",
            "btl_tcp_if_include": INTERFACE,
            "btl_tcp_eager_limit": "528384",
            "oob_tcp_if_include": _NETWORK,
            "mpi_yield_when_idle": "1",
        }
        options = [word for pair in parameters.items() for word in ("--mca", *pair)]
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        job = ["-H", slots, "-np", str(sum(ranks_per_host)), "--bind-to", "none"]
        return [*_enter(self.pids[-1], "uts", "net"), mpirun, *root, *job, *options]

    def environment(self) -> dict[str, str]:
        """Variables that `mpirun` needs, and that name the interface for Gloo and NCCL."""
        hosts = zip(self.names, self.pids, strict=False)
        return {
            "EMULATED_HOSTS": " ".join(f"{name}={pid}" for name, pid in hosts),
            "GLOO_SOCKET_IFNAME": INTERFACE,
            "NCCL_SOCKET_IFNAME": INTERFACE,
        }

    def set_link(self, index: int, gbit: float, queue: str = _QUEUE) -> None:
        """Change the link of a host, in either direction.

        Args:
            index: of the host.
            gbit: its speed in Gbit/s.
            queue: the bytes that may wait for the link; further packets are dropped.
        """
        bucket = _bucket(gbit, queue)
        _batch("tc", self.pids[-1], [f"qdisc change dev port{index} {bucket}"])
        _batch("tc", self.pids[index], [f"qdisc change dev {INTERFACE} {bucket}"])

    def set_carrier(self, index: int, *, up: bool) -> None:
        """Take a host's link down, or up again, at the switch."""
        _batch("ip", self.pids[-1], [f"link set port{index} {'up' if up else 'down'}"])


@contextmanager
def emulated_hosts(
    count: int, gbit: float, congestion: str = "", *, fair: bool = False
) -> Iterator[Hosts]:
    """Build `count` hosts, each with a link of `gbit` Gbit/s in either direction.

    Args:
        count: how many.
        gbit: the speed of a link.
        congestion: TCP's congestion control on the hosts; "" for the machine's own.
        fair: the hosts that a link leads to, or from, share it evenly at all times, as in a
            cluster's network; otherwise packets leave in the order in which they come. A link that
            was idle lets two packets of 700 bytes pass at once.

    Raises:
        EmulationError: tools or privileges are missing.
    """
    missing = sorted({package for tool, package in _TOOLS.items() if not shutil.which(tool)})
    if missing:
        raise EmulationError(f"emulated hosts need {' and '.join(missing)}: install it")
    names = tuple(f"host{index}" for index in range(count))
    addresses = tuple(_ADDRESS.format(index + 1) for index in range(count))
    first: dict[str, subprocess.Popen[str]] = {}
    try:
        known = _hosts_file(names, addresses)
        pids = {name: _start(name, known, first) for name in (*names, _SWITCH)}
        _join(pids, addresses, gbit, fair=fair)
        if congestion:
            for name in names:
                _control_congestion(pids[name], congestion)
        yield Hosts(names, addresses, tuple(pids.values()))
    finally:
        for process in first.values():
            process.kill()
            process.communicate()


def _hosts_file(names: Sequence[str], addresses: Sequence[str]) -> str:
    places = {
        "localhost": "127.0.0.1",
        **dict(zip(names, addresses, strict=True)),
        _SWITCH: _ADDRESS.format(_SWITCH_NUMBER),
    }
    return "".join(f"{address} {name}\n" for name, address in places.items())


def _start(name: str, known: str, first: dict[str, subprocess.Popen[str]]) -> int:
    spaces = [f"--{space}" for space in _SPACES]
    first[name] = subprocess.Popen(
        ["unshare", *spaces, "--fork", "--kill-child", "sh", "-c", _FIRST_PROCESS, name, known],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Ctrl-C is for this process, which then ends the hosts.
        start_new_session=True,
    )
    stdout, stderr = first[name].stdout, first[name].stderr
    assert stdout is not None
    assert stderr is not None
    line = stdout.readline()
    if not line:
        raise EmulationError(
            f"no namespaces for emulated hosts ({stderr.read().strip()}): run as root, "
            "in a container with --privileged"
        )
    return int(line)


def _join(pids: Mapping[str, int], addresses: Sequence[str], gbit: float, *, fair: bool) -> None:
    bucket = _bucket(gbit)
    switch = pids[_SWITCH]
    bridge = ["add bridge type bridge", "set bridge up", "set lo up"]
    _batch("ip", switch, [f"link {line}" for line in bridge])
    _batch("ip", switch, [f"address add {_ADDRESS.format(_SWITCH_NUMBER)}/24 dev bridge"])
    for index, address in enumerate(addresses):
        host, port = pids[f"host{index}"], f"port{index}"
        ends = f"{port} type veth peer name {INTERFACE} netns {host}"
        _batch("ip", switch, [f"link add {ends}", f"link set {port} master bridge up"])
        _batch("ip", host, [f"address add {address}/24 dev {INTERFACE}"])
        _batch("ip", host, ["link set lo up", f"link set {INTERFACE} up"])
        if fair:
            others = [other for other in addresses if other != address]
            _batch("ip", switch, [f"link set {port} gso_max_segs 1 mtu {_MTU}"])
            _batch("ip", host, [f"link set {INTERFACE} gso_max_segs 1 mtu {_MTU}"])
            _batch("tc", switch, list(_shared_evenly(port, "src", others, gbit)))
            _batch("tc", host, list(_shared_evenly(INTERFACE, "dst", others, gbit)))
        else:
            _batch("tc", switch, [f"qdisc add dev {port} {bucket}"])
            _batch("tc", host, [f"qdisc add dev {INTERFACE} {bucket}"])


def _shared_evenly(device: str, way: str, others: Sequence[str], gbit: float) -> Iterator[str]:
    """Lines of tc for a link whose queues, one for each other host, take turns by packets."""
    rate = f"{gbit * 1e6:.0f}kbit"
    whole = f"rate {rate} ceil {rate} burst {_FRAME} cburst {_FRAME}"
    # A queue has next to no rate for itself: it borrows what it sends from the link, so that a
    # link that was idle lets its first packets pass once, not once for each host.
    shared = f"rate 1kbit ceil {rate} burst 1 cburst {_FRAME} quantum {_FRAME}"
    yield f"qdisc add dev {device} root handle 1: htb default 2"
    yield f"class add dev {device} parent 1: classid 1:1 htb {whole}"
    # The first is for what goes to no host, such as the switch.
    for number, address in enumerate(("", *others), 2):
        queue = f"1:{number:x}"
        yield f"class add dev {device} parent 1:1 classid {queue} htb {shared}"
        yield f"qdisc add dev {device} parent {queue} bfifo limit {_QUEUE}"
        if address:
            match = f"u32 match ip {way} {address}"
            yield f"filter add dev {device} parent 1: protocol ip {match} flowid {queue}"


def _control_congestion(pid: int, name: str) -> None:
    path = "/proc/sys/net/ipv4/tcp_congestion_control"
    command = [*_enter(pid, "net"), "sh", "-c", f"echo {name} > {path}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise EmulationError(f"TCP on emulated hosts cannot use {name}: {reason}")


def _bucket(gbit: float, queue: str = _QUEUE) -> str:
    return f"root tbf rate {gbit * 1e6:.0f}kbit burst {_BURST} limit {queue}"


def _batch(tool: str, pid: int, lines: Sequence[str]) -> None:
    command = [*_enter(pid, "net"), tool, "-batch", "-"]
    done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True)
    if done.returncode != 0:
        reason = done.stderr.strip().splitlines()[0]
        raise EmulationError(f"{tool} cannot set up a network for emulated hosts: {reason}")


def _enter(pid: int, *spaces: str) -> list[str]:
    return ["nsenter", "-t", str(pid), *(f"--{space}" for space in spaces)]

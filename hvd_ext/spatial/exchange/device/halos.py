"""Halos on GPUs: one kernel packs faces, edges and corners straight into the neighbors' memory.

                 this rank's own stream                       the stream in which torch computes
    start        waits for what torch has computed so far
                 waits until neighbors have taken the last
                 message from the same slot
                 packs; SENT                                  (the interior)
    finish       waits for the neighbors' SENT
                 copies messages out of the slot; TAKEN
                                                              waits for TAKEN

A neighbor on another node gets its message through pinned memory of the host and MPI, so `finish`
waits on the host until it is there. Memory for messages is allocated for a pair of ranks at their
first message and at each larger one, and all layers reuse it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hvd_ext.arena.cuda.ipc import Exported, Opened, settle
from hvd_ext.job.waiting import message
from hvd_ext.spatial.exchange.communicator import Receive, Send
from hvd_ext.spatial.exchange.device import gpu
from hvd_ext.spatial.exchange.device.moves import MOST_DIMS, Move, flat
from hvd_ext.spatial.exchange.device.peers import SENT, SLOTS, TAKEN, Peers
from hvd_ext.variables import STALL_TIMEOUT_S

Staged = Callable[[Sequence[Send], Sequence[Receive], Tensor], Callable[[], None]]
_LEAST_BYTES = 64 << 10
_TAG = 32_001  # beyond those of exchanges
_OCCASION = "a halo exchange"


@dataclass
class _Channel:
    """Memory for one rank's messages to another, with slots for the next ones.

    Attributes:
        address: its address in this process.
        slot_bytes: bytes of one slot.
        last: number of the last message in each slot.
        memory: object that keeps it open.
    """

    address: int = 0
    slot_bytes: int = 0
    last: list[int] = field(default_factory=lambda: [0] * SLOTS)
    memory: list[Any] = field(default_factory=list)

    def place(self, slot: int) -> int:
        return self.address + slot * self.slot_bytes


class Halos:
    """Exchanges between the GPUs of a group."""

    def __init__(self, peers: Peers, staged: Staged) -> None:
        """Begin without any memory.

        Args:
            peers: the ranks that this one reaches directly.
            staged: exchanges memory of the host with other ranks, like a Communicator's `start`.
        """
        self._peers, self._staged = peers, staged
        self._far = peers.comm.size > len(peers.ranks)
        self._out: dict[int, _Channel] = {}
        self._in: dict[int, _Channel] = {}
        self._pinned: dict[tuple[int, int, bool], Tensor] = {}
        self._under_way: dict[int, _Exchange] = {}
        self._number = 0

    def start(self, sends: Sequence[Send], receives: Sequence[Receive]) -> Callable[[], None]:
        """As a Communicator's `start`."""
        self._number += 1
        slot = self._number % SLOTS
        if (earlier := self._under_way.get(slot)) is not None:
            # The program has dropped the earlier exchange without finishing it; all ranks notice it
            # here.
            self.finish(earlier)
        self._make_room(sends, receives)
        exchange = _Exchange(self._number, sends, receives)
        self._under_way[slot] = exchange
        peers = self._peers
        moves = []
        for peer, pieces in sends:
            if peer in peers.ranks:
                target = self._out[peer].place(slot)
            else:
                buffer = self._buffer(peer, slot, True, sum(piece.nbytes for piece in pieces))
                exchange.staged_sends.append((peer, [buffer]))
                target = buffer.data_ptr()
            for piece in pieces:
                moves.append(exchange.packed(piece, target))
                target += piece.nbytes
        with peers.on_gpu():
            peers.follow(gpu.current_stream(peers.ordinal))
            for peer, _ in sends:
                if peer in peers.ranks:
                    channel = self._out[peer]
                    if channel.last[slot]:
                        peers.hear(peer, TAKEN + slot, channel.last[slot], _OCCASION)
                    channel.last[slot] = self._number
            peers.move(moves)
            peers.say(SENT + slot, self._number)
        return partial(self.finish, exchange)

    def finish(self, exchange: _Exchange) -> None:
        """Let torch's stream continue when all messages are there."""
        if exchange.over:
            return
        exchange.over = True
        peers, slot = self._peers, exchange.number % SLOTS
        moves = []
        with peers.on_gpu():
            if self._far:
                self._exchange_staged(exchange, slot)
            for peer, into in exchange.receives:
                if peer in peers.ranks:
                    peers.hear(peer, SENT + slot, exchange.number, _OCCASION)
                    source = self._in[peer].place(slot)
                else:
                    source = self._buffer(peer, slot, False, into.nbytes).data_ptr()
                moves.append(flat(source, into.nbytes, gpu.address_of(into)))
            peers.move(moves)
            peers.say(TAKEN + slot, exchange.number)
            peers.lead(gpu.current_stream(peers.ordinal))
        del self._under_way[slot]
        exchange.sends, exchange.receives = (), ()

    def _exchange_staged(self, exchange: _Exchange, slot: int) -> None:
        """Receive other nodes' messages into pinned memory by MPI; the host waits here."""
        peers = self._peers
        events = peers.events[peers.comm.rank]
        received = [
            (peer, self._buffer(peer, slot, False, into.nbytes))
            for peer, into in exchange.receives
            if peer not in peers.ranks
        ]
        if exchange.staged_sends:
            # MPI cannot wait for streams, so the message must be complete.
            peers.runtime.eventSynchronize(events[SENT + slot])
        if received and exchange.number > SLOTS:
            # The GPU must have read the message that the last exchange received there.
            peers.runtime.eventSynchronize(events[TAKEN + slot])
        self._staged(exchange.staged_sends, received, torch.empty(0))()

    def _buffer(self, peer: int, slot: int, sending: bool, nbytes: int) -> Tensor:
        """Return pinned memory for a message to or from another node."""
        key = (peer, slot, sending)
        held = self._pinned.get(key)
        if held is None or held.numel() < nbytes:
            held = self._pinned[key] = torch.from_numpy(self._peers.pinned(_rounded(nbytes)))
        return held[:nbytes]

    def _make_room(self, sends: Sequence[Send], receives: Sequence[Receive]) -> None:
        """Make or open memory if a message is larger than all before.

        Both ranks of a pair know all their messages, so they agree on when this happens.
        """
        peers = self._peers
        requests = []
        for peer, into in receives:
            channel = self._in.setdefault(peer, _Channel())
            if peer in peers.ranks and into.nbytes > channel.slot_bytes:
                channel.slot_bytes = _rounded(into.nbytes)
                settle(peers.ordinal)
                own = Exported(peers.ordinal, SLOTS * channel.slot_bytes, 0)
                # A message may still be in flight in the old memory.
                channel.memory.append(own)
                channel.address = own.address
                requests.append(peers.comm.isend(own.handles, peer, _TAG))
        for peer, pieces in sends:
            channel = self._out.setdefault(peer, _Channel())
            nbytes = sum(piece.nbytes for piece in pieces)
            if peer in peers.ranks and nbytes > channel.slot_bytes:
                channel.slot_bytes = _rounded(nbytes)
                handles = self._hear_handles(peer)
                channel.memory.append(Opened(peers.ordinal, handles))
                channel.address = channel.memory[-1].address
        for request in requests:
            request.wait()

    def _hear_handles(self, peer: int) -> Any:
        limit_s = STALL_TIMEOUT_S.read()
        there, handles = message(self._peers.comm.irecv(source=peer, tag=_TAG), limit_s)
        if not there:
            self._peers.stall([peer], _OCCASION)
        return handles


class _Exchange:
    """One exchange between its start and its finish.

    Attributes:
        number: number of this exchange, from 1.
        sends: pieces, kept so that their memory is not reused before they are packed.
        receives: memory for messages.
        staged_sends: messages to other nodes.
        over: whether it has finished.
    """

    def __init__(self, number: int, sends: Sequence[Send], receives: Sequence[Receive]) -> None:
        self.number = number
        self.sends: Sequence[Any] = list(sends)
        self.receives = receives
        self.staged_sends: list[Send] = []
        self.over = False

    def packed(self, piece: Tensor, target: int) -> Move:
        """Return the move of a piece to an address."""
        move = _move(piece, target)
        if len(move.merged()) > MOST_DIMS:
            piece = piece.contiguous()
            self.sends = [*self.sends, piece]
            move = _move(piece, target)
        return move


def _move(piece: Tensor, target: int) -> Move:
    item = piece.element_size()
    strides = tuple(stride * item for stride in piece.stride())
    return Move(gpu.address_of(piece), tuple(piece.shape), strides, item, target)


def _rounded(nbytes: int) -> int:
    return max(_LEAST_BYTES, 1 << max(0, nbytes - 1).bit_length())

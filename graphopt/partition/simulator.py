"""A machine that knows only messages: programs of devices that compute, send and receive, run against a clock.

A message takes the link's latency and the time of its bytes. It occupies the port over which its sender sends and the
one over which its receiver receives, each of which carries one message at a time; a device may send and receive at
once (full duplex), and computes meanwhile. The messages of a device leave in the order in which it sends them; of those
that wait for one port, one that its receiver waits for goes first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, NamedTuple, TypeAlias

from graphopt.partition.devices import Link


class Compute(NamedTuple):
    """The device computes; its next instruction waits for that."""

    seconds: float


class Send(NamedTuple):
    """The device sends a message, and goes on at once."""

    target: int
    """Number of the device."""
    nbytes: float
    payload: Any = None


class Receive(NamedTuple):
    """The device waits for the next message of another; the instruction yields its payload."""

    source: int
    """Number of the device."""


Instruction: TypeAlias = "Compute | Send | Receive"
Program: TypeAlias = "Generator[Instruction, Any, Any]"
"""Program of a device: a generator of instructions, which returns its result."""


@dataclass(frozen=True)
class Simulation:
    """Outcome of programs."""

    seconds: float
    """Time at which the last of them ended."""
    results: tuple[Any, ...]
    """Value that each returned."""
    messages: int
    sent_bytes: float


class DeadlockError(Exception):
    """Programs wait for messages that no one sends."""


def simulate(programs: Sequence[Program], link: Link) -> Simulation:
    """Run one program on each device.

    Raises:
        DeadlockError: a program waits for a message that never comes.
    """
    return _Simulator(programs, link).run()


@dataclass(eq=False)
class _DeviceState:
    program: Program
    outgoing: deque[tuple[float, Send]] = field(default_factory=deque)
    """Messages that wait for the port, each with the time at which it was sent."""
    arrived: dict[int, deque[Any]] = field(default_factory=dict)
    """Payloads by the device that they came from."""
    waits_for: int | None = None
    is_sending: bool = False
    is_receiving: bool = False
    is_done: bool = False
    result: Any = None


class _Simulator:
    def __init__(self, programs: Sequence[Program], link: Link) -> None:
        self.link, self.now, self.end = link, 0.0, 0.0
        self.devices = [_DeviceState(program) for program in programs]
        self.events: list[tuple[float, int, int, int | None, Any]] = []
        """A heap: time, number, device; the sender and payload of a message that arrives, or None to go on."""
        self.count = self.messages = 0
        self.sent_bytes = 0.0

    def run(self) -> Simulation:
        for number in range(len(self.devices)):
            self._schedule(0.0, number)
        while self.events:
            self.now = self.events[0][0]
            while self.events and self.events[0][0] == self.now:
                _, _, number, sender, payload = heappop(self.events)
                if sender is None:
                    self._advance(number, None)
                else:
                    self._deliver(number, sender, payload)
            self._start_messages()
        waiting = [number for number, device in enumerate(self.devices) if not device.is_done]
        if waiting:
            raise DeadlockError(f"devices {waiting} wait for messages that no one sends")
        return Simulation(self.end, tuple(device.result for device in self.devices), self.messages, self.sent_bytes)

    def _schedule(self, time: float, number: int, sender: int | None = None, payload: Any = None) -> None:
        heappush(self.events, (time, self.count, number, sender, payload))
        self.count += 1

    def _advance(self, number: int, answer: Any) -> None:
        """Run a program until it computes, or waits for a message that is not there yet."""
        device = self.devices[number]
        while True:
            try:
                instruction = device.program.send(answer)
            except StopIteration as stop:
                device.is_done, device.result = True, stop.value
                self.end = max(self.end, self.now)
                return
            answer = None
            match instruction:
                case Compute(seconds):
                    self._schedule(self.now + seconds, number)
                    return
                case Send():
                    device.outgoing.append((self.now, instruction))
                case Receive(source):
                    if not device.arrived.get(source):
                        device.waits_for = source
                        return
                    answer = device.arrived[source].popleft()

    def _deliver(self, number: int, sender: int, payload: Any) -> None:
        device = self.devices[number]
        self.devices[sender].is_sending = device.is_receiving = False
        self.end = max(self.end, self.now)
        device.arrived.setdefault(sender, deque()).append(payload)
        if device.waits_for == sender:
            device.waits_for = None
            self._advance(number, device.arrived[sender].popleft())

    def _start_messages(self) -> None:
        """Start the messages whose two ports are free: first those that are waited for, then those sent first."""
        ready = sorted(
            (self.devices[message.target].waits_for != number, sent, number)
            for number, device in enumerate(self.devices)
            if device.outgoing and not device.is_sending
            for sent, message in (device.outgoing[0],)
        )
        for _, _, number in ready:
            _, message = self.devices[number].outgoing[0]
            if self.devices[message.target].is_receiving:
                continue
            self.devices[number].outgoing.popleft()
            self.devices[number].is_sending = self.devices[message.target].is_receiving = True
            self.messages += 1
            self.sent_bytes += message.nbytes
            self._schedule(self.now + self.link.seconds(message.nbytes), message.target, number, message.payload)

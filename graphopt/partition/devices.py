"""Devices and the links between them, as a TOML file describes them.

[[device]]
name = "gpu"
count = 4            # optional: gpu-0 … gpu-3
memory = "16GB"
speed = 20.0         # optional: as a multiple of this machine's
provider = "cuda"    # optional: cpu

[link]               # needed if there are several devices
latency = "10us"
bandwidth = "10GB/s"
"""

from __future__ import annotations

import math
import re
import tomllib
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from graphopt.base.errors import UsageError, did_you_mean
from graphopt.base.option_values import parse_bytes
from graphopt.runtime.session_setting import is_provider_name, short_provider_name


@dataclass(frozen=True, slots=True)
class Device:
    """A device that runs a model or a part of it."""

    name: str
    memory: int
    """Bytes."""
    speed: float = 1.0
    """Speed as a multiple of that of the machine on which times are measured or estimated."""
    provider: str = "cpu"
    """Execution provider of ONNX Runtime, by its short name."""


def weakest_device(name: str, devices: Sequence[Device]) -> Device:
    """Return a device as slow and as small as any of some, with the provider of the first."""
    speed, memory = min(device.speed for device in devices), min(device.memory for device in devices)
    return Device(name, memory, speed, devices[0].provider)


@dataclass(frozen=True, slots=True)
class Link:
    """A connection of two devices: full duplex, the same between any two."""

    latency: float
    """Seconds from the start of a message to its first byte (α)."""
    bandwidth: float
    """Bytes per second in each direction (1/β)."""

    def seconds(self, nbytes: float) -> float:
        """Return the seconds that a message takes."""
        return self.latency + nbytes / self.bandwidth


INSTANT = Link(0.0, math.inf)
"""Link of a device to itself."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Devices, all of which are connected with each other by links of one kind."""

    devices: tuple[Device, ...]
    link: Link


MAX_DEVICES = 256
"""Devices of a plan: all ways to split more take minutes to compare."""
MAX_SPEED = 1_000_000
"""Times that a device may be as fast as this machine, or this as it."""


def read_devices(path: str | PathLike[str]) -> Cluster:
    """Read a TOML file that describes devices.

    Raises:
        UsageError: the file is not readable or not TOML, or a value is missing or wrong; names file, table and key.
    """
    path = Path(path)
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # also bytes that are no text, and names of files that cannot be
        reason = error.strerror if isinstance(error, OSError) else f"no TOML: {error}"
        raise UsageError(f"{path} cannot be read: {reason}") from error
    _check_keys(str(path), tables, ("device", "link"), "table")
    described = tables.get("device", [])
    if not isinstance(described, list) or not all(isinstance(table, dict) for table in described):
        raise UsageError(f"{path}: device is to be written as tables [[device]]")
    devices = tuple(
        device
        for number, table in enumerate(described, start=1)
        for device in _read_device(_DeviceTable(f"{path}, [[device]] {number}", table))
    )
    if not devices:
        raise UsageError(f"{path} has no table [[device]]")
    if len(devices) > MAX_DEVICES:
        raise UsageError(f"{path} has {len(devices):,} devices, more than {MAX_DEVICES:,}")
    name, count = Counter(device.name for device in devices).most_common(1)[0]
    if count > 1:
        raise UsageError(f"{path}: {count} devices have the name '{name}'")
    if "link" in tables:
        return Cluster(devices, _read_link(path, tables["link"]))
    if len(devices) > 1:
        raise UsageError(f"{path} has {len(devices)} devices, and no table [link] with latency and bandwidth")
    return Cluster(devices, INSTANT)


@dataclass(frozen=True)
class _DeviceTable:
    """A table of the file, with the place that its errors name."""

    place: str
    values: Mapping[str, Any]

    def __getitem__(self, key: str) -> Any:
        if key not in self.values:
            raise UsageError(f"{self.place}: {key} is missing")
        return self.values[key]

    def text(self, key: str, default: str | None = None) -> str:
        """Return a text that is not empty."""
        found = self[key] if default is None else self.values.get(key, default)
        if not isinstance(found, str) or not found.strip():
            raise self.error(key, "a text")
        return found.strip()

    def error(self, key: str, expected: str) -> UsageError:
        return UsageError(f"{self.place}: {key} = {self.values[key]!r} is not {expected}")


def _read_device(table: _DeviceTable) -> Iterator[Device]:
    """Yield the devices of a table: one, or as many as it counts."""
    _check_keys(table.place, table.values, ("name", "count", "memory", "speed", "provider"), "key")
    name, size = table.text("name"), table["memory"]
    try:
        memory = parse_bytes(str(size))
    except UsageError as error:
        raise table.error("memory", "a size as '8GB'") from error
    speed = table.values.get("speed", 1.0)
    if isinstance(speed, bool) or not isinstance(speed, int | float) or not 1 / MAX_SPEED <= speed <= MAX_SPEED:
        raise table.error("speed", f"a number from {1 / MAX_SPEED:f} to {MAX_SPEED:,}, as a multiple of this machine's")
    provider = short_provider_name(table.text("provider", "cpu"))
    if not is_provider_name(provider):
        raise table.error("provider", "cpu, cuda or a name as ONNX Runtime has it")
    count = table.values.get("count")
    if count is None:
        yield Device(name, memory, float(speed), provider)
        return
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_DEVICES:
        raise table.error("count", f"a number of devices from 1 to {MAX_DEVICES:,}")
    for number in range(count):
        yield Device(f"{name}-{number}", memory, float(speed), provider)


def _read_link(path: Path, values: Any) -> Link:
    if not isinstance(values, dict):
        raise UsageError(f"{path}: link is to be written as one table [link]")
    table = _DeviceTable(f"{path}, [link]", values)
    _check_keys(table.place, values, ("latency", "bandwidth"), "key")
    latency, bandwidth = _parse_seconds(table.text("latency")), _parse_bandwidth(table.text("bandwidth"))
    if latency is None:
        raise table.error("latency", "a time as '10us'")
    if bandwidth is None:
        raise table.error("bandwidth", "bytes or bits per second as '10GB/s', '100Gbit/s'")
    return Link(latency, bandwidth)


TIME_UNITS = {"ns": 10**9, "us": 10**6, "µs": 10**6, "μs": 10**6, "ms": 10**3, "s": 1}  # both signs for micro
"""Number of a unit that are a second."""


def _parse_seconds(text: str) -> float | None:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-zµμ]+)", text)
    return float(found[1]) / TIME_UNITS[found[2]] if found and found[2] in TIME_UNITS else None


def _parse_bandwidth(text: str) -> float | None:
    amount, _, per = text.rpartition("/")
    if per != "s":
        return None
    bits = re.fullmatch(r"(.*)bit", amount)
    try:
        return float(parse_bytes(amount)) if bits is None else parse_bytes(f"{bits[1]}B") / 8
    except UsageError:
        return None


def _check_keys(place: str, table: Mapping[str, Any], known: Collection[str], kind: str) -> None:
    """Refuse what the file says and nothing reads."""
    for key in table:
        if key not in known:
            hint = did_you_mean(key, known) or f"; there is {', '.join(known)}"
            raise UsageError(f"{place}: there is no {kind} {key}{hint}")

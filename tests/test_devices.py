"""Files of devices: what they say, and one line for each kind of mistake."""

import math
from pathlib import Path

import pytest

from graphopt.base.errors import UsageError
from graphopt.partition.devices import INSTANT, Cluster, Device, Link, read_devices

DEVICE = '[[device]]\nname = "a"\nmemory = "8GB"\n'
LINK = '[link]\nlatency = "10us"\nbandwidth = "10GB/s"\n'


def read(folder: Path, text: str) -> Cluster:
    path = folder / "devices.toml"
    path.write_text(text, encoding="utf-8")
    return read_devices(path)


def test_devices_and_their_link_are_read(tmp_path: Path) -> None:
    text = f'{DEVICE}[[device]]\nname = "b"\nmemory = 2048\nspeed = 2\nprovider = "CUDAExecutionProvider"\n{LINK}'
    assert read(tmp_path, text) == Cluster(
        (Device("a", 8 * 10**9), Device("b", 2048, 2.0, "cuda")), Link(latency=1e-5, bandwidth=1e10)
    )


def test_equal_devices_are_counted(tmp_path: Path) -> None:
    assert [device.name for device in read(tmp_path, f"{DEVICE}count = 3\n{LINK}").devices] == ["a-0", "a-1", "a-2"]


def test_one_device_needs_no_link(tmp_path: Path) -> None:
    assert read(tmp_path, DEVICE).link == INSTANT
    assert INSTANT.seconds(10**9) == 0


@pytest.mark.parametrize(
    ("latency", "bandwidth", "link"),
    [
        ("5 ns", "1.5 GB/s", Link(5e-9, 1.5e9)),
        ("1.5ms", "100Gbit/s", Link(1.5e-3, 1.25e10)),
        ("2s", "4GiB/s", Link(2.0, 2.0**32)),
        ("3µs", "800 bit/s", Link(3e-6, 100)),
        ("0us", "1B/s", Link(0.0, 1)),
    ],
)
def test_units_of_links(tmp_path: Path, latency: str, bandwidth: str, link: Link) -> None:
    found = read(tmp_path, f'{DEVICE}[link]\nlatency = "{latency}"\nbandwidth = "{bandwidth}"').link
    assert math.isclose(found.latency, link.latency)
    assert math.isclose(found.bandwidth, link.bandwidth)


def test_a_message_takes_the_latency_and_the_time_of_its_bytes() -> None:
    assert Link(0.5, 100.0).seconds(200) == 2.5


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "has no table [[device]]"),
        ("device = 3", "device is to be written as tables [[device]]"),
        ("[device]\nname = 'a'", "device is to be written as tables [[device]]"),
        ("[[device]", "cannot be read: no TOML"),
        (f"{DEVICE}[links]\n", "there is no table links; did you mean 'link'?"),
        (f"{DEVICE}sped = 2", "[[device]] 1: there is no key sped; did you mean 'speed'?"),
        ("[[device]]\nmemory = '8GB'", "[[device]] 1: name is missing"),
        ("[[device]]\nname = ''\nmemory = '8GB'", "[[device]] 1: name = '' is not a text"),
        ("[[device]]\nname = 'a'", "[[device]] 1: memory is missing"),
        ("[[device]]\nname = 'a'\nmemory = 'much'", "[[device]] 1: memory = 'much' is not a size as '8GB'"),
        ("[[device]]\nname = 'a'\nmemory = true", "[[device]] 1: memory = True is not a size as '8GB'"),
        (f"{DEVICE}speed = 0", "[[device]] 1: speed = 0 is not a number from 0.000001 to 1,000,000"),
        (f"{DEVICE}speed = inf", "[[device]] 1: speed = inf is not a number from 0.000001 to 1,000,000"),
        (f"{DEVICE}speed = nan", "[[device]] 1: speed = nan is not a number from 0.000001 to 1,000,000"),
        (f"{DEVICE}speed = 'fast'", "[[device]] 1: speed = 'fast' is not a number from 0.000001 to 1,000,000"),
        (f"{DEVICE}provider = 'cpuu'", "[[device]] 1: provider = 'cpuu' is not cpu, cuda or a name"),
        (f"{DEVICE}count = 0", "[[device]] 1: count = 0 is not a number of devices"),
        (f"{DEVICE}count = true", "[[device]] 1: count = True is not a number of devices"),
        (f"{DEVICE}{DEVICE}{LINK}", "2 devices have the name 'a'"),
        (f"{DEVICE}count = 2", "has 2 devices, and no table [link]"),
        (f"{DEVICE}link = 3", "there is no key link"),
        (f"link = 3\n{DEVICE}", "link is to be written as one table [link]"),
        (f"{DEVICE}[link]\nlatency = '1us'", "[link]: bandwidth is missing"),
        (f"{DEVICE}[link]\nbandwidth = '1GB/s'", "[link]: latency is missing"),
        (f"{DEVICE}[link]\nlatency = '1h'\nbandwidth = '1GB/s'", "[link]: latency = '1h' is not a time as '10us'"),
        (f"{DEVICE}[link]\nlatency = 3\nbandwidth = '1GB/s'", "[link]: latency = 3 is not a text"),
        (f"{DEVICE}[link]\nlatency = '1s'\nbandwidth = '1GB'", "[link]: bandwidth = '1GB' is not bytes or bits per"),
        (f"{DEVICE}[link]\nlatency = '1s'\nbandwidth = '0B/s'", "[link]: bandwidth = '0B/s' is not bytes or bits per"),
        (f"{DEVICE}{LINK}port = 1", "[link]: there is no key port"),
    ],
)
def test_a_mistake_is_one_line_that_names_file_table_and_key(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, text)
    message = str(caught.value)
    assert message.startswith(str(tmp_path / "devices.toml"))
    assert complaint in message
    assert "\n" not in message


def test_a_file_that_is_not_there_is_said_to_be_unreadable(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.toml cannot be read: No such file"):
        read_devices(tmp_path / "none.toml")
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        read_devices(tmp_path)

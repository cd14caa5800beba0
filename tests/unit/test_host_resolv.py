"""Which name servers the gateway asks."""

from ipaddress import IPv4Address
from pathlib import Path

import pytest

from space.host import resolv


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Path, Path]:
    """The host's resolv.conf and systemd-resolved's own, both missing."""
    host, behind = tmp_path / "resolv.conf", tmp_path / "behind.conf"
    monkeypatch.setattr(resolv, "_HOST", host)
    monkeypatch.setattr(resolv, "_BEHIND_STUB", behind)
    return host, behind


def test_the_hosts_own(files: tuple[Path, Path]) -> None:
    files[0].write_text(
        "# nameserver 1.1.1.1\nsearch example.test\nnameserver 10.0.0.53\nnameserver 2001:db8::1\n"
        "nameserver\t192.0.2.7 # second\nnameserver 10.0.0.53\nnameserver nonsense\nnameserver\n"
    )
    assert resolv.name_servers() == (IPv4Address("10.0.0.53"), IPv4Address("192.0.2.7"))


def test_those_behind_a_stub_on_loopback(files: tuple[Path, Path]) -> None:
    files[0].write_text("nameserver 127.0.0.53\noptions edns0\n")
    assert resolv.name_servers() == ()
    files[1].write_text("nameserver 10.0.0.53\n")
    assert resolv.name_servers() == (IPv4Address("10.0.0.53"),)


def test_none_where_nobody_says(files: tuple[Path, Path]) -> None:
    assert not files[0].exists()
    assert resolv.name_servers("a-namespace-without-its-own") == ()

"""The edge's certificate: what is read from the operator's files, and what `space doctor` says about it."""

from pathlib import Path

import pytest
from tests.support.authority import Authority

from space.cli import doctor_tls, tls
from space.cli.finding import Level
from space.model.errors import InvalidArgument
from space.settings import HostSettings, host_settings

AUTHORITY = Authority()


def _settings(folder: Path, names: tuple[str, ...] = ("*.boxes.test",), days: float = 30, **more: str) -> HostSettings:
    """Write a certificate and its key, and return settings that name them."""
    chain, key = AUTHORITY.issue(names, days)
    (folder / "cert.pem").write_text(chain + AUTHORITY.pem)
    (folder / "key.pem").write_text(key)
    return host_settings(tls_cert=folder / "cert.pem", tls_key=folder / "key.pem", **more)


def test_a_certificate_and_its_key(tmp_path: Path) -> None:
    found = tls.read(_settings(tmp_path, ("*.Boxes.test", "boxes.test")))
    assert found is not None
    assert found.names == ("*.boxes.test", "boxes.test")
    assert found.covers("boxes.test")
    assert found.covers("boxes.test:8443")
    assert not found.covers("other.test")
    assert not found.covers("a.boxes.test")
    assert tls.read(host_settings()) is None


@pytest.mark.parametrize("which", ["cert", "key"])
@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "cannot be read"),
        ("junk", "PEM form"),
        ("", "PEM form"),
        ("other", "is not that of the first certificate"),
    ],
)
def test_what_cannot_be_used_is_told(tmp_path: Path, which: str, text: str | None, says: str) -> None:
    settings = _settings(tmp_path)
    file = tmp_path / f"{which}.pem"
    if text is None:
        file.unlink()
    elif text == "other":
        file.write_text(AUTHORITY.issue(["x"])[which == "key"])
    else:
        file.write_text(text)
    with pytest.raises(InvalidArgument, match=says):
        tls.read(settings)
    (finding,) = doctor_tls.findings(settings)
    assert (finding.level, finding.what) == (Level.BLOCKER, "certificate")


@pytest.mark.parametrize("missing", ["cert", "key"])
def test_one_without_the_other(tmp_path: Path, missing: str) -> None:
    settings = _settings(tmp_path).model_copy(update={f"tls_{missing}": None})
    with pytest.raises(InvalidArgument, match=f"SPACE_TLS_{missing.upper()} is not set"):
        tls.read(settings)


def _levels(settings: HostSettings) -> dict[str, Level]:
    return {finding.what: finding.level for finding in doctor_tls.findings(settings)}


def test_the_doctors_word(tmp_path: Path) -> None:
    good = {"certificate": Level.OK, "certificate's names": Level.OK}
    assert _levels(_settings(tmp_path, domain="boxes.test:8443")) == good
    assert _levels(_settings(tmp_path, ("boxes.test",), domain="boxes.test"))["certificate's names"] is Level.HINT
    assert _levels(_settings(tmp_path, (), domain="boxes.test"))["certificate's names"] is Level.HINT
    assert _levels(_settings(tmp_path, days=13)) == {"certificate": Level.HINT}
    assert _levels(_settings(tmp_path, days=-1)) == {"certificate": Level.HINT}
    assert _levels(host_settings()) == {}
    assert _levels(host_settings(host="192.0.2.1")) == {"edge": Level.HINT}
    assert _levels(host_settings(domain="boxes.test")) == {"edge": Level.OK}


@pytest.mark.parametrize("domain", ["boxes.test", "Boxes.Test:8443", "localhost", "a-b.c"])
def test_domains(domain: str) -> None:
    assert host_settings(domain=domain).domain == domain.lower()


@pytest.mark.parametrize(
    "domain",
    [
        "", ".test", "-a.test", "a b", "https://boxes.test", "boxes.test/", "boxes.test:0", "*.boxes.test", "e2b.app",
        "E2B.dev", "foxtrot-2.e2b.dev:443", "b\xfcxes.test", "a.test\n",
    ],
)  # fmt: skip
def test_what_is_no_domain(domain: str) -> None:
    with pytest.raises(InvalidArgument, match="SPACE_DOMAIN"):
        host_settings(domain=domain)

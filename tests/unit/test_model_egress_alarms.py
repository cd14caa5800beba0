"""Alarms: each kind at its bound, once a window, apart for each sandbox."""

import base64
import hashlib
import secrets

import pytest

from space.model import egress_alarms
from space.model.egress_alarms import DENIED, NAMES, UPLOAD_BYTES, WINDOW_S, Alarms, Kind, is_odd
from space.model.ids import SandboxId

A, B = SandboxId("a" * 20), SandboxId("b" * 20)


def kinds(alarms: Alarms, sandbox: SandboxId, at_s: float, **facts: object) -> list[Kind]:
    """Return the kinds of what one event sets off."""
    return [alarm.kind for alarm in alarms.see(sandbox, at_s, **facts)]  # type: ignore[arg-type] # as see takes them


def test_a_burst_of_refusals() -> None:
    alarms = Alarms()
    for n in range(DENIED - 1):
        assert kinds(alarms, A, n / 100, denied=True) == []
        assert kinds(alarms, B, n / 100) == []
    assert kinds(alarms, A, 1, denied=True) == [Kind.DENIED]
    assert kinds(alarms, A, 1, denied=True) == [], "once a window"
    assert kinds(alarms, B, 1, denied=True) == [], "another sandbox's count is its own"


def test_the_same_over_a_longer_time_is_none() -> None:
    alarms = Alarms()
    for n in range(3 * DENIED):
        assert kinds(alarms, A, n * (WINDOW_S / (DENIED - 1)), denied=True) == []


def test_it_is_told_again_in_the_next_window() -> None:
    alarms = Alarms()
    for window in range(3):
        found = [kind for _ in range(DENIED + 5) for kind in kinds(alarms, A, window * WINDOW_S, denied=True)]
        assert found == [Kind.DENIED]


def test_many_names_count_once_each() -> None:
    alarms = Alarms()
    for _ in range(3):
        for n in range(NAMES - 1):
            assert kinds(alarms, A, 0, name=f"h{n}.test") == []
    assert kinds(alarms, A, 0, name="one-more.test") == [Kind.NAMES]


def test_a_large_upload() -> None:
    alarms = Alarms()
    assert kinds(alarms, A, 0, uploaded_bytes=UPLOAD_BYTES - 1) == []
    assert kinds(alarms, A, 1, uploaded_bytes=1) == [Kind.UPLOAD]


def test_names_that_look_like_data() -> None:
    alarms = Alarms()
    names = [base64.b32encode(secrets.token_bytes(30)).decode().lower().rstrip("=") + ".exfil.test" for _ in range(50)]
    found = [kind for name in names for kind in kinds(alarms, A, 0, name=name)]
    assert found == [Kind.ODD_NAMES]
    assert len(alarms.see(B, 0, name=names[0])) == 0


@pytest.mark.parametrize(
    "name",
    [
        *("files.pythonhosted.org", "registry.npmjs.org", "internationalization.example.com", "a.b.c.d.example"),
        *(
            "my-company-staging-environment.example.com",
            "ec2-52-1-2-3.compute-1.example.com",
            "aaaaaaaaaaaaaaaaaaaaaaaaa.a",
        ),
    ],
)
def test_ordinary_names_do_not(name: str) -> None:
    assert not is_odd(name)


def test_hashes_do() -> None:
    odd = [is_odd(hashlib.sha256(bytes([n])).hexdigest()[:40] + ".test") for n in range(100)]
    assert odd.count(True) > 70


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress_alarms, "_MOST", 10)
    alarms = Alarms()
    for n in range(100):
        alarms.see(SandboxId(str(n)), 0, name="a.test")
    assert len(alarms._windows) == 10

"""worker.ledger: what is written is read, damage is set aside, ids cannot leave the folder."""

import datetime as dt
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.model.ids import SandboxId
from space.worker.janitor import gaps
from space.worker.ledger import Entry, Ledger

ID = SandboxId("a1" * 10)


def _entry(**changes: object) -> Entry:
    base = Entry(
        sandbox=ID,
        epoch=3,
        state="running",
        template="sha256:" + "0" * 64,
        vcpus=1,
        memory_mib=512,
        uid_number=7,
        boot_id="b",
        created_at=dt.datetime.now(dt.UTC),
    )
    return base.model_copy(update=changes)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(tmp_path / "ledger")
    made.open()
    return made


def test_an_entry_survives_and_is_replaced_as_a_whole(ledger: Ledger) -> None:
    ledger.write(_entry())
    ledger.write(_entry(state="failed", reason="gone", pid=5, start_time=9))
    (read,) = ledger.read()
    assert (read.state, read.reason, read.vmm is not None) == ("failed", "gone", True)
    ledger.remove(ID)
    ledger.remove(ID)
    assert ledger.read() == []


def test_a_damaged_entry_is_set_aside_and_the_others_are_read(ledger: Ledger) -> None:
    ledger.write(_entry())
    damaged = ledger.folder / ("b" * 20 + ".json")
    damaged.write_text('{"sandbox": ')
    assert len(ledger.read()) == 1
    assert damaged.with_suffix(".damaged").exists()


def test_only_an_id_becomes_a_path(ledger: Ledger) -> None:
    with pytest.raises(ValueError, match="not a sandbox id"):
        ledger.write(_entry(sandbox="../../etc/passwd"))


def test_uid_numbers_never_repeat_across_restarts(ledger: Ledger) -> None:
    first = [ledger.next_uid_number() for _ in range(3)]
    again = Ledger(ledger.folder)
    assert again.next_uid_number() not in first


@given(st.sets(st.integers(0, 40)))
def test_gaps_and_taken_make_the_whole_range(taken: set[int]) -> None:
    covered = [number for low, high in gaps(5, 30, taken) for number in range(low, high)]
    assert sorted(covered) == [number for number in range(5, 30) if number not in taken]

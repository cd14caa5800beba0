"""worker.ledger: what is written is read, damage is set aside, ids cannot leave the folder."""

import datetime as dt
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.host.process import boot_id
from space.model.ids import SandboxId
from space.worker.janitor import gaps
from space.worker.ledger import Ledger
from space.worker.records import Entry, VmRecord

ID = SandboxId("a1" * 10)


def _vm(**changes: object) -> VmRecord:
    return VmRecord(vm=ID, uid_number=7, boot_id="b", vcpus=1, memory_mib=512, slot=3).model_copy(update=changes)


def _entry(**changes: object) -> Entry:
    base = Entry(
        sandbox=ID,
        epoch=3,
        state="running",
        template="sha256:" + "0" * 64,
        vcpus=1,
        memory_mib=512,
        created_at=dt.datetime.now(dt.UTC),
    )
    return base.model_copy(update=changes)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger[Entry]:
    made = Ledger(tmp_path / "ledger", Entry)
    made.open()
    return made


def test_an_entry_survives_and_is_replaced_as_a_whole(ledger: Ledger[Entry]) -> None:
    ledger.write(ID, _entry())
    ledger.write(ID, _entry(state="failed", reason="gone", vm=_vm(pid=5, start_time=9)), synced=True)
    (read,) = ledger.read()
    assert (read.state, read.reason) == ("failed", "gone")
    assert read.vm is not None
    assert read.vm.vmm is not None
    ledger.remove(ID)
    ledger.remove(ID)
    assert ledger.read() == []


def test_a_fleeting_entry_is_replaced_as_a_whole_and_leaves_nothing_else(ledger: Ledger[Entry]) -> None:
    for state in ("running", "paused", "running"):
        ledger.write(ID, _entry(state=state), fleeting=True)
        assert [read.state for read in ledger.read()] == [state]
    (only,) = ledger.folder.iterdir()
    assert only.stat().st_mode & 0o777 == 0o600


_KILLED_IN_A_WRITE = """
import os, pathlib, signal, sys
from space.host import files
with files._beside(pathlib.Path(sys.argv[1]), "new", 0o600, None, synced=False):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_kill_in_a_write_left_goes_with_the_next_start(ledger: Ledger[Entry]) -> None:
    ledger.write(ID, _entry())
    (record,) = ledger.folder.iterdir()
    killed = subprocess.run([sys.executable, "-c", _KILLED_IN_A_WRITE, str(record)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(list(ledger.folder.iterdir())) == 2
    ledger.open()
    assert list(ledger.folder.iterdir()) == [record]
    assert len(ledger.read()) == 1


def test_an_entry_that_the_host_took_with_it_is_told_from_a_damaged_one(ledger: Ledger[Entry]) -> None:
    """ext4 writes a file's content some time after its name, where nobody waits for it."""
    empty, cut = "a" * 20, "b" * 20
    (ledger.folder / f"{empty}.json").touch()
    (ledger.folder / f"{cut}.json").write_text('{"sandbox": ')
    assert ledger.read() == []
    assert [(ident, ledger.went_with_the_host(ident)) for ident in ledger.damaged()] == [(empty, True), (cut, False)]


def test_a_damaged_entry_is_set_aside_and_the_others_are_read(ledger: Ledger[Entry]) -> None:
    ledger.write(ID, _entry())
    damaged = ledger.folder / ("b" * 20 + ".json")
    damaged.write_text('{"sandbox": ')
    assert len(ledger.read()) == 1
    assert damaged.with_suffix(".damaged").exists()


def test_only_an_id_becomes_a_path(ledger: Ledger[Entry]) -> None:
    with pytest.raises(ValueError, match="is not an id"):
        ledger.write("../../etc/passwd", _entry())


def test_a_record_of_another_boot_of_the_host_holds_nothing() -> None:
    here = _vm(pid=5, start_time=9).on_this_boot()
    assert (here.slot, here.vmm) == (None, None)
    mine = _vm(pid=5, start_time=9, boot_id=boot_id())
    assert mine.on_this_boot() == mine


@given(st.sets(st.integers(0, 40)))
def test_gaps_and_taken_make_the_whole_range(taken: set[int]) -> None:
    covered = [number for low, high in gaps(5, 30, taken) for number in range(low, high)]
    assert sorted(covered) == [number for number in range(5, 30) if number not in taken]

"""Identity of a data folder: made once, kept, never shared by two; one supervisor at a time."""

import multiprocessing
import os
import shutil
from pathlib import Path

import pytest

from space.cli import instance
from space.layout import UID_RANGE_FIRST, UID_RANGE_SIZE
from space.model.errors import Conflict, InvalidArgument


@pytest.fixture(autouse=True)
def run_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "run"
    monkeypatch.setattr(instance, "RUN_ROOT", root)
    return root


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    made.mkdir()
    return made


def test_an_identity_is_made_once_and_kept(data_dir: Path) -> None:
    assert instance.read(data_dir) is None
    first = instance.claim(data_dir)
    assert instance.claim(data_dir) == first == instance.read(data_dir)
    assert (first.uid_base - UID_RANGE_FIRST) % UID_RANGE_SIZE == 0
    assert first.uid_base + UID_RANGE_SIZE <= 2**31


def test_folders_get_different_ids_and_ranges(tmp_path: Path) -> None:
    layouts = []
    for number in range(20):
        folder = tmp_path / str(number)
        folder.mkdir()
        layouts.append(instance.claim(folder))
    assert len({one.instance for one in layouts}) == len({one.uid_base for one in layouts}) == 20


def test_a_copy_is_refused_and_a_moved_folder_is_not(data_dir: Path, tmp_path: Path) -> None:
    first = instance.claim(data_dir)
    copy = tmp_path / "copy"
    shutil.copytree(data_dir, copy)
    with pytest.raises(Conflict, match="same identity"):
        instance.claim(copy)
    shutil.rmtree(data_dir)
    assert instance.claim(copy).instance == first.instance


def test_a_damaged_identity_is_not_replaced(data_dir: Path) -> None:
    (data_dir / "instance.json").write_text('{"instance": "../x", "uid_base": 0}')
    with pytest.raises(InvalidArgument, match="damaged"):
        instance.claim(data_dir)


def test_a_second_holder_is_refused_by_the_pid_of_the_first(data_dir: Path) -> None:
    assert instance.holder(data_dir) is None
    with instance.only_one(data_dir):
        with multiprocessing.get_context("fork").Pool(1) as pool:
            assert pool.apply(instance.holder, (data_dir,)) == os.getpid()
        with pytest.raises(Conflict, match=f"pid {os.getpid()}"), instance.only_one(data_dir):
            pass
    with instance.only_one(data_dir):
        pass
    assert instance.holder(data_dir) is None


def test_only_claims_whose_folder_is_gone_are_lost(data_dir: Path, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    instance.claim(data_dir)
    left = instance.claim(gone)
    assert instance.lost_claims() == []
    shutil.rmtree(gone)
    assert [claim.identity.instance for claim in instance.lost_claims()] == [left.instance]


def test_a_claim_that_is_held_is_not_lost(data_dir: Path) -> None:
    instance.claim(data_dir)
    (data_dir / "instance.json").unlink()
    with instance.only_one(data_dir), multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(instance.lost_claims) == []
    assert len(instance.lost_claims()) == 1

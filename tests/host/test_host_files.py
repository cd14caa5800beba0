"""Small files and folders: whole or not at all, with the owner and mode asked for."""

import concurrent.futures
import stat
import threading
from pathlib import Path

import pytest

from space.host.files import make_dir, write_atomic, write_fleeting

_UID = 0x7FFF_0002


def test_a_file_is_replaced_with_mode_and_owner(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old, and longer than the new one")
    write_atomic(path, "new", mode=0o400, owner=_UID)
    found = path.stat()
    assert path.read_text() == "new"
    assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) == (0o400, _UID, _UID)


def test_a_link_is_replaced_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("keep")
    link = tmp_path / "link"
    link.symlink_to(target)
    write_atomic(link, "new")
    assert target.read_text() == "keep"
    assert not link.is_symlink()


def test_a_fleeting_file_is_whole_at_every_moment(tmp_path: Path) -> None:
    path = tmp_path / "file"
    texts = ["a" * 1000, "b" * 3000]
    write_fleeting(path, texts[0])
    seen, stop = set(), threading.Event()

    def look() -> None:
        while not stop.is_set():
            seen.add(path.read_text())

    with concurrent.futures.ThreadPoolExecutor() as pool:
        looking = pool.submit(look)
        for number in range(2000):
            write_fleeting(path, texts[number % 2])
        stop.set()
        looking.result()
    assert seen == set(texts)
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_and_no_rest(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_atomic(path, "\ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_is_made_and_brought_back_to_what_it_must_be(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    make_dir(path, mode=0o2710, uid=_UID, gid=_UID + 1)
    path.chmod(0o777)
    make_dir(path, mode=0o2710, uid=_UID, gid=_UID + 1)
    found = path.stat()
    assert (stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid) == (0o2710, _UID, _UID + 1)


def test_a_link_in_the_place_of_a_folder_gives_nothing_away(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o700)
    link = tmp_path / "link"
    link.symlink_to(outside)
    with pytest.raises(NotADirectoryError):
        make_dir(link, mode=0o777, uid=_UID)
    found = outside.stat()
    assert (stat.S_IMODE(found.st_mode), found.st_uid) == (0o700, 0)

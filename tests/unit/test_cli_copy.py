"""What is copied arrives; archives that a guest wrote are unpacked inside the target and nowhere else."""

import io
import stat
import tarfile
from pathlib import Path

import httpx2
import pytest
from tests.support.transcript import Answer, playing

from space.cli.client import Api
from space.cli.copy import RemoteFiles, pack, parse_remote, unpack
from space.model.errors import InvalidArgument

_ID = "a1" * 10


def _archive(path: Path, *members: tuple[str, str, str]) -> Path:
    """Write a tar of (name, type, content or link target)."""
    with tarfile.open(path, "w") as tar:
        for name, kind, content in members:
            member = tarfile.TarInfo(name)
            member.mode = 0o6755
            if kind == "file":
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content.encode()))
            else:
                member.type = {"dir": tarfile.DIRTYPE, "link": tarfile.SYMTYPE, "device": tarfile.CHRTYPE}[kind]
                member.linkname = content
                tar.addfile(member)
    return path


def test_a_folder_goes_there_and_back(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "run").write_text("x")
    (source / "sub" / "run").chmod(0o755)
    (source / "link").symlink_to("sub/run")
    pack(source, tmp_path / "tar")
    unpack(tmp_path / "tar", tmp_path / "target")
    assert (tmp_path / "target" / "link").read_text() == "x"
    assert (tmp_path / "target" / "link").is_symlink()
    assert stat.S_IMODE((tmp_path / "target" / "sub" / "run").stat().st_mode) == 0o755


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/evil"])
def test_names_that_lead_out_are_refused(tmp_path: Path, name: str) -> None:
    archive = _archive(tmp_path / "tar", (name, "file", "x"))
    with pytest.raises(InvalidArgument):
        unpack(archive, tmp_path / "in" / "target")
    assert not list(tmp_path.rglob("evil"))


@pytest.mark.parametrize("link", ["/etc", "..", "../../x", "sub/../../.."])
def test_links_that_lead_out_are_left_out(tmp_path: Path, link: str) -> None:
    archive = _archive(tmp_path / "tar", ("out", "link", link), ("kept", "file", "x"))
    unpack(archive, tmp_path / "target")
    assert [entry.name for entry in (tmp_path / "target").iterdir()] == ["kept"]


def test_nothing_is_written_through_a_link_that_was_there_before(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    target = tmp_path / "target"
    target.mkdir()
    (target / "dir").symlink_to(outside)
    with pytest.raises(InvalidArgument):
        unpack(_archive(tmp_path / "tar", ("dir/evil", "file", "x")), target)
    assert list(outside.iterdir()) == []


def test_a_link_in_the_place_of_a_file_or_folder_is_replaced(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("keep")
    target = tmp_path / "target"
    target.mkdir()
    (target / "file").symlink_to(outside)
    (target / "dir").symlink_to(tmp_path)
    unpack(_archive(tmp_path / "tar", ("file", "file", "new"), ("dir", "dir", ""), ("dir/x", "file", "x")), target)
    assert outside.read_text() == "keep"
    assert (target / "dir" / "x").read_text() == "x"
    assert not (tmp_path / "x").exists()


def test_devices_and_set_user_id_bits_do_not_come_along(tmp_path: Path) -> None:
    unpack(_archive(tmp_path / "tar", ("null", "device", ""), ("file", "file", "x")), tmp_path / "target")
    assert [entry.name for entry in (tmp_path / "target").iterdir()] == ["file"]
    assert stat.S_IMODE((tmp_path / "target" / "file").stat().st_mode) == 0o755


def test_remote_paths_begin_with_an_id() -> None:
    assert parse_remote(f"{_ID}:/etc/hosts") == (_ID, "/etc/hosts")
    assert parse_remote(f"{_ID}:a:b") == (_ID, "a:b")
    assert parse_remote("C:/x") is None
    assert parse_remote("plain") is None
    with pytest.raises(InvalidArgument):
        parse_remote(f"{_ID}:")


async def test_a_file_with_the_longest_name_comes_out(tmp_path: Path) -> None:
    name = "y" * 255
    answers = [Answer([{"type": "file", "path": f"/home/user/{name}"}]), Answer([{"content": 1}])]
    async with playing(answers) as transcript, httpx2.AsyncClient(base_url=transcript.url) as http:
        await RemoteFiles(Api(http, transcript.url), "s" * 20, None).download(name, tmp_path)
    assert (tmp_path / name).read_text() == '{"content": 1}\n'
    assert len(list(tmp_path.iterdir())) == 1

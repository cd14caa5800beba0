"""What goes up for a COPY: what is meant, nothing that is left out, and the same bytes for the same files."""

import os
import tarfile
from pathlib import Path

import pytest

from space.cli import context
from space.model.errors import InvalidArgument


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.txt", "b.txt", "c.md", "sub/d.txt", "sub/deep/e.txt", ".hidden", "node_modules/x/y.js"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "link").symlink_to("a.txt")
    (tmp_path / "out").symlink_to("/etc")
    return tmp_path


def names(folder: Path, source: str) -> set[str]:
    file, _ = context.archive(folder, source)
    with file, tarfile.open(fileobj=file) as tar:
        return {member.name for member in tar.getmembers()}


@pytest.mark.parametrize(
    ("source", "meant"),
    [
        ("a.txt", {"a.txt"}),
        ("./a.txt", {"a.txt"}),
        ("/a.txt", {"a.txt"}),
        ("*.txt", {"a.txt", "b.txt"}),
        ("sub", {"sub", "sub/d.txt", "sub/deep", "sub/deep/e.txt"}),
        ("sub/", {"sub", "sub/d.txt", "sub/deep", "sub/deep/e.txt"}),
        ("link", {"link"}),
        ("out", {"out"}),
    ],
)
def test_what_is_meant_goes_up(folder: Path, source: str, meant: set[str]) -> None:
    assert names(folder, source) == meant


def test_all_of_it_but_what_is_left_out(folder: Path) -> None:
    assert {".hidden", "node_modules/x/y.js", "sub/deep/e.txt"} <= names(folder, ".")
    (folder / context.IGNORE).write_text("# comment\nnode_modules\n*.md\nsub/deep\n!sub/deep/e.txt\n**/.hidden\n")
    found = names(folder, ".")
    assert not {"c.md", ".hidden", "node_modules", "node_modules/x/y.js", "sub/deep"} & found
    assert {"a.txt", "sub", "sub/d.txt", "sub/deep/e.txt", "link"} <= found


@pytest.mark.parametrize("source", ["../x", "sub/../../x", "nothing", "*.none"])
def test_nothing_leads_out_and_nothing_is_an_error(folder: Path, source: str) -> None:
    with pytest.raises(InvalidArgument):
        context.archive(folder, source)


def test_the_same_files_are_the_same_bytes(folder: Path) -> None:
    first = context.archive(folder, ".")[1]
    for path in folder.rglob("*"):
        os.utime(path, (1, 1), follow_symlinks=False)
    assert context.archive(folder, ".")[1] == first
    (folder / "a.txt").chmod(0o755)
    assert context.archive(folder, ".")[1] != first

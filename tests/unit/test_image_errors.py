"""What went wrong in a build, in words that a user can act on."""

import errno
import os
from pathlib import Path

import pytest

from space.host.command import CommandError
from space.image.agent import source_digest
from space.image.work import explained
from space.model.errors import BuildFailed, NotFound, StorageFull

_AREA = Path("/data")


def _tool(stderr: str, status: int | None = 1) -> CommandError:
    return CommandError(("tool",), status, stderr)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)),
        OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)),
        _tool("tar: ./usr/bin/git: Cannot write: No space left on device"),
    ],
)
def test_a_full_disk_is_told_as_one(error: Exception) -> None:
    found = explained("image", error, _AREA)
    assert isinstance(found, StorageFull)
    assert "/data" in str(found)
    assert "image" in str(found)


def test_a_failed_program_is_told_with_step_and_last_lines() -> None:
    found = explained("root filesystem", _tool("\n".join(f"line {i}" for i in range(100))), _AREA)
    assert isinstance(found, BuildFailed)
    assert "root filesystem" in str(found)
    assert "line 99" in str(found)
    assert "line 50" not in str(found)


def test_a_missing_network_has_its_own_cure() -> None:
    found = explained("kernel", _tool("Err:1 Temporary failure resolving 'archive.example'"), _AREA)
    assert isinstance(found, BuildFailed)
    assert "network" in str(found)


def test_a_program_out_of_time_says_so() -> None:
    assert "did not end" in str(explained("agent", _tool("compiling", None), _AREA))


def test_an_error_with_its_own_words_stays() -> None:
    error = NotFound("plain")
    assert explained("kernel", error, _AREA) is error


def test_the_agent_is_known_by_its_source_but_not_its_tests(tmp_path: Path) -> None:
    (tmp_path / "cmd").mkdir()
    (tmp_path / "go.mod").write_text("module x\n")
    (tmp_path / "cmd" / "main.go").write_text("package main\n")
    first = source_digest(tmp_path)
    (tmp_path / "cmd" / "main_test.go").write_text("package main\n")
    (tmp_path / "notes.txt").write_text("anything\n")
    assert source_digest(tmp_path) == first
    (tmp_path / "cmd" / "main.go").write_text("package main \n")
    assert source_digest(tmp_path) != first

"""What a VMM prints is bounded, whoever makes it print, and outlives the reader."""

import os
import subprocess
from pathlib import Path

import pytest

from space.vmm.driver import VmmError
from space.vmm.launch import Log, printable


def test_a_flood_is_dropped_and_never_blocks(tmp_path: Path) -> None:
    """A writer that prints megabytes gets through, and 64 KiB stay."""
    log = Log(tmp_path / "log", make=True)
    script = "import os\nfor _ in range(100000):\n try: os.write(1, b'flood\\n' * 10)\n except BlockingIOError: pass\n"
    subprocess.run(["/usr/bin/python3", "-c", script], stdout=log.fd, check=True, timeout=30)
    assert "flood" in log.tail()
    kept = 0
    while log.tail(10**6):
        kept += 1
    assert kept <= 1
    log.close()
    assert log.tail() == ""


def test_what_was_printed_outlives_the_reader(tmp_path: Path) -> None:
    """The writer alone keeps the pipe; a new reader finds what was said meanwhile, and the writer gets no SIGPIPE."""
    log = Log(tmp_path / "log", make=True)
    writer = os.dup(log.fd)
    log.close()
    os.write(writer, b"\x1b[31mwhile nobody looked\x1b[0m\n")
    again = Log(tmp_path / "log", make=False)
    assert again.tail() == "[31mwhile nobody looked[0m"
    again.close()
    os.close(writer)


def test_something_else_in_its_place_is_refused(tmp_path: Path) -> None:
    """A plain file or a link there is not read."""
    plain, link = tmp_path / "plain", tmp_path / "link"
    plain.write_text("x")
    link.symlink_to(plain)
    with pytest.raises(VmmError):
        Log(plain, make=False)
    with pytest.raises(OSError, match="symbolic"):
        Log(link, make=False)


def test_text_of_a_guest_steers_no_terminal() -> None:
    """Escapes and bells go, words and lines stay."""
    assert printable("a\x1b]0;title\x07b\r\n\tc\u202e") == "a]0;titleb\n\tc"

"""The command line as a program: what it does with streams and signals that are not as usual."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from space.cli import terminal

_SPACE = str(Path(sys.prefix) / "bin" / "space")


def test_a_full_disk_under_standard_output_is_an_error_with_words() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([_SPACE, "sandbox", "--help"], stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 1
    assert b"No space left" in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("sandbox", "exec", "a" * 20, "--timeout", "nan", "--", "true"), "--timeout"),
        (("sandbox", "exec", "a" * 20, "--timeout", "inf", "--", "true"), "--timeout"),
        (("sandbox", "create", "base", "--lifetime", "9" * 5000), "--lifetime"),
        (("policy", "set", "a" * 20, "--policy", "/nowhere"), "/nowhere cannot be read"),
    ],
)
def test_odd_values_are_errors_with_words(arguments: tuple[str, ...], says: str) -> None:
    done = subprocess.run([_SPACE, *arguments], env={"SPACE_API_KEY": "x"}, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert done.stderr.startswith("error: ")
    assert says in done.stderr


def test_a_closed_standard_input_is_an_empty_one() -> None:
    program = "import sys; from space.cli import main; main.app = lambda: print(repr(sys.stdin.read())); main.main()"
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" -c "$1" <&-', sys.executable, program], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("''\n", 0), done.stderr


async def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    called = asyncio.Event()
    try:
        with terminal.on_end(called.set):
            signal.raise_signal(signal.SIGHUP)
            await asyncio.sleep(0)
            assert not called.is_set()
            signal.raise_signal(signal.SIGTERM)
            async with asyncio.timeout(5):
                await called.wait()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)

"""`space up --detach`: another `space up` in the background, whose words are seen here until it is ready.

The other one gets our streams and the writing end of a pipe. When it is ready it turns its streams to its log and
writes one byte; when it ends before that, the pipe just closes.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

READY_OPTION = "--ready-fd"


def start(arguments: list[str]) -> int:
    """Start `space up` with `arguments` in a session of its own; return 0 once it is ready, else its exit status."""
    reading, writing = os.pipe()
    argv = [sys.executable, "-P", "-m", "space.cli.main", *arguments, READY_OPTION, str(writing)]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, pass_fds=[writing], start_new_session=True) as up:
        os.close(writing)
        try:
            if os.read(reading, 1):
                up.returncode = 0  # it is not ours to wait for any more
                return 0
            status = up.wait()
        except KeyboardInterrupt:
            up.send_signal(signal.SIGTERM)
            raise
        finally:
            os.close(reading)
    return status if status >= 0 else 128 - status


def let_go(ready_fd: int, log_file: Path) -> None:
    """Turn our output to `log_file`, and tell the one that started us that all is ready."""
    sys.stdout.flush()
    sys.stderr.flush()
    descriptor = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.close(descriptor)
    os.write(ready_fd, b"1")
    os.close(ready_fd)

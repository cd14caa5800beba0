"""A terminal: its size, what is typed into it, and its end."""

from e2b import CommandExitException, PtySize, Sandbox


class Screen:
    """What a terminal has printed."""

    def __init__(self) -> None:
        self.text = b""

    def __call__(self, data: bytes) -> None:
        """Take more of it."""
        self.text += data


with Sandbox.create(timeout=120) as sandbox:
    terminal = sandbox.pty.create(PtySize(rows=30, cols=100), envs={"MARK": "here"}, cwd="/tmp")
    sandbox.pty.send_stdin(terminal.pid, b'stty -echo; echo "$(stty size), $MARK, $PWD, $TERM, $LANG"; exit\n')
    screen = Screen()
    assert terminal.wait(on_pty=screen).exit_code == 0
    assert b"30 100, here, /tmp, xterm-256color, C.UTF-8" in screen.text, screen.text

    # it outlives its client, and is as large as it is told to be
    terminal = sandbox.pty.create(PtySize(rows=30, cols=100))
    assert [info.pid for info in sandbox.commands.list()] == [terminal.pid]
    terminal.disconnect()
    terminal = sandbox.pty.connect(terminal.pid)
    sandbox.pty.resize(terminal.pid, PtySize(rows=20, cols=90))
    sandbox.pty.send_stdin(terminal.pid, b"stty -echo; stty size; tty; exit 7\n")
    screen = Screen()
    try:
        terminal.wait(on_pty=screen)
    except CommandExitException as error:
        assert error.exit_code == 7, error
    else:
        raise AssertionError("the shell's exit code is lost")
    assert b"20 90" in screen.text, screen.text
    assert b"/dev/pts/" in screen.text, screen.text

    terminal = sandbox.pty.create(PtySize(rows=30, cols=100))
    sandbox.pty.send_stdin(terminal.pid, b"sleep 1000 & echo $! >pid; echo begun; wait\n")
    for _ in terminal:
        if sandbox.files.exists("pid") and sandbox.files.read("pid"):
            break
    assert sandbox.pty.kill(terminal.pid) is True
    assert sandbox.pty.kill(terminal.pid) is False
    assert sandbox.commands.run("kill -0 $(cat pid) 2>/dev/null || echo gone").stdout == "gone\n"

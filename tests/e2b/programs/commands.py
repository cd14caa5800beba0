"""Commands in the foreground and the background, their input and their end, and who comes back to them."""

import shlex
import time

from e2b import (
    AuthenticationException,
    CommandExitException,
    InvalidArgumentException,
    NotFoundException,
    Sandbox,
    TimeoutException,
)

with Sandbox.create(timeout=120, envs={"GLOBAL": "sandbox", "BOTH": "sandbox"}) as sandbox:
    # output, exit code, environment, user and folder
    done = sandbox.commands.run(
        "echo out; echo err >&2; echo $GLOBAL $BOTH $E2B_SANDBOX $E2B_SANDBOX_ID; whoami; pwd", envs={"BOTH": "command"}
    )
    assert done.stderr == "err\n"
    assert done.stdout == f"out\nsandbox command true {sandbox.sandbox_id}\nuser\n/home/user\n", done.stdout
    assert done.exit_code == 0
    assert done.error is None
    assert sandbox.commands.run("whoami; pwd", user="root").stdout == "root\n/root\n"
    assert sandbox.commands.run("pwd", cwd="/tmp").stdout == "/tmp\n"
    assert sandbox.commands.run("cat /run/e2b/.E2B_SANDBOX_ID").stdout == sandbox.sandbox_id
    assert sandbox.commands.run("printf 'ünï\\n'").stdout == "ünï\n"

    # what goes wrong
    try:
        sandbox.commands.run("echo before; exit 3")
    except CommandExitException as error:
        assert (error.exit_code, error.stdout, error.error) == (3, "before\n", "exit status 3")
    else:
        raise AssertionError("an exit code is no error")
    for arguments, kind in (
        ({"cwd": "/nowhere"}, InvalidArgumentException),
        ({"user": "nobody-here"}, AuthenticationException),
    ):
        try:
            sandbox.commands.run("true", **arguments)
        except kind as error:
            assert "/nowhere" in str(error) or "nobody-here" in str(error), error
        else:
            raise AssertionError(arguments)
    try:
        sandbox.commands.run("sleep 1000 & echo $! >/tmp/child; wait", timeout=2)
    except TimeoutException:
        pass
    else:
        raise AssertionError("a command outlived its timeout")
    assert sandbox.commands.run("kill -0 $(cat /tmp/child) 2>/dev/null || echo gone").stdout == "gone\n"

    # output as it comes
    parts = []
    sandbox.commands.run("for i in 1 2 3; do echo $i; sleep 0.2; done", on_stdout=parts.append)
    assert len(parts) >= 2, parts
    assert "".join(parts) == "1\n2\n3\n"
    many = sandbox.commands.run("seq 1 300000").stdout
    assert many == "".join(f"{n}\n" for n in range(1, 300001))

    # in the background: input, the list, and coming back
    handle = sandbox.commands.run("read line; echo got $line; cat; exit 4", background=True, stdin=True)
    assert [info.pid for info in sandbox.commands.list()] == [handle.pid]
    info = sandbox.commands.list()[0]
    assert (info.cmd, info.args[-1]) == ("/bin/bash", "read line; echo got $line; cat; exit 4"), info
    handle.disconnect()
    again = sandbox.commands.connect(handle.pid)
    sandbox.commands.send_stdin(handle.pid, "first\nsecond\n")
    sandbox.commands.close_stdin(handle.pid)
    try:
        again.wait()
    except CommandExitException as error:
        assert (error.exit_code, error.stdout) == (4, "got first\nsecond\n"), error
    else:
        raise AssertionError("the exit code is lost")
    try:
        sandbox.commands.connect(handle.pid).wait()  # it has ended, and still tells how
    except CommandExitException as error:
        assert error.exit_code == 4
    else:
        raise AssertionError("the exit code is forgotten")

    # its end
    handle = sandbox.commands.run("sleep 1000", background=True)
    assert sandbox.commands.kill(handle.pid) is True
    assert sandbox.commands.kill(handle.pid) is False
    try:
        handle.wait()
    except CommandExitException as error:
        assert error.error == "signal: killed", error.error
    else:
        raise AssertionError("a killed command ended well")
    assert sandbox.commands.list() == []
    assert sandbox.commands.kill(999999) is False
    try:
        sandbox.commands.connect(999999)
    except NotFoundException as error:
        assert "process with pid 999999 not found" in str(error)
    else:
        raise AssertionError("there is no such process")

    # a server that listens on loopback only is reached at the card's address, as from outside
    server = sandbox.commands.run("python3 -m http.server 8123 --bind 127.0.0.1", background=True, timeout=0)
    ask = r"exec 3<>/dev/tcp/169.254.0.21/8123; printf 'GET / HTTP/1.0\r\n\r\n' >&3; head -1 <&3"
    deadline = time.monotonic() + 100
    while " 200 " not in sandbox.commands.run(f"bash -c {shlex.quote(ask)} 2>/dev/null || true").stdout:
        assert time.monotonic() < deadline, "it is never reached"
    server.kill()

"""A stream that is open when its sandbox is killed ends at once, and its reader is told that the sandbox is gone."""

import threading

from e2b import Sandbox, TimeoutException


def main() -> None:
    """Kill a sandbox under a command whose output is being read."""
    sandbox = Sandbox.create("base", timeout=120)
    reading = threading.Event()
    ended: list[BaseException | None] = []

    def read() -> None:
        try:
            handle = sandbox.commands.run("while true; do echo tick; sleep 0.1; done", background=True)
            handle.wait(on_stdout=lambda _: reading.set())
            ended.append(None)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is looked at below
            ended.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    assert reading.wait(60)
    assert sandbox.is_running()
    assert sandbox.kill()
    assert not sandbox.is_running()
    reader.join(30)
    assert not reader.is_alive(), "it still reads"
    (error,) = ended
    assert isinstance(error, TimeoutException), repr(error)
    assert "sandbox" in str(error), str(error)
    try:
        sandbox.commands.run("true")
    except TimeoutException as error:
        assert "The sandbox was not found" in str(error), str(error)
    else:
        raise AssertionError("a command ran in a sandbox that was killed")
    assert not sandbox.kill()


main()

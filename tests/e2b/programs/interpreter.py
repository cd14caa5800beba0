# sdk: newest
"""The code interpreter as its SDK uses it: results, charts, contexts, variables, errors, time limits."""

import base64
import time

from e2b_code_interpreter import OutputMessage, Sandbox
from e2b_code_interpreter.charts import BarChart, LineChart

from e2b import NotFoundException, SandboxException, TimeoutException

PLOT = """
import matplotlib.pyplot as plt
figure, (left, right) = plt.subplots(1, 2)
left.plot([1, 2, 3], [4, 5, 6], label="rising")
left.set_xlabel("Time (s)")
right.bar(["a", "b"], [1, 2], label="counts")
figure.suptitle("Both")
plt.show()
"""

DRAWING = """
import random, threading, time
def draw():
    with open("/home/user/drawn.txt", "w") as file:
        while True:
            print(random.random(), file=file, flush=True)
            time.sleep(0.1)
threading.Thread(target=draw, daemon=True).start()
"""


def main() -> None:
    """Use two sandboxes: what one of them draws at random, the other must not."""
    with Sandbox.create(timeout=300, envs={"GIVEN": "to the sandbox"}) as sandbox:
        results(sandbox)
        charts(sandbox)
        variables(sandbox)
        other_languages(sandbox)
        contexts(sandbox)
        interruption(sandbox)
        with Sandbox.create(timeout=300) as other:
            copies(sandbox, other)
        forks(sandbox)


def results(sandbox: Sandbox) -> None:
    """Text, output as it comes, errors, tables, packages and files in common with commands."""
    assert sandbox.run_code("x = 20\nx + 1").text == "21"
    assert sandbox.run_code("x").text == "20", "a kernel keeps its variables"
    told: list[OutputMessage] = []
    execution = sandbox.run_code("print('hello'); 'the end'", on_stdout=told.append)
    assert execution.logs.stdout == ["hello\n"]
    assert [message.line for message in told] == ["hello\n"]
    assert execution.text == "the end"
    assert execution.execution_count == 3
    failed = sandbox.run_code("{}['key']").error
    assert failed is not None
    assert (failed.name, failed.value) == ("KeyError", "'key'")
    assert "KeyError" in failed.traceback
    table = sandbox.run_code("import pandas as pd\npd.DataFrame({'a': [1, 2]})").results[0]
    assert table.data == {"a": [1, 2]}
    assert table.html is not None
    sandbox.files.write("/home/user/data.txt", "from outside")
    assert sandbox.run_code("open('data.txt').read()").text == "from outside"
    assert sandbox.commands.run("python3 -c 'import sys; print(sys.prefix)'").stdout == "/usr/local\n"
    assert sandbox.run_code("import getpass; getpass.getuser()").text == "user"
    assert sandbox.run_code("import asyncio\nawait asyncio.sleep(0.01)\n'awaited'").text == "awaited"


def charts(sandbox: Sandbox) -> None:
    """A figure comes as a picture and as data."""
    (shown,) = sandbox.run_code(PLOT).results
    assert shown.png is not None
    assert base64.b64decode(shown.png).startswith(b"\x89PNG")
    assert shown.chart is not None
    assert shown.chart.title == "Both"
    left, right = shown.chart.elements
    assert isinstance(left, LineChart)
    assert (left.x_label, left.x_unit) == ("Time (s)", "s")
    assert left.elements[0].points == [(1.0, 4.0), (2.0, 5.0), (3.0, 6.0)]
    assert isinstance(right, BarChart)
    assert [(bar.label, bar.group, bar.value) for bar in right.elements] == [("a", "counts", 1), ("b", "counts", 2)]


def variables(sandbox: Sandbox) -> None:
    """Those of the sandbox are there for good, those of a run for its time."""
    assert sandbox.run_code("import os; os.environ['GIVEN']").text == "to the sandbox"
    assert sandbox.run_code("os.environ['GIVEN']", envs={"GIVEN": "for a run"}).text == "for a run"
    assert sandbox.run_code("os.environ['GIVEN']").text == "to the sandbox"


def other_languages(sandbox: Sandbox) -> None:
    """JavaScript; each kernel more is seconds where the CPU is emulated."""
    execution = sandbox.run_code("console.log(process.env.GIVEN); await Promise.resolve([1, 2])", language="javascript")
    assert execution.logs.stdout == ["to the sandbox\n"]
    assert execution.text == "[ 1, 2 ]"
    try:
        sandbox.run_code("x", language="fortran")
    except SandboxException as refused:
        assert "not installed" in str(refused)
    else:
        raise AssertionError("a language that is not there")


def contexts(sandbox: Sandbox) -> None:
    """Each has variables and a folder of its own."""
    context = sandbox.create_code_context(cwd="/tmp")
    assert (context.language, context.cwd) == ("python", "/tmp")
    assert sandbox.run_code("import os\ny = 1\nos.getcwd()", context=context).text == "/tmp"
    assert sandbox.run_code("y").error is not None
    assert context.id in [one.id for one in sandbox.list_code_contexts()]
    sandbox.remove_code_context(context)
    try:
        sandbox.run_code("1", context=context)
    except NotFoundException:
        pass
    else:
        raise AssertionError("a context that was removed")


def interruption(sandbox: Sandbox) -> None:
    """A run over its time is interrupted; the kernel goes on with what it had."""
    try:
        sandbox.run_code("kept = 5\nwhile True: pass", timeout=3)
    except TimeoutException:
        pass
    else:
        raise AssertionError("a run without an end")
    assert sandbox.run_code("kept + 1").text == "6"


def copies(sandbox: Sandbox, other: Sandbox) -> None:
    """Kernels that come from one template have neither random numbers nor variables in common."""
    draw = "import random, numpy, uuid\n[random.random(), numpy.random.rand(), str(uuid.uuid4())]"
    ours, theirs = sandbox.run_code(draw).text, other.run_code(draw).text
    assert ours is not None
    assert theirs is not None
    assert not set(ours.split(", ")) & set(theirs.split(", ")), (ours, theirs)
    assert other.run_code("import os; os.environ.get('GIVEN', 'none')").text == "none"


def forks(sandbox: Sandbox) -> None:
    """What a run in the middle of a fork draws from then on differs: no cell begins after it."""
    sandbox.run_code(DRAWING)
    (fork,) = sandbox.fork(timeout=120)
    assert isinstance(fork, Sandbox), fork
    with fork:
        begun = len(drawn(sandbox))
        ours, theirs = (drawn_beyond(one, begun + 5) for one in (sandbox, fork))
        both = min(len(ours), len(theirs)) - 1
        assert ours[both] != theirs[both], (ours[-5:], theirs[-5:])


def drawn(sandbox: Sandbox) -> list[str]:
    """Return the numbers that a sandbox has drawn so far."""
    return str(sandbox.files.read("/home/user/drawn.txt")).split()


def drawn_beyond(sandbox: Sandbox, count: int) -> list[str]:
    """Wait until it has drawn so many."""
    deadline = time.monotonic() + 60
    while len(found := drawn(sandbox)) < count:
        assert time.monotonic() < deadline, found
    return found


if __name__ == "__main__":
    main()

"""The code interpreter's server on loopback: kernels, contexts, interruption, and what becomes of a dead kernel."""

import asyncio
import base64
import json
from collections.abc import AsyncGenerator
from pathlib import Path

import httpx2
import pytest
from tests.support.interpreter import Interpreter, serving


@pytest.fixture(scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Interpreter]:
    async with serving(tmp_path_factory.mktemp("interpreter")) as found:
        yield found


async def test_a_run_is_told_line_by_line(server: Interpreter) -> None:
    lines = await server.run("import sys\nprint('out')\nprint('err', file=sys.stderr)\n'val' + 'ue'")
    assert [line["type"] for line in lines] == ["number_of_executions", "stdout", "stderr", "result"]
    assert (lines[1]["text"], lines[2]["text"], lines[3]["text"]) == ("out\n", "err\n", "value")
    again = await server.run("1")
    assert again[0]["execution_count"] == lines[0]["execution_count"] + 1


async def test_output_comes_while_the_code_runs(server: Interpreter) -> None:
    gate = server.home / "gate"
    code = (
        f"import os, time\nprint('first', flush=True)\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.05)\n'end'"
    )
    async with server.running(code) as answer:
        lines = answer.aiter_lines()
        while "first" not in await anext(lines):
            pass
        gate.touch()
        assert json.loads([line async for line in lines][-1])["text"] == "end"


async def test_what_ipython_offers(server: Interpreter) -> None:
    assert await server.text("import asyncio\nawait asyncio.sleep(0.01)\n6 * 7") == "42"
    assert await server.text("%pwd") == str(server.home)
    shown = await server.run("from IPython.display import HTML, JSON, display\ndisplay(HTML('<b>'))\nJSON({'a': 1})")
    assert [(line["html"] if "html" in line else line["json"], line["is_main_result"]) for line in shown[1:]] == [
        ("<b>", False),
        ({"a": 1}, True),
    ]
    failed = await server.error("def f(): raise KeyError('k')\nf()")
    assert (failed["name"], failed["value"]) == ("KeyError", "'k'")
    assert "f()" in failed["traceback"]
    assert (await server.error("input()"))["name"] == "StdinNotImplementedError"


async def test_a_figure_is_a_picture_and_data(server: Interpreter) -> None:
    code = "import matplotlib.pyplot as plt\nplt.plot([1, 2], [3, 4], label='a')\nplt.xlabel('t (s)')\nplt.show()"
    shown = next(line for line in await server.run(code) if line["type"] == "result")
    assert base64.b64decode(shown["png"]).startswith(b"\x89PNG")
    chart = shown["chart"]
    assert (chart["type"], chart["x_label"], chart["x_unit"]) == ("line", "t (s)", "s")
    assert chart["elements"] == [{"label": "a", "points": [[1.0, 3.0], [2.0, 4.0]]}]


@pytest.mark.parametrize(
    ("draw", "kind", "elements"),
    [
        ("plt.scatter([1], [2], label='s')", "scatter", [{"label": "s", "points": [[1.0, 2.0]]}]),
        (
            "plt.bar(['a', 'b'], [1, 2], label='g')",
            "bar",
            [{"label": "a", "group": "g", "value": 1.0}, {"label": "b", "group": "g", "value": 2.0}],
        ),
        ("plt.barh(['a'], [3], label='g')", "bar", [{"label": "a", "group": "g", "value": 3.0}]),
        (
            "plt.pie([90, 10], labels=['No', 'Yes'])",
            "pie",
            [{"label": "No", "angle": 324.0, "radius": 1.0}, {"label": "Yes", "angle": 36.0, "radius": 1.0}],
        ),
        (
            "plt.boxplot([[1, 2, 3, 4, 50]], tick_labels=['b'])",
            "box_and_whisker",
            [
                {
                    "label": "b", "min": 1.0, "first_quartile": 2.0, "median": 3.0, "third_quartile": 4.0, "max": 4.0,
                    "outliers": [50.0],
                }
            ],
        ),
        (
            "plt.boxplot([[1, 2, 3]])\nplt.boxplot([[2, 3, 4]], patch_artist=True)",
            "box_and_whisker",
            [
                {
                    "label": "1", "min": 2.0, "first_quartile": 2.5, "median": 3.0, "third_quartile": 3.5, "max": 4.0,
                    "outliers": [],
                }
            ],
        ),
        ("plt.gca().add_patch(plt.Circle((0, 0), 1))", "unknown", []),
        (
            "import datetime\nplt.plot([datetime.date(2024, 2, 29)], [1])",
            "line",
            [{"label": "Series 1", "points": [["2024-02-29T00:00:00+00:00", 1.0]]}],
        ),
    ],
)  # fmt: skip
async def test_charts(server: Interpreter, draw: str, kind: str, elements: list[object]) -> None:
    lines = await server.run(f"import matplotlib.pyplot as plt\nplt.close('all')\n{draw}\nplt.title('T')\nplt.show()")
    chart = next(line for line in lines if line["type"] == "result")["chart"]
    assert (chart["type"], chart["title"]) == (kind, "T")
    assert chart["elements"] == elements


async def test_a_picture_that_is_saved_is_shown(server: Interpreter) -> None:
    code = "from PIL import Image\nimage = Image.new('RGB', (2, 2))\nimport io\nimage.save(io.BytesIO(), 'png')\n"
    lines = await server.run(f"{code}image.save({str(server.home / 'a.png')!r})")
    (shown,) = [line for line in lines if line["type"] == "result"]
    assert base64.b64decode(shown["png"]).startswith(b"\x89PNG")
    assert (server.home / "a.png").read_bytes().startswith(b"\x89PNG")


async def test_several_charts_in_a_figure(server: Interpreter) -> None:
    code = "f, (a, b) = plt.subplots(1, 2)\na.plot([1])\nb.bar(['x'], [1])\nf.suptitle('S')\nplt.show()"
    lines = await server.run(f"import matplotlib.pyplot as plt\n{code}")
    chart = next(line for line in lines if line["type"] == "result")["chart"]
    assert (chart["type"], chart["title"]) == ("superchart", "S")
    assert [one["type"] for one in chart["elements"]] == ["line", "bar"]


async def test_a_table_is_data(server: Interpreter) -> None:
    frame = "pd.DataFrame({'n': [1, 2], 's': ['x', None], 't': [pd.Timestamp('2024-02-29'), None], 'f': [0.5, None]})"
    shown = (await server.run(f"import pandas as pd\n{frame}"))[-1]
    assert shown["data"] == {"n": [1, 2], "s": ["x", None], "t": ["2024-02-29T00:00:00", None], "f": [0.5, None]}
    assert "<table" in shown["html"]


async def test_javascript(server: Interpreter) -> None:
    lines = await server.run("const x = [1, 2]; console.log('out'); console.error('err'); x", language="javascript")
    told = {line["type"]: line for line in lines}  # the two streams and the kernel's own words have no order
    assert told.keys() == {"number_of_executions", "stdout", "stderr", "result"}
    assert told["result"]["text"] == "[ 1, 2 ]"
    code = (
        "import fs, { existsSync as e } from 'fs'; const x = await Promise.resolve(3); x + e('/') + typeof fs.statSync"
    )
    assert await server.text(code, language="js") == "4function"
    failed = await server.error("null.x", language="js")
    assert failed["name"] == "TypeError"
    assert "cell_3:1" in failed["traceback"]
    assert (await server.error("let = 3 +", language="js"))["name"] == "SyntaxError"
    shown = await server.run("({ [Symbol.for('Jupyter.display')]: () => ({ 'text/html': '<i>' }) })", language="js")
    assert shown[-1]["html"] == "<i>"
    assert (await server.run("undefined", language="js"))[-1]["type"] == "number_of_executions"


async def test_typescript(server: Interpreter) -> None:
    code = "enum E { A = 40 }\ninterface I { n: number }\nconst i: I = { n: 2 };\nE.A + i.n"
    assert await server.text(code, language="typescript") == "42"
    assert (await server.error("const a: = 5", language="ts"))["name"] == "SyntaxError"


async def test_bash(server: Interpreter) -> None:
    await server.run("cd /; X=kept", language="bash")
    assert (await server.run("echo $X $PWD", language="bash"))[-1]["text"] == "kept /\n"


@pytest.mark.parametrize(
    ("language", "get", "missing"),
    [
        ("python", "import os; os.environ.get('GIVEN', 'none')", "none"),
        ("javascript", "process.env.GIVEN ?? 'none'", "none"),
        ("bash", "echo ${GIVEN-none}", "none\n"),
    ],
)
async def test_variables_are_set_for_one_run(server: Interpreter, language: str, get: str, missing: str) -> None:
    async def value(**more: object) -> str:
        return str((await server.run(get, language=language, **more))[-1]["text"])

    given = "a 'quoted' $value"
    assert (await value(env_vars={"GIVEN": given})).strip() == given
    assert await value() == missing
    assert await value(env_vars={"SECRET": "x"}) == missing


async def test_kernels_have_none_of_the_servers_variables(server: Interpreter) -> None:
    assert await server.text("import os; sorted(set(os.environ) & {'SECRET', 'HOME'})") == "['HOME']"


async def test_contexts_are_apart_and_begin_where_asked(server: Interpreter) -> None:
    folder = server.home / "elsewhere"  # which is made
    made = (await server.http.post("/contexts", json={"cwd": str(folder)})).json()
    assert (made["language"], made["cwd"]) == ("python", str(folder))
    await server.run("x = 1", context_id=made["id"])
    assert (await server.error("x"))["name"] == "NameError"
    assert await server.text("import os; (x, os.getcwd())", context_id=made["id"]) == f"(1, '{folder}')"
    listed = (await server.http.get("/contexts")).json()
    assert made in listed
    assert {"python", "javascript"} <= {one["language"] for one in listed}
    assert (await server.http.post(f"/contexts/{made['id']}/restart")).status_code == 200
    assert (await server.error("x", context_id=made["id"]))["name"] == "NameError"
    assert (await server.http.delete(f"/contexts/{made['id']}")).status_code == 204
    gone = await server.http.post("/execute", json={"code": "1", "context_id": made["id"]})
    assert (gone.status_code, gone.text) == (404, f"Context {made['id']} not found\n")
    assert (await server.http.delete(f"/contexts/{made['id']}")).status_code == 404
    assert (await server.http.post(f"/contexts/{made['id']}/restart")).status_code == 404


@pytest.mark.parametrize(
    ("path", "asked", "says"),
    [
        ("/execute", {"code": "1", "language": "fortran"}, "'fortran' is not installed"),
        ("/execute", {"code": "1", "language": "python", "context_id": "c"}, "not both"),
        ("/execute", {"code": 1}, "code is not a string"),
        ("/execute", {"code": "1", "env_vars": {"A=B": "1"}}, "cannot be a variable"),
        ("/execute", {"code": "1", "env_vars": {"A": 1}}, "object of strings"),
        ("/contexts", {"cwd": "/proc/nonexistent"}, "is not a directory"),
        ("/contexts", {"language": "cobol"}, "is not installed"),
        ("/contexts", ["python"], "not a JSON object"),
    ],
)
async def test_what_cannot_be_is_refused(server: Interpreter, path: str, asked: object, says: str) -> None:
    answer = await server.http.post(path, json=asked)
    assert answer.status_code == 400
    assert says in answer.text


@pytest.mark.parametrize(
    ("language", "endless", "after", "text"),
    [
        ("python", "while True: pass", "3 + 4", "7"),
        (
            "python",
            "import time\nfor _ in range(2):\n  try: time.sleep(1000)\n  except KeyboardInterrupt: pass",
            "3 + 4",
            "7",
        ),
        ("javascript", "while (true) {}", "3 + 4", "7"),
        ("javascript", "await new Promise(() => {})", "3 + 4", "7"),
    ],
)
async def test_a_run_that_nobody_waits_for_is_interrupted(
    server: Interpreter, language: str, endless: str, after: str, text: str
) -> None:
    """And the kernel keeps what it had."""
    await server.run("kept = 1" if language == "python" else "globalThis.kept = 1", language=language)
    async with server.running(endless, language=language) as answer:
        await anext(answer.aiter_lines())  # it is under way
    assert await server.text(f"kept + {after}", language=language) == "8"


async def test_runs_of_one_context_wait_their_turn(server: Interpreter) -> None:
    gate = server.home / "turn"
    code = f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.02)\norder = ['first']"
    async with server.running(code) as answer:
        told = answer.aiter_lines()  # kept: one that is thrown away closes the answer
        await anext(told)
        async with asyncio.TaskGroup() as group:
            second = group.create_task(server.text("order.append('second'); order"))
            other = group.create_task(server.text("1 + 1", language="javascript"))
            async with server.running("1") as waiting:  # entered with the answer's head, which does not wait
                assert waiting.headers["content-type"] == "application/x-ndjson"
            assert await other == "2", "another context does not wait"
            assert not second.done()
            gate.touch()
        assert second.result() == "['first', 'second']"


@pytest.mark.parametrize(
    ("language", "die", "how"),
    [
        ("python", "import os; os._exit(3)", "status 3"),
        ("python", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL"),
        ("javascript", "process.kill(process.pid, 'SIGKILL')", "SIGKILL"),
    ],
)
async def test_a_kernel_that_dies_is_told_and_replaced(server: Interpreter, language: str, die: str, how: str) -> None:
    await server.text("1", language=language)
    failed = await server.error(die, language=language)
    assert failed["name"] == "KernelDied"
    assert how in failed["value"]
    assert await server.text("2 + 3", language=language) == "5"


async def test_a_kernel_that_died_between_runs_is_replaced_and_told(server: Interpreter) -> None:
    made = (await server.http.post("/contexts", json={})).json()["id"]
    (server.home / "die").unlink(missing_ok=True)
    code = (
        "import os, threading, time\ndef die():\n  while not os.path.exists('die'): time.sleep(0.01)\n  os._exit(1)\n"
        "threading.Thread(target=die).start()"
    )
    await server.run(code, context_id=made)
    pid = int(str(await server.text("import os; os.getpid()", context_id=made)))
    (server.home / "die").touch()
    async with asyncio.timeout(30):
        while Path(f"/proc/{pid}/stat").exists() and ") Z " not in Path(f"/proc/{pid}/stat").read_text():
            await asyncio.sleep(0.02)
    lines = await server.run("2 + 3", context_id=made)
    assert "had died" in lines[0]["text"]
    assert lines[-1]["text"] == "5"
    await server.http.delete(f"/contexts/{made}")


async def test_the_first_kernel_has_what_code_begins_with_and_no_variables(tmp_path: Path) -> None:
    async with serving(tmp_path) as own:
        lines = await own.run("import sys\n({'pandas', 'matplotlib.pyplot'} <= set(sys.modules), 'pd' in globals())")
        assert (lines[0]["execution_count"], lines[-1]["text"]) == (1, "(True, False)")


async def test_other_paths_are_not_there(server: Interpreter) -> None:
    assert (await server.http.get("/")).status_code == 404
    assert (await server.http.get("/execute")).status_code == 405


async def test_the_end_takes_all_kernels_along(tmp_path: Path) -> None:
    async with serving(tmp_path) as own:
        pids = [
            int(str(await own.text("import os; os.getpid()"))),
            int(str(await own.text("process.pid", language="js"))),
        ]
    async with asyncio.timeout(30):
        while any(Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids):
            await asyncio.sleep(0.02)
    with pytest.raises(httpx2.TransportError):
        httpx2.get(f"{own.http.base_url}/health")

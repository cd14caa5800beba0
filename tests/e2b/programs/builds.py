"""Templates are built from steps, named, tagged, listed and deleted; failures name the step and say what E2B's do."""

import asyncio
import inspect
import pathlib
import uuid
from typing import Any

from e2b import AsyncTemplate, BuildException, Sandbox, Template, TemplateException

RUN = uuid.uuid4().hex[:8]
NAME = f"builds-{RUN}"


def context() -> None:
    pathlib.Path("app/sub").mkdir(parents=True)
    pathlib.Path("app/main.txt").write_text("main\n")
    pathlib.Path("app/sub/other.txt").write_text("other\n")
    pathlib.Path("notes.txt").write_text("notes\n")


def template() -> Any:
    return (
        Template(file_context_path=pathlib.Path.cwd())
        .from_base_image()
        .set_envs({"GREETING": "hello", "PATH": "/opt/tools:$PATH"})
        .run_cmd('test "$(whoami)" = user && test "$(pwd)" = /home/user && test "$GREETING" = hello')
        .run_cmd('test "$(whoami)" = root && echo made > /opt/by-root', user="root")
        .copy("app", "/srv/app")
        .copy("notes.txt", "notes/")
        .set_workdir("/srv")
        .run_cmd("cat app/main.txt app/sub/other.txt /home/user/notes/notes.txt")
        .set_start_cmd("echo $GREETING from $(pwd) > /tmp/started; sleep 1000", "test -s /tmp/started")
    )


def build(what: Any, name: str, **options: Any) -> tuple[Any, list[str]]:
    said: list[str] = []
    options.setdefault("cpu_count", 1)
    options.setdefault("memory_mb", 512)
    info = Template.build(what, name, on_build_logs=lambda entry: said.append(entry.message), **options)
    return info, said


def fails(what: Any, expected: str, step: str | None = None) -> None:
    failure: BuildException | None = None
    try:
        build(what, f"fails-{RUN}")
    except BuildException as error:
        failure = error
    assert failure is not None, f"{expected}: it was built"
    assert expected in str(failure), str(failure)
    if step is not None:
        lines = inspect.getinnerframes(failure.__traceback__)
        shown = [line for frame in lines for line in frame.code_context or []]
        assert any(f"{step}(" in line for line in shown), shown


def built() -> None:
    info, said = build(template(), f"{NAME}:v1", tags=["stable"])
    assert any("main" in line for line in said), said
    assert sorted(info.tags) == ["stable", "v1"], info
    assert Template.exists(NAME)
    assert not Template.exists(f"nothing-{RUN}")

    with Sandbox.create(f"{NAME}:v1", timeout=60) as sandbox:
        said = sandbox.commands.run("pwd; echo $GREETING; cat /opt/by-root /tmp/started; cat app/sub/other.txt").stdout
        assert said.split("\n") == ["/srv", "hello", "made", "hello from /srv", "other", ""], said
        assert sandbox.commands.run("whoami").stdout == "user\n"
        assert "/opt/tools" in sandbox.commands.run("echo $PATH").stdout

    again, said = build(template(), f"{NAME}:v1")
    assert any("CACHED" in line for line in said), said
    assert again.template_id == info.template_id
    assert again.build_id != info.build_id


def tagged() -> None:
    given = Template.assign_tags(f"{NAME}:v1", ["production", "latest"])
    assert given.tags == ["production", "latest"], given
    uuid.UUID(given.build_id)
    tags = {tag.tag: tag.build_id for tag in Template.get_tags(NAME)}
    assert {"v1", "stable", "production", "latest"} <= tags.keys(), tags
    assert tags["production"] == given.build_id
    Template.remove_tags(NAME, ["production"])
    assert "production" not in {tag.tag for tag in Template.get_tags(NAME)}
    try:
        Template.remove_tags(NAME, ["production"])
    except TemplateException:
        pass
    else:
        raise AssertionError("a tag that is not there was removed")


def refused() -> None:
    def base() -> Any:
        return Template().from_base_image().skip_cache()

    fails(
        base().run_cmd("echo before; exit 7"),
        "failed to run command 'echo before; exit 7': command failed: ",
        "run_cmd",
    )
    fails(
        base().run_cmd("whoami", user="root123"),
        "failed to run command 'whoami': command failed: unauthenticated: invalid username: 'root123'",
    )
    fails(Template().from_template(f"nothing-{RUN}").run_cmd("true"), f"nothing-{RUN}", "from_template")
    fails(Template().from_aws_registry("x.example/y", "a", "b", "c"), "'aws'", "from_aws_registry")


async def followed() -> None:
    """The other client, in the background: the status says at once that it is at work, and what became of it."""
    what = AsyncTemplate().from_template(f"nothing-{RUN}").run_cmd("true")
    info = await AsyncTemplate.build_in_background(what, f"fails-{RUN}", cpu_count=1, memory_mb=512)
    seen = set()
    async with asyncio.timeout(30):
        while "error" not in seen:
            seen.add((await AsyncTemplate.get_build_status(info)).status.value)
    assert seen <= {"waiting", "building", "error"}, seen


def main() -> None:
    context()
    built()
    tagged()
    refused()
    asyncio.run(followed())
    if hasattr(Template, "list"):
        pages, found = Template.list(), []
        while pages.has_next:
            found += pages.next_items()
        assert NAME in [name for one in found for name in one.names], found


main()

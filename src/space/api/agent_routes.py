"""The routes of a sandbox's agent, as far as a client of `/v1` sees them.

The edge sends them to the sandbox; they never come here. They are in the OpenAPI document all the same, so that a
client made from it has them, and a request that reaches this process without passing the edge is told so.
"""

from typing import Any

from fastapi import FastAPI, Request

from space.model.errors import Misdirected

Json = dict[str, Any]
BASE = "/v1/sandboxes/{sandbox_id}"
_STRING: Json = {"type": "string"}
_INTEGER: Json = {"type": "integer"}
_BOOLEAN: Json = {"type": "boolean"}
_BYTES = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_NDJSON = {"application/x-ndjson": {"schema": _STRING}}


def _object(required: tuple[str, ...] = (), **properties: Json) -> Json:
    return {"type": "object", "properties": properties, "required": list(required)}


_PTY = {"anyOf": [_object(("cols", "rows"), cols=_INTEGER, rows=_INTEGER), {"type": "null"}]}
_START = _object(
    cmd={"type": "string", "description": "Run by /bin/bash -lc. Give either this or args."},
    args={"type": "array", "items": _STRING},
    env={"type": "object", "additionalProperties": _STRING},
    cwd=_STRING,
    user={"type": "string", "default": "user"},
    timeout_s={"type": "number"},
    stdin={"type": "boolean", "default": False, "description": "Keep standard input open for .../stdin."},
    pty=_PTY,
    detach={"type": "boolean", "default": False, "description": "Answer at once with the command's id."},
    output_limit_bytes=_INTEGER,
)
_ENTRY = _object(
    ("name", "path", "type", "size_bytes", "mode"),
    name=_STRING,
    path=_STRING,
    type={"type": "string", "enum": ["file", "directory", "symlink", "other"]},
    size_bytes=_INTEGER,
    mode={"type": "string", "examples": ["0644"]},
    permissions=_STRING,
    user=_STRING,
    group=_STRING,
    modified_at={"type": "string", "format": "date-time"},
    symlink_target={"anyOf": [_STRING, {"type": "null"}]},
)
_STREAM = (
    "One JSON object a line: `start` (command_id, pid); `stdout`, `stderr`, `pty` (offset, data in base64); `gap` "
    "(offset, next_offset) where output was dropped; `keepalive`; last `exit` (code, signal, timed_out, next_offset)."
)


def _query(name: str, schema: Json, *, required: bool = False) -> Json:
    return {"name": name, "in": "query", "required": required, "schema": schema}


def _path(name: str) -> Json:
    return {"name": name, "in": "path", "required": True, "schema": _STRING}


def _json(schema: Json) -> Json:
    return {"application/json": {"schema": schema}}


def _route(
    name: str,
    summary: str,
    answers: dict[int, tuple[str, Json | None]],
    *parameters: Json,
    body: Json | None = None,
) -> Json:
    """Return one operation; `answers` maps a status to its description and content."""
    responses = {
        str(status): {"description": text} | ({} if content is None else {"content": content})
        for status, (text, content) in answers.items()
    }
    found: Json = {"operationId": name, "summary": summary, "tags": ["agent"], "parameters": list(parameters)}
    if body is not None:
        found["requestBody"] = {"required": True, "content": body}
    return found | {"responses": responses}


def paths() -> Json:
    """Return the OpenAPI paths of the agent's routes."""
    command, file, user = _path("command_id"), _query("path", _STRING, required=True), _query("user", _STRING)
    done, entry, stream = ("Done.", None), _json(_ENTRY), (_STREAM, _NDJSON)
    info = _json(_object())
    routes: Json = {
        "/commands": {
            "post": _route(
                "start_command",
                "Start a command and stream its output; it goes on if the client goes away.",
                {200: stream, 201: ("With `detach`.", _json(_object(command_id=_STRING, pid=_INTEGER)))},
                body=_json(_START),
            ),
            "get": _route("list_commands", "List commands.", {200: ("The commands.", info)}),
        },
        "/commands/{command_id}": {
            "get": _route("get_command", "Show a command.", {200: ("The command.", info)}, command),
            "delete": _route("kill_command", "Kill a command and forget it.", {204: done}, command),
        },
        "/commands/{command_id}/output": {
            "get": _route(
                "read_output",
                "Read output from an offset on, and follow it.",
                {200: stream},
                command,
                _query("from", _INTEGER | {"default": 0}),
                _query("follow", _BOOLEAN | {"default": True}),
            )
        },
        "/commands/{command_id}/stdin": {
            "post": _route(
                "write_stdin", "Write to standard input.", {200: done, 204: done}, command, _query("eof", _BOOLEAN),
                body=_BYTES,
            )
        },
        "/commands/{command_id}/signal": {
            "post": _route(
                "signal_command", "Send a signal.", {200: done, 204: done}, command,
                body=_json(_object(("signal",), signal={"type": "string", "examples": ["SIGINT"]})),
            )
        },
        "/commands/{command_id}/resize": {
            "post": _route(
                "resize_terminal", "Resize the terminal.", {200: done, 204: done}, command,
                body=_json(_object(("cols", "rows"), cols=_INTEGER, rows=_INTEGER)),
            )
        },
        "/files": {
            "get": _route(
                "read_file", "Read a file; Range works.", {200: ("Bytes.", _BYTES), 206: ("A part.", _BYTES)},
                file, user,
            ),
            "put": _route(
                "write_file", "Write a file, streamed.", {200: ("Replaced.", entry), 201: ("Made.", entry)},
                file, _query("mode", _STRING), user, body=_BYTES,
            ),
            "delete": _route(
                "remove_file", "Remove a file or folder.", {204: done}, file, _query("recursive", _BOOLEAN)
            ),
        },
        "/files/stat": {"get": _route("stat_file", "Show a file's entry.", {200: ("The entry.", entry)}, file)},
        "/files/list": {
            "get": _route(
                "list_files", "List a folder.",
                {200: ("Entries.", _json(_object(entries={"type": "array", "items": _ENTRY}, truncated=_BOOLEAN)))},
                file, _query("depth", _INTEGER | {"default": 1}),
            )
        },
        "/files/mkdir": {
            "post": _route(
                "make_folder", "Make a folder and its parents.", {200: ("There.", entry), 201: ("Made.", entry)},
                file, _query("mode", _STRING),
            )
        },
        "/files/move": {
            "post": _route(
                "move_file", "Move or rename.", {200: ("Moved.", entry)},
                body=_json(_object(("from", "to"), to=_STRING, overwrite=_BOOLEAN, **{"from": _STRING})),
            )
        },
    }  # fmt: skip
    return {BASE + path: {"parameters": [_path("sandbox_id")]} | item for path, item in routes.items()}


def add_refusals(app: FastAPI) -> None:
    """Answer those who reach this process with a request that is for a sandbox."""

    async def refuse(request: Request) -> None:
        raise Misdirected(f"{request.url.path} is served by the sandbox itself; ask through SPACE's public address.")

    for place in ("commands", "files"):
        for rest in ("", "/{rest:path}"):
            methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
            app.add_api_route(f"{BASE}/{place}{rest}", refuse, methods=methods, include_in_schema=False)

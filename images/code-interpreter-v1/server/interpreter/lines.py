"""What a run tells its client, one JSON object a line; pure.

The forms are those that E2B's SDKs read: `number_of_executions`, `stdout`, `stderr`, `result`, `error`.
"""

import json
import time
from collections.abc import Mapping
from typing import Any

Line = dict[str, Any]

_FORMS = {
    "text/plain": "text",
    "text/html": "html",
    "text/markdown": "markdown",
    "image/svg+xml": "svg",
    "image/png": "png",
    "image/jpeg": "jpeg",
    "application/pdf": "pdf",
    "text/latex": "latex",
    "application/json": "json",
    "application/javascript": "javascript",
    "application/vnd.space.data+json": "data",
    "application/vnd.space.chart+json": "chart",
}


def encode(line: Line) -> bytes:
    """Return a line as it is sent. No line is empty, and none holds what is not JSON (NaN)."""
    try:
        text = json.dumps(line, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(line), allow_nan=False)
    return text.encode() + b"\n"


def _finite(value: Any) -> Any:
    if isinstance(value, float) and (value != value or value in {float("inf"), float("-inf")}):
        return None
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return value


def number(count: int) -> Line:
    """Return the line that says how many executions there have been."""
    return {"type": "number_of_executions", "execution_count": count}


def output(stream: str, text: str) -> Line:
    """Return a line of `stdout` or `stderr`; its time is in nanoseconds since 1970."""
    return {"type": stream, "text": text, "timestamp": time.time_ns()}


def error(name: str, value: str, traceback: str = "") -> Line:
    """Return the line that says how a run failed."""
    return {"type": "error", "name": name, "value": value, "traceback": traceback}


def result(bundle: Mapping[str, Any], *, main: bool) -> Line:
    """Return a result from its forms by MIME type; `main` is that of the cell's last expression.

    What has no name of its own is in `extra`, under its MIME type.
    """
    line: Line = {"type": "result", "is_main_result": main}
    extra = {}
    for form, value in bundle.items():
        name = _FORMS.get(form)
        if name is None:
            extra[form] = value
        else:
            line[name] = unquoted(value) if name == "text" else value
    if extra:
        line["extra"] = extra
    return line


def unquoted(text: str) -> str:
    """Return the representation of a string without its quotes: who asks for a string's value wants the value."""
    for quote in ("'", '"'):
        if len(text) >= 2 and text[0] == text[-1] == quote:
            return text[1:-1]
    return text


def of_message(kind: str, content: Mapping[str, Any]) -> Line | None:
    """Return what a message of Jupyter's protocol (its type and content) tells a client; None for one that is not told.

    Source: "Messaging in Jupyter", https://jupyter-client.readthedocs.io/en/stable/messaging.html
    """
    match kind:
        case "execute_input":
            return number(content["execution_count"])
        case "stream":
            return output(content["name"], content["text"])
        case "execute_result":
            return result(content["data"], main=True)
        case "display_data" | "update_display_data":
            return result(content["data"], main=False)
        case "error":
            return error(content["ename"] or "Error", content["evalue"], "\n".join(content["traceback"]))
    return None

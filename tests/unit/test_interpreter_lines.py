"""What the code interpreter tells of a run: the lines that E2B's SDKs read, made from Jupyter's messages."""

import json

import pytest
from interpreter import lines


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        ("'word'", "word"),
        ('"it\'s"', "it's"),
        ("''", ""),
        ("'", "'"),
        ("42", "42"),
        ("'a' + \"b\"", "'a' + \"b\""),
        ("['a', 'b']", "['a', 'b']"),
    ],
)
def test_a_strings_value_is_shown_without_its_quotes(shown: str, text: str) -> None:
    assert lines.result({"text/plain": shown}, main=True) == {"type": "result", "is_main_result": True, "text": text}


def test_every_form_has_its_name_and_the_rest_is_extra() -> None:
    forms = {
        "text/html": "<b>", "text/markdown": "*", "image/svg+xml": "<svg>", "image/png": "cA==", "image/jpeg": "aA==",
        "application/pdf": "cGRm", "text/latex": "$x$", "application/json": {"a": 1}, "application/javascript": "1",
        "application/vnd.space.data+json": {"a": [1]}, "application/vnd.space.chart+json": {"type": "line"},
        "application/x-own": "own",
    }  # fmt: skip
    told = lines.result(forms, main=False)
    assert told == {
        "type": "result", "is_main_result": False, "html": "<b>", "markdown": "*", "svg": "<svg>", "png": "cA==",
        "jpeg": "aA==", "pdf": "cGRm", "latex": "$x$", "json": {"a": 1}, "javascript": "1", "data": {"a": [1]},
        "chart": {"type": "line"}, "extra": {"application/x-own": "own"},
    }  # fmt: skip


def test_messages_of_jupyter_become_lines() -> None:
    assert lines.of_message("execute_input", {"code": "1", "execution_count": 3}) == lines.number(3)
    printed = lines.of_message("stream", {"name": "stderr", "text": "oh\n"})
    assert printed is not None
    assert (printed["type"], printed["text"]) == ("stderr", "oh\n")
    assert printed["timestamp"] > 1_700_000_000 * 10**9
    failed = lines.of_message("error", {"ename": "ValueError", "evalue": "bad", "traceback": ["one", "two"]})
    assert failed == {"type": "error", "name": "ValueError", "value": "bad", "traceback": "one\ntwo"}
    nameless = lines.of_message("error", {"ename": "", "evalue": "1", "traceback": []})
    assert nameless is not None
    assert nameless["name"] == "Error"
    assert lines.of_message("execute_result", {"data": {"text/plain": "1"}}) == lines.result(
        {"text/plain": "1"}, main=True
    )
    assert lines.of_message("display_data", {"data": {}}) == lines.result({}, main=False)
    for quiet in ("status", "clear_output", "comm_open"):
        assert lines.of_message(quiet, {}) is None


def test_each_line_is_json_that_any_parser_takes() -> None:
    line = lines.encode({"type": "result", "data": {"a": [float("nan"), 1.5, float("inf")]}, "text": "one\ntwo"})
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert json.loads(line) == {"type": "result", "data": {"a": [None, 1.5, None]}, "text": "one\ntwo"}

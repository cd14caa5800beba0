"""What a guest may have chosen reaches no terminal as a command to it."""

import hypothesis
import hypothesis.strategies as st
import pytest

from space.cli import output


@hypothesis.given(st.text())
def test_printable_text_has_no_control_characters(text: str) -> None:
    assert all(character.isprintable() for character in output.printable(text))


def test_a_table_escapes_control_sequences_and_markup(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_table(("name",), [["\x1b]0;owned\x07[bold]x[/bold]"]])
    said = capsys.readouterr().out
    assert "\x1b]" not in said
    assert r"\x1b]0;owned\x07[bold]x[/bold]" in said


def test_errors_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    output.error("no. Do this.")
    assert capsys.readouterr() == ("", "error: no. Do this.\n")


def test_an_error_of_a_guest_is_no_command_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    output.error("\x1b]0;owned\x07no\r\nsecond\tline")
    assert capsys.readouterr().err == "error: \\x1b]0;owned\\x07no\\r\nsecond  line\n"


@pytest.mark.parametrize(("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (3 * 1024**3, "3.0 GiB")])
def test_sizes_read_well(size: int, text: str) -> None:
    assert output.human_bytes(size) == text

"""The file with the master keys: made once, for root only, and never shown."""

from pathlib import Path

import pytest

from space.cli import secretkey
from space.layout import UID_RANGE_FIRST, Layout
from space.model.errors import InvalidArgument
from space.settings import HostSettings

KEY, OLDER = "ab" * 32, "cd" * 32


def layout(tmp_path: Path) -> Layout:
    """Return the layout of an instance in a folder."""
    return Layout(tmp_path, "ab12", UID_RANGE_FIRST)


def own(tmp_path: Path, text: str, mode: int = 0o600) -> HostSettings:
    """Return settings with a key file of the operator's own."""
    path = tmp_path / "own-keys"
    path.write_text(text)
    path.chmod(mode)
    return HostSettings(secret_key_file=path)


def test_the_first_start_makes_a_key_and_the_next_uses_it(tmp_path: Path) -> None:
    made = secretkey.ensure(layout(tmp_path), HostSettings())
    path = tmp_path / "secret-key"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text().strip() == made[0].get_secret_value()
    assert secretkey.ensure(layout(tmp_path), HostSettings()) == made


def test_the_operators_own_file_is_used_as_it_is(tmp_path: Path) -> None:
    keys = secretkey.ensure(layout(tmp_path), own(tmp_path, f"# newest first\n{KEY}\n{OLDER}\n"))
    assert [key.get_secret_value() for key in keys] == [KEY, OLDER]
    assert KEY not in repr(keys)
    assert not (tmp_path / "secret-key").exists()


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        (KEY, 0o640, "can be read by other users"),
        (KEY, 0o604, "can be read by other users"),
        (KEY[:-1], 0o600, "64 hex"),
    ],
)
def test_a_file_that_is_open_or_wrong_is_refused(tmp_path: Path, text: str, mode: int, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words) as caught:
        secretkey.ensure(layout(tmp_path), own(tmp_path, text, mode))
    assert text not in str(caught.value)


def test_a_missing_file_is_not_made_up(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="cannot be read"):
        secretkey.ensure(layout(tmp_path), HostSettings(secret_key_file=tmp_path / "nowhere"))
    assert not (tmp_path / "nowhere").exists()

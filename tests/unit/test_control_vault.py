"""The vault: what is sealed opens only with its key and only in its place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from space.control.vault import CannotOpen, Vault, new_key, read_keys
from space.model.errors import InvalidArgument
from space.model.secret import Sealed

KEY, OTHER = bytes(32), bytes(range(32))


@given(st.text(st.characters(codec="utf-8"), max_size=200), st.text(st.characters(codec="utf-8"), max_size=50))
def test_what_is_sealed_opens_in_its_place(plain: str, context: str) -> None:
    vault = Vault([KEY])
    sealed = vault.seal(plain, context)
    assert vault.open(sealed, context) == plain
    with pytest.raises(CannotOpen):
        vault.open(sealed, context + "x")


def test_sealing_twice_gives_two_texts_and_shows_nothing() -> None:
    vault = Vault([KEY])
    one, other = vault.seal("canary", "c"), vault.seal("canary", "c")
    assert one.data != other.data
    assert b"canary" not in one.data
    assert "canary" not in repr(one)


def test_a_changed_byte_is_noticed() -> None:
    vault = Vault([KEY])
    sealed = vault.seal("canary", "c")
    for position in range(len(sealed.data)):
        changed = bytearray(sealed.data)
        changed[position] ^= 1
        with pytest.raises(CannotOpen):
            vault.open(Sealed(sealed.key_id, bytes(changed)), "c")


def test_an_older_key_still_opens_and_the_newest_seals() -> None:
    old = Vault([KEY]).seal("canary", "c")
    both = Vault([OTHER, KEY])
    assert both.open(old, "c") == "canary"
    again = both.seal("canary", "c")
    assert again.key_id != old.key_id
    assert Vault([OTHER]).open(again, "c") == "canary"
    with pytest.raises(CannotOpen, match=old.key_id):
        Vault([OTHER]).open(old, "c")


def test_key_files() -> None:
    assert read_keys(f"# newest\n{OTHER.hex()}\n\n{KEY.hex()}\n") == [OTHER, KEY]
    assert len(read_keys(new_key())[0]) == 32
    for text in ("", "# nothing", "abc", KEY.hex()[:-2], KEY.hex() + "ab", "zz" * 32):
        with pytest.raises(InvalidArgument) as caught:
            read_keys(text)
        assert text.strip()[:8] not in str(caught.value) or not text.strip()

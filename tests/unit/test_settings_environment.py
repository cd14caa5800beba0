"""Settings: where they come from, which wins, and what is refused."""

import json
from pathlib import Path

import pytest

from space.model.errors import InvalidArgument
from space.settings import (
    ApiSettings,
    ClientSettings,
    HostSettings,
    client_settings,
    dump_process_settings,
    host_settings,
    read_process_settings,
)


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in set(HostSettings.model_fields) | set(ClientSettings.model_fields):
        monkeypatch.delenv(f"SPACE_{name.upper()}", raising=False)


def test_flags_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPACE_PORT", "9000")
    monkeypatch.setenv("SPACE_DATA_DIR", "/somewhere")
    assert host_settings(port=None).port == 9000
    assert host_settings(port=9001).port == 9001
    assert client_settings().data_dir == Path("/somewhere")


def test_an_unknown_setting_is_refused_with_the_near_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPACE_PROT", "9000")
    for read in (host_settings, client_settings):
        with pytest.raises(InvalidArgument, match=r"SPACE_PROT is not a setting.*Did you mean SPACE_PORT"):
            read()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORT", "70000"),
        ("PORT", "x"),
        ("DRIVER", "xen"),
        ("MEMORY_GIB", "0"),
        ("IMAGES", "ubuntu"),
        ("REGISTRIES", "http://"),
        ("RESOLVERS", "x"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(f"SPACE_{name}", value)
    with pytest.raises(InvalidArgument, match=f"SPACE_{name}: ") as refused:
        host_settings()
    assert "Input" not in str(refused.value), "that is pydantic's word"


def test_secrets_are_in_the_file_and_not_in_the_text_of_settings(tmp_path: Path) -> None:
    settings = ApiSettings.model_validate(
        {
            "data_dir": "/d",
            "instance": "ab12",
            "uid_base": 0x7000_0000,
            "database_url": "postgresql://u:password@/d",
            "secret_keys": ["ab" * 32],
        }
    )
    assert "password" not in repr(settings)
    assert "abab" not in repr(settings)
    path = tmp_path / "api.json"
    path.write_text(dump_process_settings(settings))
    assert read_process_settings(ApiSettings, path) == settings


def test_a_process_refuses_a_file_with_something_unknown(tmp_path: Path) -> None:
    path = tmp_path / "api.json"
    values = {"data_dir": "/d", "instance": "ab12", "uid_base": 1, "database_url": "x", "secret_keys": [], "extra": 1}
    path.write_text(json.dumps(values))
    with pytest.raises(InvalidArgument, match="EXTRA"):
        read_process_settings(ApiSettings, path)

"""The documents say what the code says."""

import re
from pathlib import Path

from space.model import sandbox, template
from space.model.lifecycle import TRANSITIONS
from space.settings import ClientSettings, HostSettings

_ROOT = Path(__file__).parents[2]
_SPECIFICATION = _ROOT / "SPECIFICATION.md"


def test_the_architecture_shows_the_life_cycle() -> None:
    rows = re.findall(r"^\| (\w+) \| (\w+) \| (\w+) \|$", (_ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE)
    told = [row for row in rows if row != ("state", "event", "next")]
    assert told == [(state, event, after) for state, events in TRANSITIONS.items() for event, after in events.items()]


def test_the_readme_names_every_setting_and_no_other() -> None:
    text = (_ROOT / "README.md").read_text()
    known = {f"SPACE_{name.upper()}" for name in {*HostSettings.model_fields, *ClientSettings.model_fields}}
    assert set(re.findall(r"SPACE_[A-Z_]+[A-Z]", text)) == known


def test_the_readme_tells_the_defaults() -> None:
    text = (_ROOT / "README.md").read_text()
    told = dict(re.findall(r"^\| `SPACE_(\w+)` \| `([^`]+)` \|", text, re.MULTILINE))
    defaults = HostSettings()
    assert told == {name: str(getattr(defaults, name.lower())) for name in told}


def test_the_limits_are_the_codes() -> None:
    rows = dict(
        re.findall(r"^\| ([a-z]\w+) of a sandbox \| (.+) \|$", _SPECIFICATION.read_text(), re.MULTILINE | re.IGNORECASE)
    )
    assert rows == {
        "vCPUs": f"1 to {sandbox.MAX_VCPUS}, default {sandbox.DEFAULT_VCPUS}",
        "memory": f"{sandbox.MIN_MEMORY_MIB} to {sandbox.MAX_MEMORY_MIB} MiB, default {sandbox.DEFAULT_MEMORY_MIB}",
        "disk": f"{template.DEFAULT_DISK_MIB // 1024} GiB, sparse",
        "environment": f"{sandbox.MAX_ENV_BYTES // 1024} KiB",
        "labels": f"{sandbox.MAX_LABELS}, each name and value at most {sandbox.MAX_LABEL_CHARS} characters",
    }

"""Downloads and built parts of templates, kept in the checkout's ignored `.cache/` so that a second run is quick."""

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_KEPT = ROOT / ".cache" / "build"


def seed(cache_dir: Path) -> None:
    """Fill a new instance's cache with what earlier runs kept."""
    shutil.copytree(_KEPT, cache_dir, dirs_exist_ok=True) if _KEPT.is_dir() else cache_dir.mkdir(exist_ok=True)


def keep(cache_dir: Path) -> None:
    """Keep an instance's cache for later runs; whole or not at all."""
    fresh = _KEPT.with_name("build.new")
    shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(cache_dir, fresh, ignore=shutil.ignore_patterns("tmp-*", "*.lock"))
    shutil.rmtree(_KEPT, ignore_errors=True)
    fresh.rename(_KEPT)

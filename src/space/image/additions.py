"""What a recipe adds to the base system, as hooks of mmdebstrap: folders, virtual environments, a last script.

Everything is prepared beside the system: files with modes that do not depend on the checkout's, wheels from the cache.
The hooks then only copy and run programs of the new system in it.
"""

import shlex
import shutil
from pathlib import Path

from space.image import wheels
from space.image.recipe import Copy, Recipe, Venv, files_in
from space.image.work import Log
from space.layout import Layout

_COPY = """\
#!/bin/sh
# $1 is the root of the new system
set -eu
cp -a {stage}/. "$1"/
"""
_VENV = """\
#!/bin/sh
# $1 is the root of the new system; nothing here may ask a network
set -eu
mkdir "$1/tmp/wheels"
cp {wheels}/*.whl "$1/tmp/wheels/"
cp {requirements} "$1/tmp/wheels/requirements.txt"
env -u TMPDIR chroot "$1" /usr/bin/python3 -m venv {path}
env -u TMPDIR chroot "$1" {path}/bin/python -m pip --disable-pip-version-check --no-cache-dir install --quiet \\
  --root-user-action=ignore --no-index --no-deps --require-hashes --find-links=/tmp/wheels \\
  --requirement=/tmp/wheels/requirements.txt
rm -r "$1/tmp/wheels"
chroot "$1" chown -R {owner}:{owner} {path}
"""
_SCRIPT = """\
#!/bin/sh
# $1 is the root of the new system
set -eu
install -m 0755 {script} "$1/tmp/customize"
env -u TMPDIR chroot "$1" /tmp/customize
rm "$1/tmp/customize"
"""
SCRIPTS = (_COPY, _VENV, _SCRIPT)
"""Part of what decides what is in a system."""


async def prepare(layout: Layout, recipe: Recipe, work: Path, log: Log) -> list[Path]:
    """Return the hooks of a recipe, in their order, with all they need in `work` or the cache. Raises CommandError."""
    hooks = []
    if recipe.copies:
        stage = work / "stage"
        for one in recipe.copies:
            _stage(one, stage)
        hooks.append(_hook(work, "copies", _COPY.format(stage=shlex.quote(str(stage)))))
    for number, venv in enumerate(recipe.venvs):
        found = await wheels.obtain(layout, venv.requirements, log)
        hooks.append(_hook(work, f"venv-{number}", _venv(venv, found)))
    if recipe.customize is not None:
        hooks.append(_hook(work, "customize-recipe", _SCRIPT.format(script=shlex.quote(str(recipe.customize)))))
    return hooks


def _venv(venv: Venv, found: Path) -> str:
    return _VENV.format(
        wheels=shlex.quote(str(found)),
        requirements=shlex.quote(str(venv.requirements)),
        path=shlex.quote(venv.path),
        owner=shlex.quote(venv.owner),
    )


def _stage(one: Copy, stage: Path) -> None:
    """Copy a folder as it is to be in the system: 0755 what can be run and every folder, 0644 the rest."""
    target = stage / one.to.lstrip("/")
    for path in files_in(one.source):
        at = target / path.relative_to(one.source)
        at.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, at)
        at.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
    for folder in (stage, *(path for path in stage.rglob("*") if path.is_dir())):
        folder.chmod(0o755)


def _hook(work: Path, name: str, text: str) -> Path:
    path = work / f"{name}.sh"
    path.write_text(text)
    path.chmod(0o755)
    return path

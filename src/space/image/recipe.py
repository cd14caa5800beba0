"""What a template's root filesystem is made of beside the base system, as data: `images/<recipe>/recipe.toml`.

    packages = ["..."]                   Debian packages besides those of `base`
    room_mib = 3072                      what its tree and its tar take at once while it is built
    [[venv]]                             a virtual environment of Python
    path = "/opt/x"
    requirements = "x.txt"               every wheel with its version and digest
    owner = "root"                       or "user", who may install more
    [[copy]]                             a folder of the recipe's into the system
    from = "server"
    to = "/opt/x/lib"
    [customize]                          a script, run in the system's root as root, last
    script = "customize.sh"

Paths are relative to the recipe's folder. The recipe `base` has no folder: it is the base system itself.
"""

import dataclasses
import difflib
import hashlib
import json
import tomllib
from pathlib import Path

import pydantic

from space.model.errors import BuildFailed, InvalidArgument
from space.model.ids import is_template_name

BASE_NAME = "base"
BASE_ROOM_MIB = 1024
"""Room a base system's build takes for a moment, with a margin: its tree beside its tar or its image."""


class Venv(pydantic.BaseModel, extra="forbid"):
    """A virtual environment: where in the system, what is in it, and whose it is."""

    path: str
    requirements: Path
    owner: str = "root"


class Copy(pydantic.BaseModel, extra="forbid"):
    """A folder, its contents to be found below `to` in the system, owned by root."""

    source: Path = pydantic.Field(alias="from")
    to: str


class _Customize(pydantic.BaseModel, extra="forbid"):
    script: Path


class _File(pydantic.BaseModel, extra="forbid"):
    packages: list[str] = []
    room_mib: int = BASE_ROOM_MIB
    venv: list[Venv] = []
    copy_: list[Copy] = pydantic.Field(default=[], alias="copy")
    customize: _Customize | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Recipe:
    """A recipe with absolute paths. `content` is what stands in it and in its files, for the digest."""

    name: str
    packages: tuple[str, ...] = ()
    room_mib: int = BASE_ROOM_MIB
    venvs: tuple[Venv, ...] = ()
    copies: tuple[Copy, ...] = ()
    customize: Path | None = None
    content: str = ""


BASE = Recipe(BASE_NAME)


def find(code_dir: Path, name: str) -> Recipe:
    """Return the recipe `name`; raises InvalidArgument, which says what there is, and BuildFailed for a broken one."""
    if name == BASE_NAME:
        return BASE
    folder = code_dir / "images" / name
    if not is_template_name(name) or not (folder / "recipe.toml").is_file():
        there = ", ".join(names(code_dir))
        raise InvalidArgument(f"There is no recipe {name[:80]!r}; there are: {there}.")
    try:
        return _read(folder)
    except (OSError, ValueError) as error:
        raise BuildFailed(f"The recipe {name} in {folder} cannot be read: {error}") from error


def named_by(code_dir: Path, template: str) -> Recipe:
    """Return the recipe a template is built by where none is asked for: the one of its name, else `base`.

    Raises InvalidArgument for a name that is a recipe's but for a typing error.
    """
    there = names(code_dir)
    near = difflib.get_close_matches(template, there, n=1, cutoff=0.8)
    if near and template not in there:
        raise InvalidArgument(
            f"There is no recipe {template[:80]!r}; did you mean {near[0]}? To build base under this name, ask for the "
            "recipe base."
        )
    return find(code_dir, template if template in names(code_dir) else BASE_NAME)


def names(code_dir: Path) -> list[str]:
    """Return the recipes there are."""
    return [BASE_NAME, *sorted(path.parent.name for path in code_dir.glob("images/*/recipe.toml"))]


def _read(folder: Path) -> Recipe:
    file = _File.model_validate(tomllib.loads((folder / "recipe.toml").read_text()))
    venvs = tuple(one.model_copy(update={"requirements": _inside(folder, one.requirements)}) for one in file.venv)
    copies = tuple(one.model_copy(update={"source": _inside(folder, one.source)}) for one in file.copy_)
    script = _inside(folder, file.customize.script) if file.customize else None
    return Recipe(
        name=folder.name,
        packages=tuple(file.packages),
        room_mib=file.room_mib,
        venvs=venvs,
        copies=copies,
        customize=script,
        content=_content(folder),
    )


def _inside(folder: Path, path: Path) -> Path:
    found = folder / path
    if not found.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{path} is outside of the recipe's folder")
    if not found.exists():
        raise FileNotFoundError(f"there is no {path}")
    return found


def _content(folder: Path) -> str:
    """Return the SHA-256 over the names, modes and contents of all files of a recipe."""
    total = hashlib.sha256()
    for path in files_in(folder):
        mode = "x" if path.stat().st_mode & 0o100 else "-"
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        total.update(json.dumps([str(path.relative_to(folder)), mode, digest]).encode())
    return total.hexdigest()


def files_in(folder: Path) -> list[Path]:
    """Return the files of a folder, in order, without what Python leaves beside them."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)

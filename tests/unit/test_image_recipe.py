"""Recipes of templates: what can be read, and what decides whether a kept root filesystem is still the right one."""

import shutil
from pathlib import Path

import pytest

from space.image import recipe, rootfs
from space.model.errors import BuildFailed, InvalidArgument
from space.model.template import RECIPES, how_to_get

ROOT = Path(__file__).parents[2]
NAME = "code-interpreter-v1"


def _checkout(folder: Path) -> Path:
    shutil.copytree(ROOT / "images", folder / "images", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def test_what_there_is() -> None:
    assert recipe.names(ROOT) == list(RECIPES)
    assert recipe.find(ROOT, "base") is recipe.BASE
    found = recipe.find(ROOT, NAME)
    assert "python3-venv" in found.packages
    assert [venv.path for venv in found.venvs] == ["/usr/local", "/opt/code-interpreter"]


def test_who_names_a_template_before_it_is_built_is_told_how() -> None:
    assert how_to_get(NAME) == f"Build it with `space template build {NAME}`: it takes some minutes, once."
    assert "space template ls" in how_to_get("mine")


def test_a_template_is_built_by_the_recipe_of_its_name_else_by_base() -> None:
    assert recipe.named_by(ROOT, NAME).name == NAME
    assert recipe.named_by(ROOT, "mine").name == "base"
    with pytest.raises(InvalidArgument, match=f"did you mean {NAME}"):
        recipe.named_by(ROOT, NAME.replace("interpreter", "interpeter"))


@pytest.mark.parametrize("name", ["mine", "../images", "", "/etc"])
def test_an_unknown_recipe_is_refused_and_what_there_is_told(name: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"there are: base, {NAME}\."):
        recipe.find(ROOT, name)


def test_each_wheel_is_pinned_with_its_digest() -> None:
    for venv in recipe.find(ROOT, NAME).venvs:
        pins = [line for line in venv.requirements.read_text().splitlines() if not line.startswith("#")]
        assert pins
        assert all("==" in pin and " --hash=sha256:" in pin for pin in pins)


def test_any_change_of_a_recipe_makes_another_root_filesystem(tmp_path: Path) -> None:
    code = _checkout(tmp_path)
    keys = {rootfs.recipe_key(recipe.BASE), rootfs.recipe_key(recipe.find(code, NAME))}
    hook = code / "images" / NAME / "root/etc/space/hooks/ready"
    hook.write_text(hook.read_text() + "\n")
    keys.add(rootfs.recipe_key(recipe.find(code, NAME)))
    hook.chmod(0o644)
    keys.add(rootfs.recipe_key(recipe.find(code, NAME)))
    assert len(keys) == 4
    (hook.parent / "__pycache__").mkdir()
    (hook.parent / "__pycache__" / "x.pyc").touch()
    assert rootfs.recipe_key(recipe.find(code, NAME)) in keys, "what Python leaves is no change"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("packages = 5", "packages"),
        ("pakages = []", "pakages"),
        ('[customize]\nscript = "../../secret"', "outside"),
        ('[customize]\nscript = "missing.sh"', "missing.sh"),
        ("packages = [", "recipe.toml|Invalid|TOML|Unclosed"),
    ],
)
def test_a_broken_recipe_is_told(tmp_path: Path, text: str, says: str) -> None:
    folder = tmp_path / "images" / "broken"
    folder.mkdir(parents=True)
    (tmp_path / "secret").touch()
    (folder / "recipe.toml").write_text(text)
    with pytest.raises(BuildFailed, match=f"(?s){says}"):
        recipe.find(tmp_path, "broken")

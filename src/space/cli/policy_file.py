"""Policies as the commands take them: YAML, of which JSON is a part, from a file or standard input; or a preset."""

import sys
from collections.abc import Hashable
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from space.model.errors import InvalidArgument, InvalidPolicy
from space.model.policy_document import parse
from space.model.policy_presets import PRESETS

Document = dict[str, object]
MAX_BYTES = 1024 * 1024

_PRESET = f"Start from one of {', '.join(PRESETS)}; alone, or under the file's own rules."
PolicyFile = Annotated[
    str | None, typer.Option("--policy", "-p", metavar="FILE", help="A policy as YAML or JSON; - is standard input.")
]
Preset = Annotated[str | None, typer.Option(metavar="NAME", help=_PRESET)]


class _Strict(yaml.SafeLoader):
    """Refuses a key that is there twice: of two rules with one name, one would be lost without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Return a mapping; raises for a repeated key."""
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is there twice", node.start_mark)
        return super().construct_mapping(node, deep)


def read_policy(source: str) -> Document:
    """Return the policy in a file, `-` for standard input; raises InvalidArgument and InvalidPolicy."""
    document = load(sys.stdin.read(MAX_BYTES + 1) if source == "-" else _text(Path(source)), source)
    try:
        parse(document)
    except InvalidPolicy as error:
        raise InvalidPolicy(f"{source}: {error}") from error
    return document


def load(text: str, source: str) -> Document:
    """Return the document in a text, not yet read as a policy."""
    if len(text) > MAX_BYTES:
        raise InvalidArgument(f"{source} is over {MAX_BYTES} bytes.")
    try:
        found = yaml.load(text, _Strict)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        raise InvalidArgument(f"{source} is neither YAML nor JSON: {error}") from error
    if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
        raise InvalidArgument(f"{source} must hold an object, like {{allow: [{{host: example.com}}]}}.")
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise InvalidArgument(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"{path} is no text.") from error


def chosen(file: str | None, preset: str | None) -> Document | None:
    """Return the policy of both options together; None where neither is given. Raises InvalidPolicy."""
    if file is None and preset is None:
        return None
    document = {} if file is None else read_policy(file)
    if preset is not None:
        document = {**document, "preset": preset}
        parse(document)
    return document

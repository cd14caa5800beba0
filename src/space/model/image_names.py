"""Names of images for containers, and which of them stand for templates of ours.

A name is `[registry/]path[:tag][@digest]`. An operator maps some to templates, so that what says `FROM ubuntu:22.04`
can be built where no registry is reached: `ubuntu:*=base` lets every tag of `ubuntu` stand for the template `base`.
"""

import dataclasses
import fnmatch
import re
from collections.abc import Sequence

from space.model.errors import InvalidArgument

_REGISTRY = r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?(?::[0-9]{1,5})?)"
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_NAME = re.compile(
    rf"(?:(?P<registry>{_REGISTRY})/)??(?P<path>{_PART}(?:/{_PART})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?P<digest>@sha256:[0-9a-f]{64})?"
)
MAX_NAME = 512
BUILT_IN = ("e2bdev/base*=base",)
"""What E2B's clients build on unless told otherwise."""


@dataclasses.dataclass(frozen=True, slots=True)
class ImageName:
    """The parts of an image's name. `registry` None: the one that is meant where none is named."""

    registry: str | None
    path: str
    tag: str
    digest: str | None

    def __str__(self) -> str:
        """Return the full name."""
        begin = f"{self.registry}/{self.path}" if self.registry else self.path
        return f"{begin}{self.digest}" if self.digest else f"{begin}:{self.tag}"


def read_image_name(text: str) -> ImageName:
    """Return the parts of a name; raises InvalidArgument. The rules are those of the OCI distribution specification."""
    found = _NAME.fullmatch(text) if len(text) <= MAX_NAME else None
    if found is None:
        raise InvalidArgument(
            f"{text[:100]!r} is no name of an image, such as debian:12 or registry.example/team/app:1."
        )
    registry, path = found["registry"], found["path"]
    if registry is None and "/" in path:
        first, _, rest = path.partition("/")
        if "." in first or first == "localhost":  # a host, not a team
            registry, path = first, rest
    elif registry is not None and "." not in registry and ":" not in registry and registry != "localhost":
        registry, path = None, f"{registry}/{path}"
    return ImageName(registry, path, found["tag"] or "latest", found["digest"])


@dataclasses.dataclass(frozen=True, slots=True)
class ImageMap:
    """Which images stand for templates: (pattern, template), the first that fits decides."""

    entries: tuple[tuple[str, str], ...]

    def template_of(self, image: str) -> str | None:
        """Return the template that an image stands for; None: it is an image."""
        name = str(read_image_name(image))
        return next((template for pattern, template in self.entries if fnmatch.fnmatchcase(name, pattern)), None)


def read_image_map(entries: Sequence[str]) -> ImageMap:
    """Return a map of `pattern=template` entries, what is built in last; raises InvalidArgument."""
    found = []
    for entry in (*entries, *BUILT_IN):
        pattern, equals, template = entry.rpartition("=")
        if not equals or not pattern or not template:
            raise InvalidArgument(
                f"{entry[:100]!r} does not map images to a template; write for example ubuntu:*=base."
            )
        found.append((pattern, template))
    return ImageMap(tuple(found))

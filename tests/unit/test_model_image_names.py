"""Names of images, those that stand for templates, and names of templates with their tags."""

import pytest

from space.model.errors import InvalidArgument
from space.model.image_names import read_image_map, read_image_name
from space.model.template_build import read_reference


@pytest.mark.parametrize(
    ("text", "registry", "path", "tag"),
    [
        ("debian", None, "debian", "latest"),
        ("debian:12", None, "debian", "12"),
        ("team/app:1.2-x", None, "team/app", "1.2-x"),
        ("registry.example/app", "registry.example", "app", "latest"),
        ("registry.example:5000/team/app:1", "registry.example:5000", "team/app", "1"),
        ("localhost/app", "localhost", "app", "latest"),
        ("127.0.0.1:5000/app:x", "127.0.0.1:5000", "app", "x"),
    ],
)
def test_names_have_parts(text: str, registry: str | None, path: str, tag: str) -> None:
    found = read_image_name(text)
    assert (found.registry, found.path, found.tag) == (registry, path, tag)


def test_a_digest_goes_before_a_tag() -> None:
    digest = "@sha256:" + "a" * 64
    assert str(read_image_name(f"registry.example/app:1{digest}")) == f"registry.example/app{digest}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "App",
        "a b",
        "-a",
        "a/",
        "/a",
        "a:",
        "a@sha256:12",
        "a//b",
        "a\n",
        "--help",
        "registry.example:99999x/a",
        "x" * 600,
    ],
)
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        read_image_name(text)


def test_images_stand_for_templates() -> None:
    images = read_image_map(["ubuntu:*=base", "registry.example/team/*=ours:v1"])
    for image, template in {
        "ubuntu": "base",
        "ubuntu:22.04": "base",
        "registry.example/team/app:1": "ours:v1",
        "e2bdev/base:latest": "base",
        "e2bdev/base": "base",
        "debian:12": None,
        "team/ubuntu:1": None,
    }.items():
        assert images.template_of(image) == template, image
    assert read_image_map(["e2bdev/base*=mine"]).template_of("e2bdev/base") == "mine", "the operator's word goes first"
    for entry in ("ubuntu", "=base", "ubuntu="):
        with pytest.raises(InvalidArgument):
            read_image_map([entry])


def test_references_to_templates() -> None:
    assert read_reference("a") == ("a", None)
    assert read_reference("a:v1.0") == ("a", "v1.0")
    assert read_reference("team/a:x") == ("a", "x")
    for text in ("", "A", "a:", "a:B", "a:b c", ":x", "a:b:c", "a/"):
        with pytest.raises(InvalidArgument):
            read_reference(text)

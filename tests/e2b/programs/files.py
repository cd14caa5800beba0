"""Files and folders: writing, reading, listing, moving, links for others, and what goes wrong."""

import io
import os
import urllib.error
import urllib.request

from e2b import FileType, InvalidArgumentException, NotFoundException, Sandbox


def fetch(url: str, data: bytes | None = None, kind: str = "") -> tuple[int, bytes]:
    """Ask as a stranger does, who has the link and nothing else."""
    request = urllib.request.Request(url, data=data, headers={"content-type": kind} if kind else {})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


with Sandbox.create(timeout=120) as sandbox:
    files = sandbox.files
    # written and read back, with folders made on the way
    made = files.write("notes/today/a b.txt", "hello")
    assert (made.name, made.path) == ("a b.txt", "/home/user/notes/today/a b.txt"), made
    assert files.read("notes/today/a b.txt") == "hello"
    info = files.get_info("notes/today/a b.txt")
    assert (info.type, info.size, info.mode, info.permissions) == (FileType.FILE, 5, 0o644, "-rw-r--r--"), info
    assert (info.owner, info.group, info.symlink_target) == ("user", "user", None), info
    binary = os.urandom(3 << 20)
    files.write("/tmp/binary", binary)
    assert files.read("/tmp/binary", format="bytes") == binary
    assert b"".join(files.read("/tmp/binary", format="stream")) == binary
    files.write("/tmp/binary", "")
    assert files.read("/tmp/binary") == ""
    several = files.write_files(
        [
            {"path": "several/1", "data": "one"},
            {"path": "several/2", "data": b"two"},
            {"path": "several/3", "data": io.BytesIO(b"three")},
        ]
    )
    assert [entry.name for entry in several] == ["1", "2", "3"]
    assert [files.read(f"several/{n}") for n in (1, 2, 3)] == ["one", "two", "three"]
    files.write("/root/of-root", "secret", user="root")
    assert files.get_info("/root/of-root").owner == "root"

    # folders
    assert files.make_dir("folder/inner") is True
    assert files.make_dir("folder/inner") is False
    files.write("folder/inner/deep.txt", "x")
    files.write("folder/z.txt", "x")
    assert [entry.path for entry in files.list("folder", depth=2)] == [
        "/home/user/folder/inner", "/home/user/folder/inner/deep.txt", "/home/user/folder/z.txt",
    ]  # fmt: skip
    assert [(entry.name, entry.type) for entry in files.list("folder")] == [
        ("inner", FileType.DIR), ("z.txt", FileType.FILE),
    ]  # fmt: skip
    sandbox.commands.run("ln -s folder/z.txt link")
    link = files.get_info("link")
    assert link.symlink_target == "/home/user/folder/z.txt", link
    assert files.rename("folder/z.txt", "elsewhere/y.txt").path == "/home/user/elsewhere/y.txt"
    assert files.exists("elsewhere/y.txt")
    assert not files.exists("folder/z.txt")
    files.remove("folder")
    assert not files.exists("folder")

    # what goes wrong
    for call, kind in (
        (lambda: files.read("nowhere"), NotFoundException),
        (lambda: files.list("nowhere"), NotFoundException),
        (lambda: files.get_info("nowhere"), NotFoundException),
        (lambda: files.rename("nowhere", "there"), NotFoundException),
        (lambda: files.read("/tmp"), InvalidArgumentException),
        (lambda: files.list("/etc/passwd"), InvalidArgumentException),
        (lambda: files.make_dir("/etc/passwd"), InvalidArgumentException),
    ):
        try:
            call()
        except kind:
            pass
        else:
            raise AssertionError(kind)

    # links, for whoever has them
    files.write("shared.txt", "for you")
    assert fetch(sandbox.download_url("shared.txt")) == (200, b"for you")
    assert fetch(sandbox.download_url("shared.txt", use_signature_expiration=100)) == (200, b"for you")
    expired = fetch(sandbox.download_url("shared.txt", use_signature_expiration=-100))
    assert expired == (401, b'{"code":401,"message":"signature is already expired"}'), expired
    status, _ = fetch(sandbox.upload_url("uploaded.txt"), b"from a stranger", "application/octet-stream")
    assert status == 200
    assert files.read("uploaded.txt") == "from a stranger"
    status, _ = fetch(sandbox.download_url("shared.txt").replace("shared.txt", "uploaded.txt"))
    assert status in {401, 404}, status

"""Watching folders: each change is told once, in order, and at once."""

from e2b import FilesystemEventType, InvalidArgumentException, NotFoundException, Sandbox, SandboxException

CREATE, CHMOD, WRITE = FilesystemEventType.CREATE, FilesystemEventType.CHMOD, FilesystemEventType.WRITE
RENAME, REMOVE = FilesystemEventType.RENAME, FilesystemEventType.REMOVE

with Sandbox.create(timeout=120) as sandbox:
    files = sandbox.files
    files.make_dir("watched/inner")
    watcher = files.watch_dir("watched")

    def seen() -> list[tuple[str, FilesystemEventType]]:
        """Return what has happened since it was asked last."""
        return [(event.name, event.type) for event in watcher.get_new_events()]

    files.write("watched/a.txt", "x")
    assert seen() == [("a.txt", CREATE), ("a.txt", CHMOD), ("a.txt", WRITE)]
    files.write("watched/a.txt", "y")
    assert seen()[-1] == ("a.txt", WRITE)
    sandbox.commands.run("echo more >> watched/a.txt; chmod 600 watched/a.txt")
    assert seen() == [("a.txt", WRITE), ("a.txt", CHMOD)]
    files.rename("watched/a.txt", "watched/b.txt")
    assert seen() == [("a.txt", RENAME), ("b.txt", CREATE)]
    files.remove("watched/b.txt")
    assert seen() == [("b.txt", REMOVE)]
    files.write("watched/inner/unseen.txt", "x")
    assert seen() == []
    watcher.stop()
    try:
        watcher.get_new_events()
    except SandboxException as error:
        assert "already stopped" in str(error) or "not found" in str(error), error
    else:
        raise AssertionError("it still watches")

    # a tree, as it grows
    watcher = files.watch_dir("watched", recursive=True)
    files.write("watched/inner/a.txt", "x")
    assert seen() == [("inner/a.txt", CREATE), ("inner/a.txt", CHMOD), ("inner/a.txt", WRITE)]
    files.make_dir("watched/new/deep")
    files.write("watched/new/deep/b.txt", "x")
    events = seen()
    assert events[0] == ("new", CREATE), events
    assert events[-3:] == [("new/deep/b.txt", CREATE), ("new/deep/b.txt", CHMOD), ("new/deep/b.txt", WRITE)], events
    assert events.count(("new/deep", CREATE)) == 1, events
    sandbox.commands.run("mv watched/new watched/moved; echo x > watched/moved/deep/c.txt; rm -r watched/moved")
    events = seen()
    assert events[:2] == [("new", RENAME), ("moved", CREATE)], events
    assert ("moved/deep/c.txt", WRITE) in events, events
    assert events[-1] == ("moved", REMOVE), events
    watcher.stop()

    for path, kind in (("nowhere", NotFoundException), ("/etc/passwd", InvalidArgumentException)):
        try:
            files.watch_dir(path)
        except kind:
            pass
        else:
            raise AssertionError(path)

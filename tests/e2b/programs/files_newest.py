# sdk: newest
"""What newer SDKs can do with files: notes on them, compression, and links told from what they lead to."""

from e2b import FileType, Sandbox

with Sandbox.create(timeout=120) as sandbox:
    files = sandbox.files
    made = files.write("noted.txt", "x", metadata={"Author": "me", "purpose": "a test"})
    assert made.metadata == {"author": "me", "purpose": "a test"}, made
    assert files.get_info("noted.txt").metadata == {"author": "me", "purpose": "a test"}
    assert files.list(".")[0].path.startswith("/home/user/")
    files.write("noted.txt", "y")
    assert not files.get_info("noted.txt").metadata

    text = "long and dull " * 100_000
    files.write("packed.txt", text, gzip=True)
    assert files.read("packed.txt", gzip=True) == text
    assert files.get_info("packed.txt").size == len(text)
    files.write("plain.bin", b"\0\1", use_octet_stream=True)
    assert files.read("plain.bin", format="bytes") == b"\0\1"

    sandbox.commands.run("ln -s packed.txt link")
    assert files.get_info("link").type is FileType.SYMLINK

    watcher = files.watch_dir(".", include_entry=True)
    files.write("seen.txt", "x")
    events = watcher.get_new_events()
    assert [event.entry.path for event in events] == ["/home/user/seen.txt"] * 3, events
    watcher.stop()

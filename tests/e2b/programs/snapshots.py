"""Snapshots: what is in them, sandboxes that start from them, lists, names, and their end."""

import uuid

from e2b import Sandbox

name = f"snap-{uuid.uuid4().hex[:12]}"
sandbox = Sandbox.create("base", timeout=180)
sandbox.files.write("/home/user/state.txt", "before")
snapshot = sandbox.create_snapshot()
sandbox.files.write("/home/user/state.txt", "after")

copy = Sandbox.create(snapshot.snapshot_id, timeout=120)
assert copy.files.read("/home/user/state.txt") == "before"
copy.files.write("/home/user/state.txt", "its own")
assert sandbox.files.read("/home/user/state.txt") == "after"
copy.kill()

named = sandbox.create_snapshot(name=name)
assert any(name in one for one in named.names)
listed = [one.snapshot_id for one in Sandbox.list_snapshots(sandbox_id=sandbox.sandbox_id).next_items()]
assert listed == [named.snapshot_id, snapshot.snapshot_id], listed
sandbox.kill()
for one in (snapshot, named):
    assert Sandbox.delete_snapshot(one.snapshot_id)
    assert not Sandbox.delete_snapshot(one.snapshot_id)

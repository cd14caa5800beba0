"""Lists: by pages, newest first, of one state, by metadata with characters that have to be encoded."""

import uuid

from e2b import Sandbox, SandboxQuery, SandboxState

mark = str(uuid.uuid4())
odd = {"mark": mark, "a b": "c&d=e/ü%20+"}
first = Sandbox.create("base", timeout=120, metadata={"mark": mark})
second = Sandbox.create("base", timeout=120, metadata=odd)
ids = [second.sandbox_id, first.sandbox_id]


def listed(limit: int = 100, **query: object) -> list:
    pages = Sandbox.list(query=SandboxQuery(**query), limit=limit)
    found = []
    while pages.has_next:
        page = pages.next_items()
        assert len(page) <= limit
        found += page
    return [one.sandbox_id for one in found]


try:
    assert listed(metadata={"mark": mark}) == ids
    assert listed(limit=1, metadata={"mark": mark}) == ids
    assert listed(metadata=odd) == [second.sandbox_id]
    assert listed(metadata={"mark": mark, "no": "such"}) == []
    assert set(ids) <= set(listed())
    assert first.pause()
    assert listed(metadata={"mark": mark}, state=[SandboxState.RUNNING]) == [second.sandbox_id]
    assert listed(metadata={"mark": mark}, state=[SandboxState.PAUSED]) == [first.sandbox_id]
    assert listed(limit=1, metadata={"mark": mark}, state=[SandboxState.PAUSED, SandboxState.RUNNING]) == ids
finally:
    first.kill()
    second.kill()

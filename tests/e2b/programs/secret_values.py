# sdk: newest
"""Secrets: values go in, versions count, and a value is never shown."""

import uuid

from e2b.exceptions import SecretNotFoundException

from e2b import Secret

name = f"api-key-{uuid.uuid4().hex[:8]}"
made = Secret.create(name, "s3cret", metadata={"env": "test"})
assert (made.name, made.version, made.metadata) == (name, 1, {"env": "test"})
assert Secret.update(made.secret_id, "next").version == 2
assert Secret.get_info(name).secret_id == Secret.get_info(made.secret_id).secret_id == made.secret_id
assert Secret.exists(name)
pages = Secret.list(limit=1)
names = []
while pages.has_next:
    names += [one.name for one in pages.next_items()]
assert name in names
assert Secret.destroy(made.secret_id)
assert not Secret.destroy(made.secret_id)
assert not Secret.exists(name)
try:
    Secret.update(name, "late")
except SecretNotFoundException:
    pass
else:
    raise AssertionError("an update of what is gone")

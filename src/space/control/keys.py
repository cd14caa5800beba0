"""Use cases on API keys. A key's text is given out once, when it is made; only its hash is kept."""

import datetime
import re
from collections.abc import Iterable

from space.model.errors import InvalidArgument, NotFound, Unauthorized
from space.model.ids import KeyId, ProjectId, hash_api_key, is_api_key, new_api_key
from space.model.key import ApiKey
from space.store import keys, projects
from space.store.db import Database

DEFAULT_PROJECT = "default"
MAX_LABEL = 100
LABEL = r"^[^\x00-\x1f\x7f-\x9f]+$"
"""Pattern of a label: anything but control characters."""
WHERE = "On SPACE's host the first key is in <data folder>/api-key; `space key create` makes more."
_TOUCH_AFTER = datetime.timedelta(minutes=1)


async def create(db: Database, project: ProjectId, label: str) -> tuple[ApiKey, str]:
    """Make a key; returns its record and its text, which cannot be had again."""
    if len(label) > MAX_LABEL or not re.fullmatch(LABEL, label):
        raise InvalidArgument(f"label must be 1 to {MAX_LABEL} characters, none of them a control character.")
    text = new_api_key()
    return await keys.insert(db, project, hash_api_key(text), label), text


async def listed(db: Database, project: ProjectId) -> list[ApiKey]:
    """Return a project's keys, revoked ones too."""
    return await keys.listed(db, project)


async def revoke(db: Database, project: ProjectId, key: KeyId) -> None:
    """End a key; every process refuses it within a second. Raises NotFound."""
    if await keys.revoke(db, project, key) is None:
        raise NotFound(f"There is no API key {key}.")


async def authenticate(db: Database, text: str) -> ApiKey:
    """Return the key with this text, and note that it was used; raises Unauthorized."""
    found = await still_valid(db, [text]) if is_api_key(text) else {}
    if text not in found:
        raise Unauthorized(f"This API key is not valid, or was revoked. Keys look like e2b_<40 hex digits>. {WHERE}")
    return found[text]


async def still_valid(db: Database, texts: Iterable[str]) -> dict[str, ApiKey]:
    """Return those of these keys, by their texts, that are valid now; all of them were used lately, which is noted."""
    by_hash = {hash_api_key(text): text for text in texts}
    found = await keys.by_hashes(db, by_hash)
    now = datetime.datetime.now(datetime.UTC)
    for key in found.values():
        if key.last_used_at is None or now - key.last_used_at > _TOUCH_AFTER:
            await keys.touch(db, key.id)
    return {by_hash[key_hash]: key for key_hash, key in found.items()}


async def ensure_first_key(db: Database, present: str) -> str:
    """Return a key that works: `present` if it does, else a new one of the default project."""
    if is_api_key(present) and await keys.by_hashes(db, [hash_api_key(present)]):
        return present
    project = await projects.ensure(db, DEFAULT_PROJECT)
    _, text = await create(db, project, "space up")
    return text

"""An API key, as far as it is known again."""

import dataclasses
import datetime

from space.model.ids import KeyId, ProjectId


@dataclasses.dataclass(frozen=True, slots=True)
class ApiKey:
    """A key as far as it is ever shown again: never its text. Times are None for "not yet"."""

    id: KeyId
    project: ProjectId
    label: str
    created_at: datetime.datetime
    last_used_at: datetime.datetime | None
    revoked_at: datetime.datetime | None

"""What the `/v1` surface reads and writes about egress and secrets."""

import datetime

import pydantic
from pydantic.config import JsonDict

from space.api.policy_schema import POLICY
from space.model.egress import Document, EgressRecord, SandboxEgress
from space.model.policy_bindings import NAME_PATTERN
from space.model.secret import MAX_VALUE, VALUE, Secret

Rules = dict[str, object]


def _policy_schema(schema: JsonDict) -> None:
    schema.clear()
    schema.update(POLICY)


class PolicyDocument(pydantic.RootModel[Rules]):
    """An egress policy; docs/howto/egress.md says how one is written."""

    model_config = pydantic.ConfigDict(json_schema_extra=_policy_schema)
    root: Rules = pydantic.Field(min_length=1)


class SandboxPolicy(pydantic.BaseModel):
    """What may leave a sandbox: `policy`, and no more than the project's `ceiling` allows, if there is one.

    `generation` rises with each change. `applied`: its gateway is known to decide by this one; false also while it is
    suspended, when it gets the newest as it is restored.
    """

    policy: Rules
    ceiling: Rules | None
    generation: int
    applied: bool
    secrets: list[str]

    @classmethod
    def of(cls, egress: SandboxEgress) -> "SandboxPolicy":
        """Return the public form."""
        return cls(
            policy=dict(egress.document),
            ceiling=None if egress.ceiling is None else dict(egress.ceiling),
            generation=egress.generations.policy,
            applied=egress.applied == egress.generations,
            secrets=list(egress.secrets),
        )


class ProjectPolicy(pydantic.BaseModel):
    """What no sandbox of the project exceeds; null: there is no such bound."""

    ceiling: Rules | None

    @classmethod
    def of(cls, ceiling: Document | None) -> "ProjectPolicy":
        """Return the public form."""
        return cls(ceiling=None if ceiling is None else dict(ceiling))


class PutSecret(pydantic.BaseModel):
    """A secret's first or next value. It cannot be read again."""

    model_config = pydantic.ConfigDict(extra="forbid")

    name: str = pydantic.Field(pattern=f"^{NAME_PATTERN}$", description="What policies call it: ${secrets.NAME}.")
    value: pydantic.SecretStr = pydantic.Field(
        min_length=1, max_length=MAX_VALUE, json_schema_extra={"pattern": VALUE}, description="One line."
    )


class SecretModel(pydantic.BaseModel):
    """A secret without its value. `version` counts the values it has had."""

    name: str
    version: int
    created_at: datetime.datetime
    updated_at: datetime.datetime

    @classmethod
    def of(cls, secret: Secret) -> "SecretModel":
        """Return the public form."""
        return cls(**{name: getattr(secret, name) for name in cls.model_fields})


class SecretList(pydantic.BaseModel):
    """The project's secrets by name."""

    secrets: list[SecretModel]


class HeldRequest(pydantic.BaseModel):
    """A request that waits for an answer until `until`; then it is refused."""

    id: int
    at: datetime.datetime
    until: datetime.datetime
    protocol: str
    host: str
    port: int
    method: str
    path: str


class HeldList(pydantic.BaseModel):
    """Requests that wait, oldest first."""

    asks: list[HeldRequest]


class Answer(pydantic.BaseModel):
    """Whether a held request may go, this once."""

    model_config = pydantic.ConfigDict(extra="forbid")

    allow: pydantic.StrictBool


def line_of(record: EgressRecord) -> dict[str, object]:
    """Return a stored event as a line of the stream; `number` is what to ask `after`."""
    return {"number": record.number} | dict(record.event)

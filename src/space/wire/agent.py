"""What is said to the agent in a guest on its internal port: who it is now, and that it is there."""

import pydantic


class AgentInit(pydantic.BaseModel):
    """Told after every boot, before user code can run: identity, clock, fresh entropy, environment, token."""

    sandbox_id: str
    hostname: str
    env: dict[str, str]
    access_token: str = pydantic.Field(repr=False)
    time_unix_ns: int
    entropy: str
    """Base64 of at least 32 random bytes."""


class AgentReady(pydantic.BaseModel):
    """The agent's answer."""

    version: str
    boot_id: str

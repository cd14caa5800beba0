"""Reads the body of a request while it comes in, bounded."""

from fastapi import Request

from space.model.errors import TooLarge

MAX_BYTES = 1024 * 1024
DRAIN_BYTES = 256 * 1024 * 1024
"""How much of a body that is too large is read past. Most clients send all before they read; they would see a broken
connection in place of the answer."""


async def read_bytes(request: Request) -> bytes:
    """Return the body; raises TooLarge where it is over MAX_BYTES, of which no more is kept."""
    body = bytearray()
    dropped = 0
    async for chunk in request.stream():
        if len(body) + len(chunk) <= MAX_BYTES and not dropped:
            body += chunk
        else:
            dropped += len(chunk)
        if dropped > DRAIN_BYTES:
            break
    if dropped:
        raise TooLarge(f"The request body is over {MAX_BYTES} bytes.")
    return bytes(body)

"""What a client hears whose request names a sandbox the way E2B's clients do, where it cannot be passed on.

Those clients tell what happened by the status and the words of `message`, so both are E2B's. A browser that navigates
gets a page with the same words. Any page of the web may read them (CORS): a server in the sandbox would decide that,
but there is none to ask.
"""

import html
import json

NOT_FOUND = "The sandbox was not found"
PORT_CLOSED = "The sandbox is running but port is not open"
TRANSITIONING = "The sandbox is still transitioning. Try again in a moment."
TOO_MANY = "The sandbox has too many concurrent incoming connections (limit: {limit})"
MISSING = "Sandbox is secured with traffic access token. Token header '{header}' is missing"
INVALID = "Sandbox is secured with traffic access token. Provided token in header '{header}' is invalid"

JSON = "application/json; charset=utf-8"
PAGE = "text/html; charset=utf-8"

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="robots" content="noindex">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 36rem; margin: 20vh auto; padding: 0 1rem; color: #222 }}
h1 {{ font-size: 1.3rem }}
code {{ background: #eee; padding: 0 .3em }}
@media (prefers-color-scheme: dark) {{ body {{ background: #111; color: #ddd }} code {{ background: #333 }} }}
</style>
<h1>{title}</h1>
<p>{text}</p>
</html>
"""


class Refusal(Exception):
    """Such an answer. `extra` are fields that some of them have; `retry_after_s` becomes `Retry-After`."""

    def __init__(
        self, status: int, sandbox: str, message: str, *, retry_after_s: int | None = None, **extra: int
    ) -> None:
        super().__init__(message)
        self.status, self.sandbox, self.message = status, sandbox, message
        self.retry_after_s, self.extra = retry_after_s, extra

    def headers(self, *, navigating: bool) -> dict[str, str]:
        """Return the answer's headers, for a browser that navigates or for anybody else."""
        found = {
            "content-type": PAGE if navigating else JSON,
            "access-control-allow-origin": "*",
            "cache-control": "no-store",
        }
        return found if self.retry_after_s is None else found | {"retry-after": str(self.retry_after_s)}

    def body(self, *, navigating: bool) -> str:
        """Return the answer's body."""
        if navigating:
            port = self.extra.get("port")
            return page(self.message, self.sandbox, None if port is None else str(port))
        return json.dumps({"sandboxId": self.sandbox, "message": self.message, **self.extra, "code": self.status})


def page(message: str, sandbox: str, port: str | None = None) -> str:
    """Return a page that says it."""
    text = f"Sandbox <code>{html.escape(sandbox)}</code>"
    if port is not None:
        text += f", port <code>{html.escape(port)}</code>"
    return _PAGE.format(title=html.escape(message), text=text + ".")


def navigates(accept: str) -> bool:
    """Tell by its `Accept` whether a request is a browser's for a page to show; a page's own requests are not."""
    return "text/html" in accept.lower()


def not_found(sandbox: str) -> Refusal:
    """Return the answer for a sandbox that is not there, or not running and not to be woken."""
    return Refusal(502, sandbox, NOT_FOUND)


def port_closed(sandbox: str, port: int) -> Refusal:
    """Return the answer for a port that nobody serves."""
    return Refusal(502, sandbox, PORT_CLOSED, port=port)


def transitioning(sandbox: str) -> Refusal:
    """Return the answer for a sandbox that is on its way to another state."""
    return Refusal(409, sandbox, TRANSITIONING, retry_after_s=1)


def token_missing(sandbox: str, header: str) -> Refusal:
    """Return the answer for a request to a private port without the token that `header` should hold."""
    return Refusal(403, sandbox, MISSING.format(header=header))


def token_invalid(sandbox: str, header: str) -> Refusal:
    """Return the answer for a token of something else."""
    return Refusal(403, sandbox, INVALID.format(header=header))

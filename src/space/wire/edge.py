"""What the edge and the api say to each other: the edge's question about a request, in headers over HTTP.

The edge asks `PREFIX` and the client's path, with the client's method and some of its headers. A 200 lets the request
pass, to where the headers of that answer say; no header of these names survives from a client. Another answer is the
client's, body included, with one exception that is Envoy's: a 5xx would count as no answer at all, so those that are
meant for the client travel under a number of 4xx that HTTP does not use.
"""

PREFIX = "/internal/authz"

TO = "x-space-to"
"""`node` for the ingress proxy, `api` for the api itself."""
NODE, API = "node", "api"

SANDBOX = "x-space-sandbox"
PORT = "x-space-port"
"""A port of the guest; absent on requests of SPACE's own surface, which are for the agent."""
HOST = "x-space-host"
"""The Host that the guest sees; absent where it sees the client's."""

TLS = "x-space-tls"
"""`1` where the guest's server at that port speaks TLS itself."""

ORIGIN = "x-space-origin"
"""Whose origin the answer belongs to in a browser, and so what of a guest's headers may reach a client."""
OWN = "own"
"""The port's: its name is its alone."""
SHARED = "shared"
"""The API's, asked by a program: a browser cannot navigate with the headers that name the sandbox."""
STRICT = "strict"
"""The API's, perhaps opened in a browser, or by a client whose key must not be led elsewhere."""

ACCESS_TOKEN = "x-access-token"  # noqa: S105 - a header's name
REMOVE = "x-envoy-auth-headers-to-remove"
"""Headers of the client's that the guest must not see, by commas. Envoy takes them out."""

VERDICT = (TO, SANDBOX, PORT, HOST, TLS, ORIGIN, ACCESS_TOKEN)
"""What the edge takes over from an answer."""

ASKED = (
    "x-api-key", "authorization", ACCESS_TOKEN, "e2b-sandbox-id", "e2b-sandbox-port", "e2b-traffic-access-token",
    "accept", "access-control-request-method", "x-forwarded-for",
)  # fmt: skip
"""The client's headers that the question needs, besides Host."""

CLIENT = ("content-type", "retry-after", "www-authenticate", "access-control-allow-origin", "cache-control")
"""Headers of a refusal that reach the client."""

IN_PLACE_OF = {502: 452, 503: 453, 507: 457}
"""Under which number a 5xx travels that is meant for the client."""

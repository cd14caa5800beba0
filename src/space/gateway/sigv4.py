"""AWS Signature Version 4: a guest's request, signed with whatever keys it has or none, signed anew with the real ones.

The body is not seen here, so its hash is the guest's claim (which AWS checks), or AWS is told that it is not signed.
https://docs.aws.amazon.com/IAM/latest/UserGuide/create-signed-request.html
"""

import datetime as dt
import hashlib
import hmac
import re
from collections.abc import Mapping
from urllib.parse import quote, unquote

from space.model.errors import SpaceError
from space.model.policy import Request
from space.model.policy_bindings import SigV4Binding

_ALGORITHM = "AWS4-HMAC-SHA256"
_EMPTY_HASH = hashlib.sha256(b"").hexdigest()
_UNSIGNED = "UNSIGNED-PAYLOAD"
_HASH = re.compile(r"[0-9a-f]{64}")
_UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
_PRESIGNED = ("x-amz-signature", "x-amz-credential", "x-amz-security-token")
_UNRESERVED = "-_.~"


class UnsignableRequest(SpaceError):
    """The request is signed in a way that cannot be redone without its body or for another key."""

    code, status, title = "unsignable_request", 403, "Request cannot be signed"


def sign(
    binding: SigV4Binding,
    secrets: Mapping[str, str],
    request: Request,
    headers: Mapping[str, list[str]],
    now: dt.datetime | None = None,
) -> dict[str, str]:
    """Return the headers that sign a request; `headers` are the guest's by lower-case name.

    Raises UnsignableRequest for signed chunks and presigned URLs, UnresolvedSecret.
    """
    _, _, query = request.path.partition("?")
    names = {unquote(part.partition("=")[0]).lower() for part in query.split("&")}
    if names.intersection(_PRESIGNED):
        raise UnsignableRequest("A presigned URL carries a signature of other keys; send the plain request.")
    moment = (now or dt.datetime.now(dt.UTC)).strftime("%Y%m%dT%H%M%SZ")
    made = {"x-amz-date": moment}
    payload = _payload_hash(binding, headers)
    if binding.service == "s3" or "x-amz-content-sha256" in headers:
        made["x-amz-content-sha256"] = payload
    if binding.session_token is not None:
        made["x-amz-security-token"] = binding.session_token.render(secrets)
    signed = {"host": _authority(request), **made}
    for name, values in headers.items():
        if (name.startswith("x-amz-") and name != "x-amz-security-token" and name not in made) or (
            name == "content-type"
        ):
            signed[name] = ",".join(" ".join(value.split()) for value in values)
    scope = f"{moment[:8]}/{binding.region}/{binding.service}/aws4_request"
    listed = ";".join(sorted(signed))
    canonical = "\n".join(
        (
            request.method,
            _canonical_path(request.path.partition("?")[0], binding.service),
            _canonical_query(query),
            *(f"{name}:{signed[name]}" for name in sorted(signed)),
            "",
            listed,
            payload,
        )
    )
    text = "\n".join((_ALGORITHM, moment, scope, hashlib.sha256(canonical.encode()).hexdigest()))
    key = f"AWS4{binding.secret_access_key.render(secrets)}".encode()
    for part in (moment[:8], binding.region, binding.service, "aws4_request", text):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    credential = f"{binding.access_key_id.render(secrets)}/{scope}"
    made["authorization"] = f"{_ALGORITHM} Credential={credential}, SignedHeaders={listed}, Signature={key.hex()}"
    return made


def _authority(request: Request) -> str:
    return request.host if request.port == 443 else f"{request.host}:{request.port}"


def _payload_hash(binding: SigV4Binding, headers: Mapping[str, list[str]]) -> str:
    claimed = headers.get("x-amz-content-sha256")
    if claimed is not None:
        if len(claimed) == 1 and (_HASH.fullmatch(claimed[0]) or claimed[0] in (_UNSIGNED, _UNSIGNED_TRAILER)):
            return claimed[0]
        raise UnsignableRequest("The body is signed in chunks; have the client sign it whole or not at all.")
    if headers.get("content-length", ["0"]) == ["0"] and "transfer-encoding" not in headers:
        return _EMPTY_HASH
    if binding.service == "s3":
        return _UNSIGNED
    raise UnsignableRequest("The request has a body and no x-amz-content-sha256, so its body cannot be signed.")


def _canonical_path(path: str, service: str) -> str:
    """Return the path as AWS signs it: S3's encoded once, every other service's twice."""
    once = quote(unquote(path, errors="surrogateescape"), safe="/" + _UNRESERVED, errors="surrogateescape")
    return once if service == "s3" else quote(path, safe="/" + _UNRESERVED)


def _canonical_query(query: str) -> str:
    pairs = sorted(
        (_encoded(name), _encoded(value))
        for name, _, value in (part.partition("=") for part in query.split("&") if part)
    )
    return "&".join(f"{name}={value}" for name, value in pairs)


def _encoded(text: str) -> str:
    return quote(unquote(text, errors="surrogateescape"), safe=_UNRESERVED, errors="surrogateescape")

"""AWS Signature Version 4 against the published example of S3's documentation, and what is refused."""

import datetime as dt

import pytest

from space.gateway.sigv4 import UnsignableRequest, sign
from space.model.policy import Request
from space.model.policy_bindings import SigV4Binding, UnresolvedSecret, template

KEYS = {"ID": "AKIAIOSFODNN7EXAMPLE", "SECRET": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"}
S3 = SigV4Binding(template("${secrets.ID}"), template("${secrets.SECRET}"), None, "s3", "us-east-1")
EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
NOW = dt.datetime(2013, 5, 24, tzinfo=dt.UTC)


def _signature(request: Request, headers: dict[str, list[str]], binding: SigV4Binding = S3) -> str:
    return sign(binding, KEYS, request, headers, NOW)["authorization"].rpartition("Signature=")[2]


def _bucket(path: str, method: str = "GET") -> Request:
    return Request("https", "examplebucket.s3.amazonaws.com", 443, method, path)


@pytest.mark.parametrize(
    ("path", "signature"),
    [
        ("/?lifecycle", "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        ("/?max-keys=2&prefix=J", "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
    ],
)
def test_the_examples_of_the_documentation(path: str, signature: str) -> None:
    """https://docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html"""
    assert _signature(_bucket(path), {"x-amz-content-sha256": [EMPTY]}) == signature


def test_the_guests_signature_plays_no_part() -> None:
    theirs = {
        "authorization": ["AWS4-HMAC-SHA256 Credential=x"], "x-amz-date": ["20200101T000000Z"],
        "x-amz-security-token": ["mine"], "x-amz-content-sha256": [EMPTY],
    }  # fmt: skip
    assert _signature(_bucket("/?lifecycle"), theirs) == _signature(
        _bucket("/?lifecycle"), {"x-amz-content-sha256": [EMPTY]}
    )


def test_bodies() -> None:
    """Case C-21: unsigned where AWS lets it be, the guest's hash where it has one, else no request."""
    put = _bucket("/key", "PUT")
    body = {"content-length": ["5"]}
    assert sign(S3, KEYS, put, body, NOW)["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
    trailer = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
    assert sign(S3, KEYS, put, body | {"x-amz-content-sha256": [trailer]}, NOW)["x-amz-content-sha256"] == trailer
    sts = SigV4Binding(S3.access_key_id, S3.secret_access_key, None, "sts", "us-east-1")
    assert "x-amz-content-sha256" not in sign(sts, KEYS, _bucket("/"), {}, NOW)
    for headers in (
        {"x-amz-content-sha256": ["STREAMING-AWS4-HMAC-SHA256-PAYLOAD"]},
        {"x-amz-content-sha256": ["STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD"]},
        {"x-amz-content-sha256": [EMPTY, EMPTY]},
    ):
        with pytest.raises(UnsignableRequest):
            sign(S3, KEYS, put, headers, NOW)
    with pytest.raises(UnsignableRequest):
        sign(sts, KEYS, put, body, NOW)


def test_presigned_urls_are_refused() -> None:
    for query in ("X-Amz-Signature=0", "x%2damz-credential=0", "a=b&X-AMZ-SECURITY-TOKEN=0"):
        with pytest.raises(UnsignableRequest):
            sign(S3, KEYS, _bucket(f"/key?{query}"), {}, NOW)


def test_a_missing_secret_is_named_and_not_shown() -> None:
    with pytest.raises(UnresolvedSecret, match="SECRET"):
        sign(S3, {"ID": "AKIA-SHOWN"}, _bucket("/"), {}, NOW)

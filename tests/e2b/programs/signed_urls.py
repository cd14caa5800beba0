"""Signed URLs: they name no sandbox where all have one address, and lead to the one whose token signed them."""

import httpx

from e2b import Sandbox


def main() -> None:
    """Read and write through them, then change each part."""
    sandbox = Sandbox.create("base", timeout=120)
    other = Sandbox.create("base", timeout=120)
    for one in (sandbox, other):
        one.files.write("/home/user/a file&.txt", one.sandbox_id)

    for one in (sandbox, other):
        for options in ({}, {"use_signature_expiration": 60}, {"user": "user", "use_signature_expiration": 60}):
            url = one.download_url("/home/user/a file&.txt", **options)
            answer = httpx.get(url)
            assert (answer.status_code, answer.text) == (200, one.sandbox_id), (url, answer.text)
            assert one.sandbox_id not in url
    relative = httpx.get(sandbox.download_url("a file&.txt"))
    assert relative.text == sandbox.sandbox_id

    answer = httpx.post(sandbox.upload_url("/home/user/up.txt", use_signature_expiration=60), files={"file": b"data"})
    assert answer.status_code == 200, answer.text
    assert sandbox.files.read("/home/user/up.txt") == "data"
    assert not other.files.exists("/home/user/up.txt")

    expired = httpx.get(sandbox.download_url("/home/user/up.txt", use_signature_expiration=-120))
    assert (expired.status_code, expired.json()) == (401, {"code": 401, "message": "signature is already expired"})
    good = sandbox.download_url("/home/user/up.txt", use_signature_expiration=60)
    for changed in (good.replace("up.txt", "other.txt"), good.replace("signature=v1_", "signature=v1_x"), good + "0"):
        assert httpx.get(changed).status_code == 401, changed
    assert httpx.post(good, files={"file": b"data"}).status_code == 401, "one to read does not write"
    asked = httpx.options(
        sandbox.upload_url("/home/user/up.txt"),
        headers={"origin": "https://app.example", "access-control-request-method": "POST"},
    )
    assert asked.is_success, asked.text
    assert asked.headers["access-control-allow-origin"] == "*"

    other.kill()
    sandbox.kill()
    assert httpx.get(good).status_code == 401, "it is nobody's any more"


main()

# sdk: newest
"""What may leave: said at the creation, replaced while it runs, refused with why. No packet has to leave for it."""

from e2b.exceptions import SandboxException

from e2b import Sandbox

ALL = "0.0.0.0/0"
network = {"deny_out": [ALL], "allow_out": ["example.test"], "allow_public_traffic": False}
sandbox = Sandbox.create("base", timeout=120, network=network)
assert sandbox.traffic_access_token


def answers(name: str) -> bool:
    return sandbox.commands.run(f"getent ahostsv4 {name} >/dev/null && echo yes || echo no").stdout == "yes\n"


assert answers("example.test")
assert not answers("other.test"), "a name that may not be reached has no address"
assert sandbox.get_info().network["deny_out"] == [ALL]

sandbox.update_network({"deny_out": [ALL], "allow_out": ["other.test"]})
assert answers("other.test")
assert not answers("example.test")
sandbox.update_network({})
assert answers("example.test"), "everything may leave"
proxy = {"address": "proxy.test:1080", "username": "me", "password": "hidden"}
sandbox.update_network({"egress_proxy": proxy | {"tls": True}, "dns_servers": ["192.0.2.1"]})
shown = sandbox.get_info().network
assert shown["egress_proxy"] == {"address": "proxy.test:1080", "username": "me", "tls": {}}, shown
assert shown["dns_servers"] == ["192.0.2.1"]
for wrong, says in (
    ({"allow_out": ["example.test"]}, "ALL_TRAFFIC"),
    ({"deny_out": ["example.test"]}, "denyOut"),
    ({"dns_servers": ["127.0.0.1"]}, "dnsServers"),
    ({"egress_proxy": {"address": "169.254.169.254:1080"}}, "egressProxy"),
):
    try:
        sandbox.update_network(wrong)
    except SandboxException as error:
        assert says in str(error), error
    else:
        raise AssertionError(wrong)
sandbox.kill()

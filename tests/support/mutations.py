"""All controls that are switched off, one at a time: of the way out, and of the way in.

What is not here has no switch: a sandbox has no route but through its slot, a proxy no interface to administer it, and
a test of its own shows that.
"""

from tests.support.mutations_decisions import DECISIONS
from tests.support.mutations_packets import PACKETS
from tests.support.mutations_proxies import PROXIES

<<<<<<< HEAD
MUTATIONS = (*PACKETS, *PROXIES, *DECISIONS)
=======
from tests.support import internet_ns
from tests.support.range import Range

from space.host import command
from space.net import gateway_ns, nft


@dataclasses.dataclass(frozen=True)
class Rules:
    """A change of packet rules, as a script for nft; `slot`: in A's slot, else in the gateway namespace.

    `without` names rules that are deleted: every one whose text contains it.
    """

    script: str = ""
    without: str = ""
    slot: bool = False

    @contextlib.asynccontextmanager
    async def off(self, r: Range, _code: Path) -> AsyncGenerator[None]:
        """Apply it for a while."""
        place = r.slot_path(r.a) if self.slot else r.gateway
        if self.without:
            await self._delete(place)
        if self.script:
            await nft.load(place, self.script)
        try:
            yield
        finally:
            if self.slot:
                made = r.slot(r.a)
                await nft.load(place, "flush ruleset\n" + nft.slot_ruleset(made.gateway_address, made.address))
            else:
                reach = ((internet_ns.RESOLVER,), (internet_ns.NETWORK,))
                await gateway_ns.ensure(r.layout, r.net.beyond.host, *reach)

    async def _delete(self, place: Path) -> None:
        told = (await command.run("nft", "--handle", "list", "ruleset", netns=place)).stdout
        table = chain = ""
        script = ""
        for line in told.splitlines():
            words = line.split()
            if words[:1] == ["table"]:
                table = f"{words[1]} {words[2]}"
            elif words[:1] == ["chain"]:
                chain = words[1]
            elif self.without in line and "handle" in words:
                script += f"delete rule {table} {chain} handle {words[-1]}\n"
        assert script, f"no rule has {self.without!r}"
        await nft.load(place, script)


@dataclasses.dataclass(frozen=True)
class Text:
    """A replacement in a file: the configuration of the egress proxy, or code. `daemons` are killed to take it up."""

    file: str
    old: str
    new: str
    daemons: tuple[str, ...]

    @contextlib.asynccontextmanager
    async def off(self, r: Range, code: Path) -> AsyncGenerator[None]:
        """Apply it for a while."""
        path = r.space.run_dir / "settings" / self.file if self.file.endswith(".yaml") else code / "src" / self.file
        good = path.read_text()
        assert self.old in good, f"{self.file} has no {self.old!r} any more: say here how this control is switched off"
        _overwrite(path, good.replace(self.old, self.new))
        try:
            await r.kill(*self.daemons)
            await r.until_allowed(r.b)
            yield
        finally:
            _overwrite(path, good)
            await r.kill(*self.daemons)


def _overwrite(path: Path, text: str) -> None:
    """Change a file in place: owner and mode stay."""
    with path.open("w") as file:
        file.write(text)


@dataclasses.dataclass(frozen=True)
class Mutation:
    """A control that is switched off, and the cases of which at least one must turn red."""

    control: str
    change: Rules | Text
    cases: tuple[str, ...]

    @property
    def off(self) -> Callable[[Range, Path], contextlib.AbstractAsyncContextManager[None]]:
        """What switches it off."""
        return self.change.off


def _code(file: str, old: str, new: str, *daemons: str) -> Text:
    return Text(f"space/{file}", old, new, daemons or ("gateway",))


MUTATIONS = (
    # packets
    Mutation(
        "only synthetic addresses reach the proxy",
        Rules('insert rule inet space_gw redirects iifname "sl*" meta l4proto tcp redirect to :15001\n'),
        ("A-01", "D-08"),
    ),
    Mutation("who wastes connections is muted", Rules(without='comment "muted"'), ("EGRESS-C1",)),
    Mutation("what is not redirected is refused aloud", Rules(without='comment "refused"'), ("D-08", "A-01")),
    Mutation(
        "what may leave the gateway namespace",
        Rules("insert rule inet space_gw outgoing accept\n"),
        ("D-12", "EGRESS-C4"),
    ),
    Mutation("sources are checked at the tap", Rules(without="ip saddr != 169.254.0.21", slot=True), ("L-01",)),
    Mutation("fragments end at the tap", Rules(without="ip frag-off", slot=True), ("L-10",)),
    Mutation(
        "SYNs are limited at the tap",
        Rules(without="syn / syn,ack limit rate over", slot=True),
        ("EGRESS-H1-syn",),
    ),
    Mutation(
        "connections are limited in the slot", Rules(without="ct count over", slot=True), ("EGRESS-H1-connections",)
    ),
    Mutation(
        "other protocols end at the tap", Rules("insert rule netdev space_tap ingress accept\n", slot=True), ("L-07",)
    ),
    Mutation("every resolver is ours", Rules(without="th dport 53 redirect"), ("D-07",)),
    Mutation(
        "segments of no connection are reset",
        Rules(without="reject with tcp reset", slot=True),
        ("EGRESS-M10",),
    ),
    # the egress proxy
    Mutation(
        "upstream certificates are verified by the policy's name",
        Text("egress.yaml", "auto_san_validation: true", "auto_san_validation: false", ("egress",)),
        ("T-10",),
    ),
    Mutation(
        "upstream TLS goes up to 1.3",
        Text(
            "egress.yaml", "tls_maximum_protocol_version: TLSv1_3", "tls_maximum_protocol_version: TLSv1_2", ("egress",)
        ),
        ("T-08",),
    ),
    Mutation("alt-svc is taken out", Text("egress.yaml", "- alt-svc", "- x-nothing", ("egress",)), ("H-20",)),
    Mutation(
        "forged headers are stripped",
        Text("egress.yaml", "prefix: x-forwarded-", "prefix: x-nothing-", ("egress",)),
        ("EGRESS-H2",),
    ),
    Mutation(
        "old versions of TLS are refused",
        Text(
            "egress.yaml",
            "tls_minimum_protocol_version: TLSv1_2\n",
            "tls_minimum_protocol_version: TLSv1_0\n",
            ("egress",),
        ),
        ("T-08",),
    ),
    # decisions
    Mutation(
        "the handshake's name is the address's",
        _code("gateway/identity.py", 'if protocol == "https" and asked.sni != name:', "if False:"),
        ("T-03", "T-02", "H-15"),
    ),
    Mutation(
        "the request's name is the address's",
        _code("gateway/identity.py", "    _check_authority(asked, name)\n", ""),
        ("T-03", "H-15"),
    ),
    Mutation(
        "resolved addresses are screened",
        _code("gateway/resolve.py", "return not any(address in network for network in self._refused)", "return True"),
        ("D-12", "D-11"),
    ),
    Mutation(
        "only allowed names get an address",
        _code("model/policy_reach.py", "return policy.open or policy.ask_timeout_s is not None", "return True"),
        ("D-04", "P-01"),
    ),
    Mutation(
        "certificates are minted for allowed names only",
        _code("gateway/certs.py", "or not self._wanted(name)", ""),
        ("EGRESS-C1",),
    ),
    Mutation("methods are judged", _code("model/policy.py", "request.method not in rule.methods", "False"), ("H-08",)),
    Mutation(
        "paths are judged",
        _code("model/policy.py", "return _path_mismatch(rule, request.path)", "return None"),
        ("H-09",),
    ),
    Mutation(
        "paths that can be read in two ways are refused",
        _code("model/policy_paths.py", " or _ESCAPES.search(raw) or _TWO_READINGS.search(raw):", ":"),
        ("H-09",),
    ),
    Mutation(
        "upgrades need a rule",
        _code(
            "model/policy.py",
            'if request.upgrade is not None and rule.action == "allow" and not rule.websocket:',
            "if False:",
        ),
        ("H-12",),
    ),
    Mutation(
        "placeholders without a binding are refused",
        _code("gateway/inject.py", "            _check_placeholders(headers, ())\n", ""),
        ("C-15",),
    ),
    Mutation(
        "a tightened policy ends what it no longer allows",
        _code(
            "gateway/settling.py",
            "end=guest.flights.ports_where(lambda flight: not still_allowed(guest.policy, flight)),",
            "end=[],",
        ),
        ("EGRESS-H7",),
    ),
    # the worker
    Mutation(
        "the worker ends the connections that the gateway names",
        _code("worker/gateway_link.py", "if settled.end_all or settled.end:", "if False:", "worker"),
        ("EGRESS-H7",),
    ),
    Mutation(
        "a slot's sockets end with it",
        _code("net/slot.py", "        await kill_sockets(layout, slot.address)\n", "", "worker"),
        ("EGRESS-C4", "EGRESS-C4-restore"),
    ),
    # the control plane
    Mutation(
        "a fork has no credentials",
        _code("control/forks.py", "without_credentials(source.document), ())", "source.document, ('KEY',))", "api"),
        ("C-19",),
    ),
)
>>>>>>> dc37423 (Mute for some seconds who wastes connections)

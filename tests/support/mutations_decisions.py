"""Controls that are decisions of ours: the gateway's, the redactor's, the worker's, and the api's on who comes in."""

from tests.support.mutation import change, code

_PATH, _RELAY = "host/test_egress_path.py::", "host/test_egress_relay.py::"
_CREDENTIALS, _CHANGE = "host/test_egress_credentials.py::", "host/test_egress_change.py::"
_VISITS = "apiserver/visits.py"

DECISIONS = (
    # names and addresses
    change(
        "the handshake's name is the address's",
        code("gateway/identity.py", 'if protocol == "https" and asked.sni != name:', "if False:"),
        by="T-03 T-02 H-15",
    ),
    change(
        "the request's name is the address's",
        code("gateway/identity.py", "    _check_authority(asked, name)\n", ""),
        by="T-03 H-15",
    ),
    change(
        "the request's port is the connection's",
        code("gateway/identity.py", "if parts[2] is None or int(parts[2]) == asked.destination_port:", "if True:"),
        by=_PATH + "test_names_of_the_connection_must_be_one",
    ),
    change(
        "what is sent is the policy's spelling",
        code("gateway/egress_service.py", '{":authority": let.authority, **', "{**"),
        by=_PATH + "test_names_of_the_connection_must_be_one",
    ),
    change(
        "resolved addresses are screened",
        code("gateway/resolve.py", "return not any(address in network for network in self._refused)", "return True"),
        by="D-12 D-11",
    ),
    change(
        "only allowed names get an address",
        code("model/policy_reach.py", "return policy.open or policy.ask_timeout_s is not None", "return True"),
        by="D-04 P-01",
    ),
    change(
        "only IPv4 addresses are told",
        code("gateway/dns.py", "if asked.rdtype != dns.rdatatype.A:", "if False:"),
        by=_PATH + "test_dns_answers_allowed_names_only_and_asks_nobody",
    ),
    change(
        "new names of a sandbox are few at a time",
        code("gateway/lookup.py", "        if left < 1:", "        if False:"),
        by="D-05-budget",
    ),
    change(
        "a name's address is recorded before the guest knows it",
        code("worker/gateway_link.py", "                named(sandbox, order.address, order.name)\n", ""),
        by=_PATH + "test_a_name_keeps_its_address_and_is_recorded_before_the_guest_knows",
    ),
    change(
        "certificates are minted for allowed names only",
        code("gateway/certs.py", "or not self._wanted(name)", ""),
        by="D-16 EGRESS-C1",
    ),
    change(
        "certificates are minted for names in their one spelling: it is asked for, and only names that were given are",
        code("gateway/certs.py", "not _is_canonical(name) or not self._wanted(name)", "False"),
        by="T-01",
    ),
    change(
        "certificates that live are few",
        code("gateway/certs.py", "while len(self._live) > self._max_live:", "while False:"),
        by="service/test_gateway_certs.py::test_the_name_used_longest_ago_is_taken_back",
    ),
    # the policy
    change(
        "what no rule allows is refused",
        code("model/policy.py", '    if policy.default == "allow":', "    if True:"),
        by="H-09",
    ),
    change(
        "a sandbox without a policy may do nothing",
        code("gateway/guests.py", "_DENY_ALL = Policy()", '_DENY_ALL = Policy(default="allow")'),
        by=_PATH + "test_a_sandbox_without_a_policy_reaches_nothing",
    ),
    change(
        "a project's ceiling holds for each sandbox",
        code("model/policy.py", "    if not ceiling.allowed:", "    if False:"),
        by="unit/test_model_policy.py::test_the_ceiling_bounds_everything",
    ),
    change("methods are judged", code("model/policy.py", "request.method not in rule.methods", "False"), by="H-08"),
    change(
        "methods are those that may leave",
        code("model/policy.py", "    elif request.method not in METHODS:", "    elif False:"),
        by="H-08",
    ),
    change(
        "paths are judged",
        code("model/policy.py", "return _path_mismatch(rule, request.path)", "return None"),
        by="H-09",
    ),
    change(
        "paths that can be read in two ways are refused",
        code("model/policy_paths.py", " or _ESCAPES.search(raw) or _TWO_READINGS.search(raw):", ":"),
        by="H-09",
    ),
    change(
        "upgrades need a rule",
        code(
            "model/policy.py",
            'if request.upgrade is not None and rule.action == "allow" and not rule.websocket:',
            "if False:",
        ),
        by="H-12",
    ),
    change(
        "requests under way are few",
        code("gateway/egress.py", "if len(guest.flights) >= MAX_IN_FLIGHT:", "if False:"),
        by="host/test_egress_floods.py::test_a_sandboxs_requests_in_flight_are_bounded",
    ),
    change(
        "bytes over a rule's budget end what carries them",
        code("gateway/accesslog.py", "if guest.budgets.spent(guest.policy, flight.rule):", "if False:"),
        by="host/test_egress_rules.py::test_a_download_over_its_rules_bytes_ends",
    ),
    change(
        "a verdict is obeyed",
        code("gateway/egress.py", "            if not verdict.allowed:\n", "            if False:\n"),
        by=_PATH + "test_what_no_rule_allows_is_refused_with_a_reason",
    ),
    change(
        "requests over a rule's number are refused",
        code(
            "gateway/egress.py",
            "        guest.budgets.admit(guest.policy, verdict.rule)\n        verdict, address",
            "        verdict, address",
        ),
        by="host/test_egress_rules.py::test_a_rules_requests_in_a_minute_are_counted",
    ),
    # changes
    change(
        "a tightened policy ends what it no longer allows",
        code(
            "gateway/settling.py",
            "end=guest.flights.ports_where(lambda flight: not still_allowed(guest.policy, flight)),",
            "end=[],",
        ),
        by="EGRESS-H7",
    ),
    change(
        "it ends idle connections, too",
        code("gateway/flights.py", "filter(None, [connection.last])", "()"),
        by=_CHANGE + "test_idle_connections_of_a_removed_rule_end_too",
    ),
    change(
        "it ends relayed connections, too",
        code("gateway/control.py", "        self.relay.recheck(guest)\n", ""),
        by=_RELAY + "test_a_new_policy_ends_the_connections_it_refuses",
    ),
    change(
        "it ends what nobody saw begin",
        code("gateway/control.py", 'update={"end_all": unseen}', 'update={"end_all": False}'),
        by=_CHANGE + "test_a_gateway_that_is_gone_lets_nothing_out_and_comes_back_with_the_policy",
    ),
    change(
        "the worker ends the connections that the gateway names",
        code("worker/gateway_link.py", "if settled.end_all or settled.end:", "if False:", "worker"),
        by="EGRESS-H7",
    ),
    change(
        "a slot's sockets end with it",
        code("net/slot.py", "        await kill_sockets(layout, slot.address)\n", "", "worker"),
        by="EGRESS-C4 EGRESS-C4-restore",
    ),
    change(
        "a slot's address is not given again, whatever dies meanwhile",
        code("host/counter.py", 'files.write_atomic(self._file, f"{self._reserved}\\n")', "pass", "worker"),
        by="host/test_net_addresses.py::test_no_number_twice_across_restarts",
    ),
    # secrets
    change(
        "placeholders without a binding are refused",
        code("gateway/inject.py", "            _check_placeholders(headers, ())\n", ""),
        by="C-15",
    ),
    change(
        "a credential is its rule's",
        code(
            "gateway/egress.py",
            "return () if verdict.rule is None else policy.rules[verdict.rule].bindings",
            "return tuple(one for rule in policy.rules for one in rule.bindings)",
        ),
        by="C-05",
    ),
    change(
        "a credential replaces the guest's in every spelling",
        code("gateway/inject.py", "remove = [name for name in headers if", "remove = [name for name in () if"),
        by=_CREDENTIALS + "test_a_header_replaces_whatever_the_guest_sent_in_its_place",
    ),
    change(
        "a credential is one line",
        code("gateway/inject.py", "    if not _VALUE.fullmatch(value):", "    if False:"),
        by=_CREDENTIALS + "test_without_its_value_a_request_does_not_go_out",
    ),
    change(
        "a fork has no credentials",
        code("control/forks.py", "without_credentials(source.document)", "source.document", "api"),
        by="C-19",
    ),
    change(
        "answers of hosts with a credential are searched",
        code("gateway/redaction.py", "        if not any(_binds(rule)", "        if True or not any(_binds(rule)"),
        by="C-04",
    ),
    change(
        "former values are searched for",
        code("gateway/redaction.py", "*guest.former_secrets, ", ""),
        by=_CREDENTIALS + "test_answers_of_other_rules_of_a_bound_host_are_searched_too",
    ),
    change(
        "answers that cannot be searched are withheld",
        code("redactor/service.py", 'if header.key == "content-encoding" and', "if False and"),
        by=_CREDENTIALS + "test_an_encoded_answer_of_a_bound_host_is_withheld",
    ),
    change(
        "no encoding is asked for where answers are searched",
        code("gateway/egress_service.py", ', "accept-encoding": "identity"}', "}"),
        by=_CREDENTIALS + "test_a_header_replaces_whatever_the_guest_sent_in_its_place",
    ),
    change(
        "no part is asked for where answers are searched",
        code("gateway/egress_service.py", 'remove += ["range", "if-range"]', "remove += []"),
        by=_CREDENTIALS + "test_a_header_replaces_whatever_the_guest_sent_in_its_place",
    ),
    change(
        "headers of answers are searched",
        code(
            "redactor/service.py",
            "set_headers=_changes(search, headers), remove_headers",
            "set_headers=[], remove_headers",
        ),
        by=_CREDENTIALS + "test_a_reflected_secret_is_taken_out_of_the_answer",
    ),
    change(
        "base64 of secrets is searched for",
        code("redactor/needles.py", "for offset in range(3):", "for offset in range(0):"),
        by=_CREDENTIALS + "test_a_reflected_secret_is_taken_out_of_the_answer",
    ),
    change(
        "digests of what was taken out are taken out",
        code("redactor/service.py", '_REMOVED = ("content-length", "etag",', '_REMOVED = ("content-length",'),
        by=_CREDENTIALS + "test_a_reflected_secret_is_taken_out_of_the_answer",
    ),
    # who comes in
    change(
        "a sandbox's ports are for whom it lets in",
        code(
            _VISITS,
            "raise (refusal.token_invalid if token else refusal.token_missing)(row.id, TRAFFIC_TOKEN)",
            "return False",
            "api",
        ),
        by="I-04",
    ),
    change(
        "keys and tokens of ours reach no server of a user's",
        code(_VISITS, "            remove += asked.secrets()\n", "            pass\n", "api"),
        by="I-04",
    ),
    change(
        "the agent's internal ports are closed, says the api",
        code(_VISITS, "        if target.port in WORKERS_PORTS:", "        if False:"),
        by="service/test_edge_visits.py::test_the_agents_internal_ports_are_closed",
    ),
    change(
        "the agent's internal ports are closed: the gateway says so, its route, and two packet rules",
        code("gateway/ingress.py", "    if number in WORKERS_PORTS:", "    if False:"),
        code("proxy/ingress.py", "|9(?:[0-79][0-9]|8[04-9])", "|9[0-9]{2}"),
        code(
            "net/nft.py",
            "meta skuid {ingress_uid} tcp dport != {{ {workers_ports} }} {syn}",
            "meta skuid {ingress_uid} {syn}",
        ),
        code("net/nft.py", "ip daddr {slot} tcp dport != {{ {workers_ports} }} dnat", "ip daddr {slot} dnat"),
        by="host/test_proxy_ports.py::test_the_agents_internal_ports_are_closed_whatever_the_api_says",
    ),
    change(
        "the port of orders is as closed as the other",
        code("wire/gateway.py", "(AGENT_ORDERS_PORT, AGENT_INTERNAL_PORT)", "(AGENT_INTERNAL_PORT,)"),
        code("proxy/ingress.py", "|9(?:[0-79][0-9]|8[04-9])", "|9(?:[0-79][0-9]|8[014-9])"),
        by="host/test_proxy_ports.py::test_the_agents_internal_ports_are_closed_whatever_the_api_says",
    ),
    change(
        "the agent has E2B's calls",
        code("gateway/ingress.py", "    if number == AGENT_PORT and not _ENVD_CALL.fullmatch(call):", "    if False:"),
        by="I-02",
    ),
    change(
        "the agent has our calls",
        code("gateway/ingress.py", "    if not _NATIVE_CALL.fullmatch(call):", "    if False:"),
        by="host/test_proxy_path.py::test_no_spelling_of_a_path_reaches_more_than_the_public_surface",
    ),
    change("a port has one spelling", code("e2b/addressing.py", 'rb"[1-9][0-9]{0,4}"', 'rb"[0-9]+"', "api"), by="I-01"),
    change(
        "guesses at signatures are few",
        code(_VISITS, "        if not self._wrong.allowed(asked.client):", "        if False:", "api"),
        by="I-11",
    ),
)

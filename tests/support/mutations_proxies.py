"""Controls that are settings of the proxies: of the way out (EGRESS C1, C2, H1 to H5, H8, M1, M2, M4, M7), and in."""

from tests.support.mutation import change, code, egress
from tests.support.switches import Modes, Text

_EGRESS, _PARTS, _EDGE, _INGRESS = (f"proxy/{name}.py" for name in ("egress", "parts", "edge", "ingress"))
_PATH, _FLOODS = "host/test_egress_path.py::", "host/test_egress_floods.py::"
_CREDENTIALS, _PORTS, _WAY = (
    "host/test_egress_credentials.py::",
    "host/test_proxy_ports.py::",
    "host/test_proxy_path.py::",
)
_BY_METADATA = '{{"metadata_key": {{"key": _AUTHZ, "path": [{{"key": "{}"}}]}}}}'

PROXIES = (
    # the way out: connections
    change(
        "upstream certificates are verified by the policy's name",
        egress("auto_san_validation: true", "auto_san_validation: false"),
        by="T-10",
    ),
    change(
        "upstream TLS goes up to 1.3",
        egress("tls_maximum_protocol_version: TLSv1_3", "tls_maximum_protocol_version: TLSv1_2"),
        by="T-08",
    ),
    change(
        "old versions of TLS are refused, and what they need",
        Text(
            _EGRESS,
            '"tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},',
            '"tls_params": {"tls_minimum_protocol_version": "TLSv1_0", "cipher_suites": ["ECDHE-ECDSA-AES128-SHA"]},',
            ("up",),
        ),
        by="T-08",
    ),
    change(
        "a handshake without a name is given no certificate",
        code(_EGRESS, 'default_value=".no-sni"', 'default_value="allowed.test"'),
        by=_PATH + "test_names_of_the_connection_must_be_one",
    ),
    change(
        "upstream connections are one guest connection's",
        code(
            _EGRESS, "connection_pool_per_downstream_connection=True", "connection_pool_per_downstream_connection=False"
        ),
        by=_PATH + "test_guests_share_no_connection_to_a_server",
    ),
    change(
        "handshakes have to go on",
        code(_EGRESS, '"transport_socket_connect_timeout": "10s"', '"transport_socket_connect_timeout": "600s"'),
        by=_FLOODS + "test_what_is_begun_and_not_finished_is_ended",
    ),
    change(
        "the first bytes have to come",
        code(_EGRESS, 'listener_filters_timeout="5s"', 'listener_filters_timeout="600s"'),
        by=_FLOODS + "test_what_is_begun_and_not_finished_is_ended",
    ),
    change(
        "headers have to come",
        code(_PARTS, 'request_headers_timeout="10s"', 'request_headers_timeout="600s"'),
        by=_FLOODS + "test_what_is_begun_and_not_finished_is_ended",
    ),
    change(
        "windows of HTTP/2 are small",
        code(
            _PARTS,
            '"initial_connection_window_size": 1024 * 1024',
            '"initial_connection_window_size": 24 * 1024 * 1024',
        ),
        by=_FLOODS + "test_a_connection_may_send_so_much_ahead_and_no_more",
    ),
    change(
        "requests of one guest are limited before they are judged, whatever their headers say",
        code(
            _EGRESS,
            '_RATE = {"max_tokens": 2000, "tokens_per_fill": 1000',
            '_RATE = {"max_tokens": 90000, "tokens_per_fill": 90000',
        ),
        by=_FLOODS + "test_a_guests_requests_are_limited_before_they_are_judged",
    ),
    change(
        "whose requests are limited is the connection's to say: neither is the header kept nor believed",
        code(_PARTS, "use_remote_address=True", "use_remote_address=False"),
        code(_PARTS, '"x-envoy-", "x-forwarded-")', '"x-envoy-",)'),
        by=_FLOODS + "test_a_guests_requests_are_limited_before_they_are_judged",
    ),
    change(
        "clusters take more than guests may have under way",
        code(_PARTS, '"max_requests": 65536', '"max_requests": 300'),
        by=_FLOODS + "test_a_sandboxs_requests_in_flight_are_bounded",
    ),
    # the way out: requests
    change(
        "where to is the gateway's to say: no header of a guest's arrives at the proxy's, or is looked at",
        code(_EGRESS, _BY_METADATA.format("dial"), '{"use_http_header": True}'),
        code(_PARTS, 'FORGED_PREFIXES = ("x-envoy-", ', 'FORGED_PREFIXES = ("x-nothing-", '),
        by=_PATH + "test_forged_headers_steer_nothing_and_do_not_arrive",
    ),
    change(
        "an answer that does not say where to leads nowhere",
        code(_EGRESS, '"safe_regex": {"regex": _DIAL}', '"safe_regex": {"regex": ".*"}'),
        by="host/test_egress_rules.py::test_only_plain_addresses_are_dialled",
    ),
    change("headers that steer are taken out", egress("prefix: x-envoy-", "prefix: x-nothing-"), by="EGRESS-H2"),
    change(
        "headers that say who it is are taken out", egress("prefix: x-forwarded-", "prefix: x-nothing-"), by="EGRESS-H2"
    ),
    change("headers of ours are taken out", egress("prefix: x-space-", "prefix: x-nothing-"), by="EGRESS-H2"),
    change(
        "headers that change a method are taken out",
        egress("remove: x-http-method-override", "remove: x-nothing"),
        by="H-08",
    ),
    change("what Envoy adds is taken out", egress("- x-forwarded-proto", "- x-nothing"), by="EGRESS-H2"),
    change(
        "no consent to an upgrade but the gateway's: a guest's header is taken out, and the route asks for it",
        code("gateway/egress_service.py", "upgrade=None if upgrade is None else", "upgrade=None if True else"),
        egress("prefix: x-space-", "prefix: x-nothing-"),
        by="H-12",
    ),
    change("alt-svc is taken out", egress("- alt-svc", "- x-nothing"), by="H-20"),
    change(
        "targets are paths",
        code(_PARTS, '{"allow_absolute_url": False}', '{"allow_absolute_url": True}'),
        by=_PATH + "test_names_of_the_connection_must_be_one",
    ),
    change(
        "dots of a path are resolved, or refused",
        egress("normalize_path: true", "normalize_path: false"),
        code("model/policy_paths.py", ' or not _DOTS.isdisjoint(path.split("/"))', ""),
        by="H-09",
    ),
    change(
        "which way a request came is the configuration's to say, and its handshake's name, and its port",
        code(_EGRESS, '{"context_extensions": {"chain": chain}}', '{"context_extensions": {"chain": "tls"}}'),
        code("gateway/identity.py", 'if protocol == "https" and asked.sni != name:', "if False:"),
        code("model/policy.py", '        return "another port"\n', "        pass\n"),
        by=_CREDENTIALS + "test_a_credential_goes_nowhere_else",
    ),
    change(
        "nothing passes without a decision",
        code(
            _EGRESS,
            "        failure_mode_allow=False,\n        include_tls_session",
            "        failure_mode_allow=True,\n        include_tls_session",
        ),
        by="host/test_egress_change.py::test_a_gateway_that_is_gone_lets_nothing_out_and_comes_back_with_the_policy",
    ),
    # the way out: answers
    change(
        "answers pass the redactor or not at all: it may not fail, and in this mode could not",
        code(_EGRESS, '"response_body_mode": "FULL_DUPLEX_STREAMED"', '"response_body_mode": "STREAMED"'),
        code(
            _EGRESS,
            "        failure_mode_allow=False,\n        message_timeout",
            "        failure_mode_allow=True,\n        message_timeout",
        ),
        by="host/test_egress_rules.py::test_a_redactor_that_is_gone_holds_back_bound_answers_only",
    ),
    change(
        "nothing comes before the answer",
        code(_EGRESS, "proxy_100_continue=False", "proxy_100_continue=True"),
        by=_CREDENTIALS + "test_nothing_comes_back_before_the_answer",
    ),
    change(
        "a proxy that crashes has nobody to tell",
        Text("cli/daemons.py", "output=None,  # a crash", "output=log_file,  # a crash", ("up",)),
        by="EGRESS-H5",
    ),
    # the way in
    change(
        "strangers on the host reach no socket: its folder is closed, and so is it",
        Modes(folders=0o755, sockets=0o666),
        by="C-10",
    ),
    change(
        "headers of a client decide nothing at the edge",
        code(_EDGE, '(*parts.FORGED_PREFIXES, "x-space-")', "parts.FORGED_PREFIXES"),
        by=_PORTS + "test_no_header_of_a_client_decides",
    ),
    change(
        "which slot is the gateway's to say: no header arrives at the ingress proxy, or is looked at",
        code(_INGRESS, _BY_METADATA.format("dst"), '{"use_http_header": True}'),
        code(_INGRESS, 'parts.stripped_early(["x-envoy-"], ())', 'parts.stripped_early(["x-nothing-"], ())'),
        by=_WAY + "test_forged_headers_choose_no_other_slot",
    ),
    change(
        "nothing comes in without a decision of the gateway's",
        code(_INGRESS, "failure_mode_allow=False", "failure_mode_allow=True"),
        by=_WAY + "test_each_part_gone_is_a_refusal_that_says_so",
    ),
    change(
        "nothing comes in without a decision of the api's",
        code(_EDGE, "failure_mode_allow=False", "failure_mode_allow=True"),
        by=_WAY + "test_each_part_gone_is_a_refusal_that_says_so",
    ),
    change(
        "the api's decisions are asked for by the edge alone",
        code(
            _EDGE, '"match": {"path_separated_prefix": "/internal"}', '"match": {"path_separated_prefix": "/nothing"}'
        ),
        by=_WAY + "test_no_spelling_of_a_path_reaches_more_than_the_public_surface",
    ),
    change(
        "upgrades are for users' servers",
        code(_INGRESS, '"headers": [_UPGRADE]}, "direct_response"', '"headers": [_TLS, _UPGRADE]}, "direct_response"'),
        by=_PORTS + "test_nothing_but_a_users_server_gets_an_upgrade",
    ),
    change(
        "cookies of a port are its name's",
        code(_EDGE, "changed = changed or count > 0", "changed = false"),
        by=_PORTS + "test_cookies_of_a_port_are_its_names_alone",
    ),
    change(
        "a client that shows its key is led nowhere",
        Text("edge.yaml", "- location", "- x-nothing", ("edge",)),
        by="I-06",
    ),
    change(
        "headers are few",
        code(_PARTS, '"max_headers_count": 100', '"max_headers_count": 1000'),
        by=_WAY + "test_errors_of_the_proxies_are_problems",
    ),
    change(
        "the ingress proxy dials slots",
        code(_INGRESS, r'"100\.(?:6[4-9]|[7-9][0-9]|1[01][0-9]|12[0-7])\.', r'"[0-9]+\.[0-9]+\.'),
        by="unit/test_proxy_configs.py::test_ingress_dials_only_slots_and_never_the_internal_port",
    ),
    change(
        "keys end at the edge",
        code(_EDGE, '_CREDENTIALS = ("x-api-key", ', "_CREDENTIALS = ("),
        code(_INGRESS, '"x-forwarded-host", "x-api-key")', '"x-forwarded-host")'),
        by=_WAY + "test_the_guest_sees_the_clients_request_and_nothing_of_ours",
    ),
)

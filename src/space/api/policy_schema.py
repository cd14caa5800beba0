"""The JSON schema of egress policies, in outline: model/policy_document.py decides, docs/howto/egress.md explains."""

from pydantic.config import JsonDict

from space.model.policy_document import MAX_RULES
from space.model.policy_presets import PRESETS
from space.model.policy_upstream import MAX_DNS_SERVERS

_RULES: JsonDict = {"type": "array", "items": {"type": "object"}, "maxItems": MAX_RULES}

POLICY: JsonDict = {
    "type": "object",
    "description": "docs/howto/egress.md says how one is written.",
    "minProperties": 1,
    "additionalProperties": False,
    "properties": {
        "default": {"enum": ["deny", "allow"]},
        "preset": {"enum": [*PRESETS]},
        "allow": _RULES,
        "deny": _RULES,
        "rules": _RULES,
        "observe": {"type": "boolean"},
        "ask": {"type": ["boolean", "object"]},
        "bind_while_open": {"type": "boolean"},
        "upstream_proxy": {
            "type": "object",
            "required": ["address"],
            "additionalProperties": False,
            "properties": {
                "address": {"type": "string"},
                "username": {"type": "string"},
                "password": {"type": "string"},
                "tls": {"type": ["boolean", "object"]},
            },
        },
        "dns_servers": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": MAX_DNS_SERVERS},
    },
}

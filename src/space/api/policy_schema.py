"""The JSON schema of egress policies, in outline: model/policy_document.py decides, docs/howto/egress.md explains."""

from pydantic.config import JsonDict

from space.model.policy_document import MAX_RULES
from space.model.policy_presets import PRESETS

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
    },
}

"""What the rules of a policy let one sandbox use: requests in a minute, bytes in all."""

import collections
import time

from space.model.errors import SpaceError
from space.model.policy import Policy

_MINUTE_S = 60.0


class BudgetSpent(SpaceError):
    """A rule's budget is used up."""

    code, status, title, retryable = "budget_spent", 429, "Budget used up", True
    retry_after_s = 60


class Budgets:
    """Use under the rules of one policy, by the rule's index."""

    def __init__(self) -> None:
        self._requests: dict[int, collections.deque[float]] = {}
        self._sent: collections.Counter[int] = collections.Counter()
        self._received: collections.Counter[int] = collections.Counter()

    def admit(self, policy: Policy, rule: int | None) -> None:
        """Count a request; raises BudgetSpent, and then it is not counted."""
        if rule is None:
            return
        if self.spent(policy, rule):
            raise BudgetSpent(f"The bytes that {policy.rules[rule].label} allows are used up.", retry_after_s=3600)
        most = policy.rules[rule].limits.requests_per_minute
        if most is None:
            return
        now_s = time.monotonic()
        recent = self._requests.setdefault(rule, collections.deque())
        while recent and recent[0] <= now_s - _MINUTE_S:
            recent.popleft()
        if len(recent) >= most:
            raise BudgetSpent(f"{policy.rules[rule].label} allows {most} requests in a minute.")
        recent.append(now_s)

    def use(self, rule: int | None, sent_bytes: int, received_bytes: int) -> None:
        """Count bytes."""
        if rule is not None:
            self._sent[rule] += sent_bytes
            self._received[rule] += received_bytes

    def spent(self, policy: Policy, rule: int | None) -> bool:
        """Tell whether a rule's bytes are used up."""
        if rule is None or rule >= len(policy.rules):
            return False
        limits = policy.rules[rule].limits
        return (limits.upload_bytes is not None and self._sent[rule] >= limits.upload_bytes) or (
            limits.download_bytes is not None and self._received[rule] >= limits.download_bytes
        )

"""All controls that are switched off, one at a time: of the way out, and of the way in.

What is not here has no switch: a sandbox has no route but through its slot, a proxy no interface to administer it, and
a test of its own shows that.
"""

from tests.support.mutations_decisions import DECISIONS
from tests.support.mutations_packets import PACKETS
from tests.support.mutations_proxies import PROXIES

MUTATIONS = (*PACKETS, *PROXIES, *DECISIONS)

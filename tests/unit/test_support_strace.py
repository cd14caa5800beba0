"""What strace tells of a process, for tests that kill it at its steps."""

import asyncio
from pathlib import Path
from typing import cast

from tests.support.strace import Followed

_TOLD = r"""
rename("/d/ledger/.a.json.x1", "/d/ledger/a.json") = 0
sendto(19, "{\"execute\":\"stop\"}\n", 19, 0, NULL, 0) = 19
sendto(19, "{\"execute\":\"query-status\"}\n", 27, 0, NULL, 0) = 27
sendto(7, "2c\r\n{\"type\":\"heartbeat\",\"memory_"..., 50, 0, NULL, 0) = 50
sendto(5, "\0", 1, 0, NULL, 0)          = 1
sendto(8, "thaw reason=pause time_unix_ns=1"..., 149, 0, NULL, 0) = 149
sendto(18, "GET /v1/health HTTP/1.1\r\nHost: a"..., 182, 0, NULL, 0) = 182
sendto(10, "HTTP/1.1 200 OK\r\ncontent-length:"..., 72, 0, NULL, 0) = ?
+++ killed by SIGKILL +++
"""


def test_what_changes_nothing_is_told_from_what_does(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(_TOLD)
    told = Followed(tmp_path / "log", cast("asyncio.subprocess.Process", None))
    assert told.acts() == {"rename": [True], "sendto": [True, False, False, False, True, False, True]}

"""What is told of a process of ours that ended."""

import pytest

from space.cli.supervisor import last_words

_NFT = """\
Traceback (most recent call last):
  File "/opt/space/main.py", line 7, in main
    asyncio.run(teardown.down())
                ^^^^^^^^^^^^^^^
space.host.command.CommandError: nft -f - exited with 1: /dev/stdin:1:22-26: Error: No such file or directory
add element inet muted { 100.64.0.1 }
                 ^^^^^"""
_GROUP = """\
  + Exception Group Traceback (most recent call last):
  |   File "/opt/space/main.py", line 7, in main
  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/opt/space/main.py", line 9, in work
    | OSError: [Errno 28] No space left on device
    +------------------------------------"""


@pytest.mark.parametrize(
    ("log", "begins", "lines"),
    [
        ('{"event": "x"}\nThere is no room.\nMake some.', "There is no room.", 2),
        ('{"event": "x"}\n' + _NFT, "space.host.command.CommandError: nft", 3),
        (_GROUP, "OSError: [Errno 28] No space", 1),
        ("Traceback (most recent call last):\n  gibberish", "gibberish", 1),
        ('{"event": "x"}', '{"event": "x"}', 1),
    ],
)
def test_of_a_traceback_the_error_counts_whole(log: str, begins: str, lines: int) -> None:
    told = last_words(log.splitlines())
    assert told[0].startswith(begins), told
    assert len(told) == lines

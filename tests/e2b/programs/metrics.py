"""What a sandbox uses: real figures, and a history that grows."""

from e2b import Sandbox

sandbox = Sandbox.create("base", timeout=120)
found = sandbox.get_metrics()
assert found
last = found[-1]
assert last.cpu_count == 1
assert 0 <= last.cpu_used_pct <= 100
assert 300 * 2**20 < last.mem_total <= 512 * 2**20
assert 0 < last.mem_used < last.mem_total
assert 0 < last.disk_used < last.disk_total
sandbox.commands.run("head -c 50000000 /dev/urandom > /home/user/blob; sync; sleep 1")
later = sandbox.get_metrics()
assert len(later) > len(found)
assert later[-1].disk_used > last.disk_used + 40_000_000
assert sandbox.get_metrics(start=later[-1].timestamp)[0].timestamp >= found[0].timestamp
sandbox.kill()

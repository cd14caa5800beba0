# sdk: newest
"""Volumes: made, written and read from outside, mounted in two sandboxes at once, across a pause, a kill and a fork."""

import uuid

from e2b.exceptions import NotFoundException
from e2b.volume.types import VolumeEntryStat

from e2b import Sandbox, Volume

name = f"shared-{uuid.uuid4().hex[:12]}"
volume = Volume.create(name)
assert volume.name == name and volume.token
assert any(one.volume_id == volume.volume_id and one.name == name for one in Volume.list())
again = Volume.connect(volume.volume_id)
assert again.token == volume.token

# from outside
made = volume.make_dir("/reports/2026", force=True, uid=1000, gid=1000, mode=0o750)
assert (made.type, made.uid, made.gid, made.mode) == ("directory", 1000, 1000, 0o750), made
written: VolumeEntryStat = volume.write_file("/reports/2026/a.txt", "from outside\n", uid=1000, gid=1000)
assert (written.name, written.path, written.size, written.mode) == ("a.txt", "/reports/2026/a.txt", 13, 0o644), written
assert volume.read_file("/reports/2026/a.txt") == "from outside\n"
assert b"".join(volume.read_file("/reports/2026/a.txt", format="stream")) == b"from outside\n"
assert volume.update_metadata("/reports/2026/a.txt", mode=0o600).mode == 0o600
assert [one.path for one in volume.list("/", depth=3)] == ["/reports", "/reports/2026", "/reports/2026/a.txt"]
assert volume.exists("/reports") and not volume.exists("/nothing")
for missing in ("/nothing/at/all", "/reports/2026/a.txt/below"):
    try:
        volume.read_file(missing)
    except NotFoundException:
        pass
    else:
        raise AssertionError(missing)

# in two sandboxes
mounts = {"/mnt/data": volume}
first = Sandbox.create("base", timeout=300, volume_mounts=mounts)
second = Sandbox.create("base", timeout=300, volume_mounts=mounts)
assert first.get_info().volume_mounts, first.get_info()
assert first.commands.run("cat /mnt/data/reports/2026/a.txt", user="user").stdout == "from outside\n"
first.commands.run(
    "echo from first >/mnt/data/b.txt && ln -s b.txt /mnt/data/link && chmod 4755 /mnt/data/b.txt", user="root"
)
second.commands.run("echo by its user >/mnt/data/c.txt")
assert volume.get_info("/c.txt").uid == 1000
assert second.commands.run("cat /mnt/data/link").stdout == "from first\n"
assert volume.read_file("/link") == "from first\n"
link = volume.get_info("/link")
assert (link.type, link.target) == ("symlink", "b.txt"), link
assert volume.get_info("/b.txt").mode == 0o4755

assert first.commands.run("pwd", cwd="/mnt/data/reports").stdout == "/mnt/data/reports\n"

# files and folders that are open stay so while the sandbox is paused
holder = first.commands.run(
    "cd /mnt/data/reports/2026 && exec 3>>log && echo before >&3 && read line && echo $line >&3 && pwd && ls",
    background=True,
    user="root",
    stdin=True,
)
second.commands.run("until [ -s /mnt/data/reports/2026/log ]; do sleep 0.1; done")
first.pause()
second.commands.run("echo meanwhile >>/mnt/data/reports/2026/log", user="root")
first = Sandbox.connect(first.sandbox_id)
first.commands.send_stdin(holder.pid, "after\n")
said = first.commands.connect(holder.pid).wait().stdout
assert said.split() == ["/mnt/data/reports/2026", "a.txt", "log"], said
log = second.commands.run("cat /mnt/data/reports/2026/log").stdout
assert log == "before\nmeanwhile\nafter\n", (log, volume.read_file("/reports/2026/log"))

# it outlives them
assert first.kill()
second.commands.run("rm /mnt/data/link", user="root")
assert second.kill()
assert not volume.exists("/link")
volume.remove("/reports")
volume.remove("/c.txt")
assert [one.path for one in volume.list("/")] == ["/b.txt"]
assert Volume.destroy(volume.volume_id)
assert not Volume.destroy(volume.volume_id)

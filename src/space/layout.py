"""Where everything of one SPACE instance lies: paths, user ids and names, computed from its identity.

An instance is one data folder on one host. Its 4-character id is part of every network namespace, cgroup and run
folder, so that two instances never touch each other's things and the janitor knows its own.
"""

import dataclasses
import re
from pathlib import Path

RUN_ROOT = Path("/run/space")
UID_RANGE_SIZE = 65536
UID_RANGE_FIRST = 0x7000_0000
"""Above systemd's container range (524288 to 1879048191), so nobody on an ordinary host owns these."""

_INSTANCE = re.compile(r"[a-z0-9]{4}")
_VOLUME_UIDS = 200
"""The first offset used for the servers of volumes, each of which has one for as long as its volume is there."""

_VM_UIDS = 1000
"""The first offset used for VMs; daemons sit below."""


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """Paths and ids of an instance. `uid_base` is the first of its 65,536 user ids (group ids are the same numbers)."""

    data_dir: Path
    instance: str
    uid_base: int

    def __post_init__(self) -> None:
        if not _INSTANCE.fullmatch(self.instance):
            raise ValueError(f"instance id {self.instance!r} is not 4 characters of [a-z0-9]")

    # one uid (and gid of the same number) for each unprivileged process
    @property
    def gateway_uid(self) -> int:
        return self.uid_base + 1

    @property
    def ingress_uid(self) -> int:
        return self.uid_base + 2

    @property
    def egress_uid(self) -> int:
        return self.uid_base + 3

    @property
    def edge_uid(self) -> int:
        return self.uid_base + 4

    @property
    def api_uid(self) -> int:
        return self.uid_base + 5

    @property
    def redactor_uid(self) -> int:
        return self.uid_base + 6

    @property
    def puller_uid(self) -> int:
        """Pulls images from registries; never runs for longer than that."""
        return self.uid_base + 7

    # groups: who may connect to which socket, one group per pair
    @property
    def edge_api_gid(self) -> int:
        """May connect to `api_sock`: edge."""
        return self.uid_base + 100

    @property
    def edge_ingress_gid(self) -> int:
        """May connect to `ingress_sock`: edge and (as root) the worker."""
        return self.uid_base + 101

    @property
    def ingress_gateway_gid(self) -> int:
        """May connect to `authz_sock`: ingress proxy."""
        return self.uid_base + 102

    @property
    def egress_gateway_gid(self) -> int:
        """May connect to `decisions_sock` and `egress_sock`: egress proxy."""
        return self.uid_base + 104

    @property
    def egress_redactor_gid(self) -> int:
        """May connect to `redactor_sock`: egress proxy."""
        return self.uid_base + 105

    @property
    def redactor_gateway_gid(self) -> int:
        """May connect to `needles_sock`: redactor."""
        return self.uid_base + 106

    @property
    def api_worker_gid(self) -> int:
        """May connect to `worker_sock`: api."""
        return self.uid_base + 103

    @property
    def vm_uid_offset(self) -> int:
        """How many uids of the range are the daemons'."""
        return _VM_UIDS

    def vm_uid(self, number: int) -> int:
        """User id of the VM with this running number; they repeat after 64,536 VMs, long after the files are gone."""
        return self.uid_base + _VM_UIDS + number % (UID_RANGE_SIZE - _VM_UIDS)

    @property
    def volume_uids(self) -> range:
        """User ids of the servers of volumes."""
        return range(self.uid_base + _VOLUME_UIDS, self.uid_base + _VM_UIDS)

    # run folders: 0711 above, each process's own folder below
    @property
    def run_dir(self) -> Path:
        return RUN_ROOT / self.instance

    @property
    def api_sock(self) -> Path:
        return self.run_dir / "api" / "api.sock"

    @property
    def worker_sock(self) -> Path:
        return self.run_dir / "worker" / "worker.sock"

    @property
    def authz_sock(self) -> Path:
        return self.run_dir / "authz" / "authz.sock"

    @property
    def decisions_sock(self) -> Path:
        """Egress proxy to gateway: may this leave."""
        return self.run_dir / "egress" / "decisions.sock"

    @property
    def egress_sock(self) -> Path:
        """Egress proxy to gateway: certificates, and the log of what ended."""
        return self.run_dir / "egress" / "gateway.sock"

    @property
    def redactor_sock(self) -> Path:
        return self.run_dir / "redactor" / "redactor.sock"

    @property
    def needles_sock(self) -> Path:
        """Redactor to gateway: which secrets to take out."""
        return self.run_dir / "needles" / "gateway.sock"

    @property
    def gateway_control_sock(self) -> Path:
        """Worker to gateway; only root may connect."""
        return self.run_dir / "gateway" / "control.sock"

    @property
    def ingress_sock(self) -> Path:
        return self.run_dir / "ingress" / "node.sock"

    @property
    def postgres_run_dir(self) -> Path:
        return self.run_dir / "postgres"

    # data
    @property
    def disk_area(self) -> Path:
        """Mount point (or folder) on btrfs: root filesystems, kernels, templates."""
        return self.data_dir / "disk"

    @property
    def memory_area(self) -> Path:
        """Mount point of the file system for guests' memory, apart from disks."""
        return self.data_dir / "mem"

    @property
    def templates_dir(self) -> Path:
        return self.disk_area / "templates"

    @property
    def ledger_dir(self) -> Path:
        return self.data_dir / "worker" / "ledger"

    @property
    def volumes_dir(self) -> Path:
        """The volumes, a subvolume each."""
        return self.disk_area / "volumes"

    @property
    def volume_records_dir(self) -> Path:
        """The ledger of volumes."""
        return self.data_dir / "worker" / "volumes"

    def volume_run_dir(self, volume: str) -> Path:
        """Sockets of a volume's server; root's alone."""
        return self.run_dir / "worker" / f"volume-{volume}"

    @property
    def spares_dir(self) -> Path:
        """The ledger of clones that wait for a sandbox."""
        return self.data_dir / "worker" / "spares"

    @property
    def cache_dir(self) -> Path:
        """Downloads and intermediate products of template builds, by content; safe to delete."""
        return self.data_dir / "cache"

    @property
    def log_dir(self) -> Path:
        return self.data_dir / "logs"

    @property
    def api_key_file(self) -> Path:
        return self.data_dir / "api-key"

    @property
    def secret_key_file(self) -> Path:
        """Master keys for what is sealed in the database, unless the operator names another file."""
        return self.data_dir / "secret-key"

    # network namespaces
    @property
    def gateway_netns(self) -> str:
        return f"space-{self.instance}-gw"

    def slot_netns(self, number: int) -> str:
        return f"space-{self.instance}-s{number}"

    @property
    def netns_prefix(self) -> str:
        return f"space-{self.instance}-"

    def vm_dir(self, sandbox: str) -> Path:
        """The VMM's own folder, root's; on the disk area, beside the disk it holds."""
        return self.disk_area / "vms" / sandbox

    def memory_file(self, sandbox: str) -> Path:
        return self.memory_area / "vms" / sandbox / "mem"

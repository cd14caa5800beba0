"""The root process of a host: it owns VMs, slots and disks."""

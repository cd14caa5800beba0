"""The data areas of a host and the disks in them."""

"""Where guests' disks and memory files lie: the areas on btrfs, and the files of each VM."""

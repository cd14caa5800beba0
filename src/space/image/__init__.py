"""Templates: how their kernel, initramfs and root filesystem are made, kept and found."""

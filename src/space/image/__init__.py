"""What a VM boots: kernel, initramfs, root filesystem, template."""

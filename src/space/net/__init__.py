"""Slots: the network places of VMs, and the gateway namespace."""

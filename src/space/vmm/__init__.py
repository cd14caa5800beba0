"""Virtual machine monitors: the driver protocol, the drivers, the jail."""

"""Use cases, once, for every surface."""

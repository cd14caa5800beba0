"""The HTTP surface of E2B's control API over `control`: unmodified E2B SDKs work against it."""

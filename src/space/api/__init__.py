"""The `/v1` HTTP surface over `control`."""

"""The `space` command."""

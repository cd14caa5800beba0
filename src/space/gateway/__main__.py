"""Entry point of `python -m space.gateway`."""

from space.gateway.main import main

main()

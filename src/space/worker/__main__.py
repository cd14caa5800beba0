"""`python -m space.worker`."""

from space.worker.main import main

main()

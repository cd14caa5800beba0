"""Entry point of `python -m space.redactor`."""

from space.redactor.main import main

main()

"""`python -m space.apiserver --settings FILE [--ensure-key]`."""

import argparse
from pathlib import Path

from space.apiserver.main import main

parser = argparse.ArgumentParser(prog="space.apiserver", description=__doc__)
parser.add_argument("--settings", type=Path, required=True, help="the process's settings file")
parser.add_argument("--ensure-key", action="store_true", help="read a key from standard input; print a working one")
arguments = parser.parse_args()
main(arguments.settings, ensure_key=arguments.ensure_key)

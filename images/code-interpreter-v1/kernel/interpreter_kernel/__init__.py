"""What a Python kernel does beyond ipykernel: charts, tables, saved pictures, a run's variables, and waking as a copy.

Loaded as an IPython extension. It lives in the user's own Python and imports nothing that the user has not imported
already: matplotlib and pandas are only looked at when one of their objects is shown.
"""

from typing import Any

from interpreter_kernel import copies, pictures, shown, variables


def load_ipython_extension(shell: Any) -> None:
    """Be part of `shell`, an IPython InteractiveShell of a kernel."""
    copies.watch(shell)
    variables.watch(shell)
    shown.register(shell.display_formatter)
    pictures.watch()

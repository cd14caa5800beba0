"""Pictures of Pillow are shown when they are saved under a name, as E2B's users know it; also those of `savefig`.

Pillow is not imported for it: its module is changed when the user imports it.
"""

import functools
import importlib.abc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from IPython.display import display

_MODULE = "PIL.Image"


class _Finder(importlib.abc.MetaPathFinder):
    """Finds what the others find, and has the module changed once it is loaded."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Return Pillow's own spec with a loader that changes the module; None for all else."""
        if name != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = next((found for one in sys.meta_path if (found := one.find_spec(name, path, target))), None)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                _show_what_is_saved(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign] # this loader loads this module alone
        return spec


def watch() -> None:
    """Change Pillow now or when it is imported."""
    if _MODULE in sys.modules:
        _show_what_is_saved(sys.modules[_MODULE])
    else:
        sys.meta_path.insert(0, _Finder())


def _show_what_is_saved(module: Any) -> None:
    save = module.Image.save

    @functools.wraps(save)
    def saved(self: Any, fp: Any, *args: Any, **options: Any) -> None:
        save(self, fp, *args, **options)
        if isinstance(fp, str):
            display(self)

    module.Image.save = saved

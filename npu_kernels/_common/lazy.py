"""Names that a package imports at their first use.

Their modules take time to import, or need packages that may be missing.
"""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(
    package: str, modules: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package that has an ``__all__``.

    modules: the module of each name; a module of the package is its own.
    """

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(modules[name])
        return module if modules[name] == f"{package}.{name}" else getattr(module, name)

    def names() -> list[str]:
        namespace = vars(sys.modules[package])
        return sorted({*namespace, *namespace["__all__"]})

    return get, names

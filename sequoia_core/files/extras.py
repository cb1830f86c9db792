"""Discovery of optional packages, which are imported on first use.

A seam is a named extension point of the core. The `PROVIDES` of an optional package maps seams to what the package
adds there, as "module:attribute". The installed distribution lists its packages in the entry point group
`sequoia.extras`; in a checkout that is not installed, importing `sequoia_extras` registers them.
"""

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any

ENTRY_POINT_GROUP = "sequoia.extras"
_registered: dict[str, None] = {}  # an ordered set of full package names


def register(packages: Iterable[str]) -> None:
    """Register optional packages by full name; call this before the first call to `provided`."""
    added = [name for name in packages if name not in _registered]
    if added and provided.cache_info().currsize:
        raise ImportError(f"{added[0]}: imported after the core looked for optional packages, expected earlier")
    _registered.update(dict.fromkeys(added))
    installed.cache_clear()


@cache
def installed() -> tuple[str, ...]:
    """Return the full names of the usable optional packages, in registration order.

    A package is left out if a package in its `NEEDS` is missing.
    """
    for point in entry_points(group=ENTRY_POINT_GROUP):
        try:
            _registered.update(dict.fromkeys(point.load()))
        except ModuleNotFoundError as error:
            # The package itself may have been deleted, but a missing dependency is an error.
            if error.name != point.module:
                raise
    found: list[str] = []
    for name in _registered:
        try:
            spec = find_spec(name)
        except ModuleNotFoundError:  # The parent package is also missing.
            spec = None
        if spec is None or spec.origin is None:
            continue
        parent, _, _ = name.rpartition(".")
        if all(f"{parent}.{needed}" in found for needed in getattr(import_module(name), "NEEDS", ())):
            found.append(name)
    return tuple(found)


def has(name: str) -> bool:
    """Return whether an optional package, given by its short name such as "servers", can be used."""
    return any(package.rpartition(".")[2] == name for package in installed())


@cache
def provided(seam: str) -> tuple[Any, ...]:
    """Return the objects that optional packages provide at a seam, in registration order."""
    return tuple(
        _load(package, name)
        for package in installed()
        for name in getattr(import_module(package), "PROVIDES", {}).get(seam, ())
    )


def _load(package: str, name: str) -> Any:
    module, _, attribute = name.partition(":")
    loaded = import_module(f"{package}.{module}")
    return getattr(loaded, attribute) if attribute else loaded

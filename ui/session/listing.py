"""The vectors and profiles to choose from: those of this session, which are kept on this machine, and shipped ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, Literal

from sequoia_core import AcceptanceVector, HardwareProfile
from ui.kept import store
from ui.session import core_cache, shipped
from ui.session.core_cache import Measured
from ui.session.state import Chosen, state

MAX_OWN = 12  # vectors, and profiles, of a session


class Listing(Generic[Measured]):
    """All vectors or all profiles: this session's, newest first, then the shipped ones.

    Args:
        kind: the folder of kept files.
        shipped: returns the shipped values by name.
        origin: describes where a shipped value comes from.
    """

    def __init__(
        self,
        kind: Literal["vectors", "profiles"],
        read: Callable[[Path], Measured],
        shipped: Callable[[], dict[str, Measured]],
        origin: Callable[[Measured], str],
    ) -> None:
        self.kind = kind
        self.shipped = shipped
        self._read = read
        self._origin = origin

    @property
    def own(self) -> dict[str, Chosen[Measured]]:
        """This session's values by name."""
        return getattr(state(), f"own_{self.kind}")

    def values(self) -> dict[str, Measured]:
        """Return every value by name."""
        return {name: chosen.value for name, chosen in self.own.items()} | self.shipped()

    def choose(self, name: str) -> Chosen[Measured]:
        """Return the value of that name and where it comes from."""
        if name in self.own:
            return self.own[name]
        value = self.shipped()[name]
        return Chosen(value, self._origin(value))

    def source(self, value: Measured) -> str:
        """Describe where a listed value comes from."""
        own = (chosen.source for chosen in self.own.values() if chosen.value is value)
        return next(own, self._origin(value))

    def name(self, value: Measured | None) -> str | None:
        """Return a value's name; None if it is not listed."""
        return next((name for name, listed in self.values().items() if listed == value), None)

    def load(self, path: Path) -> Measured:
        """Read a value's file."""
        return core_cache.load(self._read, path)

    def add(self, added: Chosen[Measured], name: str) -> None:
        """List a value of this session first; its name is numbered if another value has it."""
        own: dict[str, Chosen[Measured]] = self.own
        taken = {other for other, chosen in own.items() if chosen.value != added.value} | {*self.shipped()}
        names = (name, *(f"{name} ({number})" for number in range(2, len(taken) + 3)))
        unique = next(candidate for candidate in names if candidate not in taken)
        others = {other: known for other, known in own.items() if other != unique}
        setattr(state(), f"own_{self.kind}", dict([(unique, added), *others.items()][:MAX_OWN]))

    def keep(self, value: Measured, source: str, name: str) -> Chosen[Measured]:
        """List a value and keep it on this machine."""
        chosen = Chosen(value, source)
        self.add(chosen, name)
        store.keep(self.kind, value.to_bytes(), name=name, source=source)
        return chosen


VECTORS = Listing("vectors", AcceptanceVector.load, shipped.vectors, shipped.acceptance_origin)
PROFILES = Listing("profiles", HardwareProfile.load, shipped.profiles, shipped.profile_origin)
LISTINGS: tuple[Listing[Any], ...] = (VECTORS, PROFILES)

"""The kinds of trees that grow per step: a new one is a class in `growing/policies.py` and a line here."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..design.planning import plan_tree

if TYPE_CHECKING:
    from ..design.acceptance import AcceptanceVector
    from ..design.profile import HardwareProfile
    from ..design.tree import TokenTree
    from .growing.growing_tree import GrowingTree


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeKind:
    """A kind of trees that grow.

    Attributes:
        title, words: its name, and what its trees are, for people.
        policy: its class in `growing.policies`.
        calibrated: whether it goes by the calibration of a vector, and by profiled costs.
        looks_up: whether its trees hold text already seen.
        drafted: whether they take a draft model.
    """

    title: str
    words: str
    policy: str
    calibrated: bool = False
    looks_up: bool = False
    drafted: bool = True

    @property
    def budgeted(self) -> bool:
        """Whether trees have the size and depth that they are given, not those that pay."""
        return not (self.calibrated or self.looks_up)

    def make(
        self,
        vector: AcceptanceVector | None = None,
        profile: HardwareProfile | None = None,
        *,
        planned: TokenTree | None = None,
        **bounds: int,
    ) -> GrowingTree:
        """Return the policy, with an empty index where text is looked up; `planned` as `plan_tree` returns it."""
        given: dict[str, Any] = dict(bounds)
        if self.looks_up:
            given["index"] = import_module(".growing.text_index", __package__).TextIndex()
        if not self.budgeted:
            given["profile"] = profile
        if self.calibrated:
            if vector is None:
                raise ValueError(f"{self.title} trees: found no acceptance vector, expected one with a calibration")
            if planned is None and profile is not None:
                planned = plan_tree(vector, profile)
            given |= {"calibration": vector.calibration, "holds_for": vector.holds_for, "planned": planned}
        return getattr(import_module(".growing.policies", __package__), self.policy)(**given)


TREE_KINDS = {
    "specexec": TreeKind(title="SpecExec", words="SpecExec's trees", policy="SpecExecTree"),
    "adaptive": TreeKind(title="Adaptive", words="adaptive trees", policy="AdaptiveTree", calibrated=True),
    "lookup": TreeKind(
        title="Lookup", words="trees of text already seen", policy="LookupTree", looks_up=True,
        drafted=False,
    ),
    "hybrid": TreeKind(
        title="Hybrid", words="trees of text already seen and the draft", policy="HybridTree", calibrated=True,
        looks_up=True,
    ),
}  # fmt: skip

"""The dynamic tree kinds. A new kind needs a class in `policies` and an entry here. Does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from sequoia_core.planning.plan import plan_tree

if TYPE_CHECKING:
    from sequoia_core.acceptance.vector import AcceptanceVector
    from sequoia_core.planning.profile import HardwareProfile
    from sequoia_core.trees.tree import TokenTree

    from .growing_tree import GrowingTree


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowingTreeKind:
    """A kind of dynamically grown trees (implements `sequoia_core.decoding.tree_kinds.TreeKind`).

    Attributes:
        policy: name of the policy class in `policies`.
    """

    title: str
    words: str
    policy: str
    calibrated: bool = False
    looks_up: bool = False
    drafted: bool = True

    @property
    def budgeted(self) -> bool:
        return not (self.calibrated or self.looks_up)

    def make(
        self,
        vector: AcceptanceVector | None = None,
        profile: HardwareProfile | None = None,
        *,
        planned: TokenTree | None = None,
        **bounds: int,
    ) -> GrowingTree:
        arguments: dict[str, Any] = dict(bounds)
        if self.looks_up:
            arguments["index"] = import_module(".text_index", __package__).TextIndex()
        if not self.budgeted:
            arguments["profile"] = profile
        if self.calibrated:
            if vector is None:
                raise ValueError(f"{self.title} trees: found no acceptance vector, expected one with a calibration")
            if planned is None and profile is not None:
                planned = plan_tree(vector, profile)
            arguments |= {"calibration": vector.calibration, "holds_for": vector.holds_for, "planned": planned}
        return getattr(import_module(".policies", __package__), self.policy)(**arguments)


DYNAMIC_KINDS = {
    "specexec": GrowingTreeKind(title="SpecExec", words="SpecExec's trees", policy="SpecExecTree"),
    "adaptive": GrowingTreeKind(title="Adaptive", words="adaptive trees", policy="AdaptiveTree", calibrated=True),
    "lookup": GrowingTreeKind(
        title="Lookup",
        words="trees from text already seen",
        policy="LookupTree",
        looks_up=True,
        drafted=False,
    ),
    "hybrid": GrowingTreeKind(
        title="Hybrid",
        words="trees from text already seen and the draft",
        policy="HybridTree",
        calibrated=True,
        looks_up=True,
    ),
}

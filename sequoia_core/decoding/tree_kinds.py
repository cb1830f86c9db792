"""The kinds of dynamic trees, all provided by optional packages. A dynamic tree is chosen anew in every step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

from ..files.extras import provided
from ..planning.profile import HardwareProfile

if TYPE_CHECKING:
    from ..acceptance.vector import AcceptanceVector
    from ..trees.tree import TokenTree
    from .tree_policy import DynamicTree


class TreeKind(Protocol):
    """One kind of dynamic tree.

    Attributes:
        title, words: its name and description, for display.
        calibrated: whether it uses an acceptance vector's calibration and a profile's costs.
        looks_up: whether its trees contain tokens found in earlier text.
        drafted: whether it needs a draft model.
        budgeted: whether its trees have a given size and depth, rather than those that decode fastest.
    """

    @property
    def title(self) -> str: ...
    @property
    def words(self) -> str: ...
    @property
    def calibrated(self) -> bool: ...
    @property
    def looks_up(self) -> bool: ...
    @property
    def drafted(self) -> bool: ...
    @property
    def budgeted(self) -> bool: ...

    def make(
        self,
        vector: AcceptanceVector | None = None,
        profile: HardwareProfile | None = None,
        *,
        planned: TokenTree | None = None,
        **bounds: int,
    ) -> DynamicTree:
        """Return a policy, with an empty index if it looks up text; `planned` is a tree from `plan_tree`."""
        ...


TREE_KINDS: Mapping[str, TreeKind] = {
    name: kind for kinds in provided("tree_kinds") for name, kind in kinds.items()
}  # keyed by the name used in options


def find_target_profile(
    profiles: Iterable[HardwareProfile], *, target: str, dtype: str, offload: str | None
) -> HardwareProfile | None:
    """Return the first profile of this target, with any draft and device; None if there is none."""
    for profile in profiles:
        any_other = {"draft": profile.meta.get("draft", ""), "device": profile.device}
        if not profile.differences(target=target, dtype=dtype, offload=offload, **any_other):
            return profile
    return None

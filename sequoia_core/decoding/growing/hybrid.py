"""The policy by which the draft model and text already seen propose for the same tree."""

from __future__ import annotations

from dataclasses import dataclass, field

from .growing_tree import CalibratedTree
from .recipes import RECIPES
from .text_index import TextIndex


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridTree(CalibratedTree):
    """The policy by which the draft model and text already seen propose for the same tree.

    Args:
        max_size: None for 64, for 256 where weights stream in; no more than was profiled.
        max_depth: None for 16, and for 24 where weights stream in.
        recipe: "topk" adds the draft's most likely tokens to those looked up, verified by the top-k rule; "in_turn"
            draws from what the draft's row has besides the looked-up tokens, verified by Sequoia's rule; "static" looks
            nothing up and uses the best planned tree at every step. "auto" becomes "topk" at temperature 0, otherwise
            the one whose drafted part alone has the highest expected speed (without a profile, tokens) by the
            calibration; "static" unless that is ahead by more than such expectations promise too much.

    Attributes:
        expected: recipe -> what its drafted part alone is expected to do, where that was asked.
    """

    recipes, usual_depth, grown_gain = {"topk": RECIPES["deterministic"], "in_turn": RECIPES["sampled"]}, 16, 1.03

    index: TextIndex = field(kw_only=False)

    def choose(self) -> None:
        if self.profile is not None:
            self.set(max_size=min(self.max_size, self.profile.max_size))
        if self.recipe == "auto" and self.calibration.temperature == 0.0:
            self.set(recipe="topk")
        CalibratedTree.choose(self)

    @property
    def asked(self) -> tuple[str, ...]:
        return {"auto": tuple(self.recipes), "in_turn": ("in_turn",)}.get(self.recipe, ())

    @property
    def max_children(self) -> int:
        return 2 * self.branch  # looked-up ones and the draft's

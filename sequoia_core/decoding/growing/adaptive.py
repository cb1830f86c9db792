"""Trees that follow the draft's confidence and this machine's costs, by a profile, not a clock.

Related: SpecExec 2406.02532, EAGLE-2 2406.16858, and for other drafters BASTION 2605.29727, CaDDTree 2606.01813, CAST
2510.26577, Yggdrasil.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..verifiers import VERIFIERS, same_draft_sampling
from .growing_tree import CalibratedTree
from .recipes import RECIPES


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveTree(CalibratedTree):
    """The policy that drafts, at every step, the nodes whose expected tokens outweigh their cost.

    Args:
        max_size: where weights stream in, no more than the best planned tree has.
        max_depth: None for 12, and for 24 where weights stream in, since drafting overlaps with reading.
        recipe: "deterministic" takes the draft's most likely tokens and prunes; "sampled" draws children without
            replacement and decides before each draw. "auto" is "static" unless another is expected to be a tenth
            faster by the calibration (at all faster where weights stream in).
    """

    recipes, usual_depth, streams_planned = RECIPES, 12, True

    @property
    def verifiers(self) -> tuple[str, ...]:
        return same_draft_sampling(self.rules.verifier) if self.fixed is None else tuple(VERIFIERS)

    @property
    def start(self) -> tuple[float, float]:
        known = self.expected[self.recipe]
        return known.tokens_per_step, known.controller.theta

"""Grows the same trees as `plain_growing` in compiled code; if possible, one call also runs the draft's passes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from sequoia_core.acceptance.calibration import BIN_CENTRES, MASS_EDGES
from sequoia_core.decoding.drafting import DraftRun, first_pass_inputs
from sequoia_core.decoding.plan import TreePlan
from sequoia_core.decoding.sampling import require_finite, sample_without_replacement, take_most_likely
from sequoia_core.decoding.verifiers import DraftSampling
from sequoia_core.files.extras import provided
from sequoia_core.trees.tree import TokenTree

from .expansion import Nodes, TreeBounds
from .running_lookup import COMBINED_WEIGHTS, DRAFT_ONLY_WEIGHTS, MAX_TOTAL_LOOKUP_CHANCE
from .text_index import MIN_SCORE
from .top_k_expansion import TopKExpansion

# Whether tokens are drawn, by kind of draft sampling.
SUPPORTED_SAMPLINGS: dict[DraftSampling, bool] = {sample_without_replacement: True, take_most_likely: False}


class CompiledGrower:
    """Grows one tree after another, reusing its buffers throughout a run. Arguments are those of `PlainGrower`."""

    def __init__(self, run: DraftRun, bounds: TreeBounds) -> None:
        self.run = run
        self.session = run.session
        self.bounds = bounds
        self._compiled: Any = next((module for module in provided("tree_expansion") if module.works()), None)
        self._reads_logits = self._compiled is not None
        # Logits and generator are on the draft's device.
        if self.session is not None:
            self._reads_logits &= self.session.logits_dtype == torch.float32 and run.generator.device.type == "cpu"
        self._builder: Any = None
        self._call: Any = None

    @property
    def rows(self) -> torch.Tensor | None:
        return None if self._builder is None else self._builder.rows

    @property
    def first_rows(self) -> torch.Tensor | None:
        return None if self._builder is None else self._builder.first_rows

    def supports(self, expansion: TopKExpansion) -> bool:
        """Return whether compiled code implements the expansion policy and can read the session's logits."""
        can_sample = self.run.draft_sampling in SUPPORTED_SAMPLINGS
        return self._reads_logits and expansion.compiled and (can_sample or not expansion.draws)

    def grow(self, expansion: TopKExpansion, sequence: Sequence[int]) -> tuple[TreePlan, Nodes, list[int]]:
        builder = self._begin(expansion, sequence)
        session: Any = self.session
        one_call = isinstance(session, self._compiled.CompiledSession) and expansion.bounds.max_depth > 0
        if one_call and not (expansion.look_up is not None and session.parents_first):
            widths = require_finite(self._grow_in_one_call(builder, expansion, session, sequence), "draft")
        else:
            widths = self._grow_pass_by_pass(builder, sequence)
        nodes = Nodes(*builder.prune())
        tree = TokenTree.from_valid_parents(nodes.parents.astype(np.int32))
        firsts, counts, mask = builder.walk_arrays(tree.size)
        plan = TreePlan(tree, depths=nodes.depths, child_counts=counts, first_children=firsts, tree_mask=mask)
        return plan, nodes, widths

    def _grow_in_one_call(
        self, builder: Any, expansion: TopKExpansion, session: Any, sequence: Sequence[int]
    ) -> list[int] | None:
        if self._call is None:
            self._call = self._compiled.GrowCall(session, builder, max_frontiers=self.bounds.max_depth)
        draws = expansion.draws and SUPPORTED_SAMPLINGS[self.run.draft_sampling]
        return self._call.grow(sequence[session.length :], self.run.generator if draws else None)

    def _grow_pass_by_pass(self, builder: Any, sequence: Sequence[int]) -> list[int]:
        widths: list[int] = []
        while len(widths) < self.bounds.max_depth and (width := builder.choose_frontier()):
            assert self.session is not None, "without a draft, the frontier is always empty"
            request = builder.pass_inputs() if widths else first_pass_inputs(self.session, sequence)
            ranks = require_finite(builder.read_logits(self.session.forward(*request, keep=width)), "draft")
            if ranks:
                builder.draw_children(ranks, self.run.generator)
            widths.append(width)
        return widths

    def _begin(self, expansion: TopKExpansion, sequence: Sequence[int]) -> Any:
        """Return the tree builder, set up with this step's rules and initial nodes."""
        bounds = expansion.bounds
        chances = expansion.chances
        sampling = self.run.sampling
        if self._builder is None:
            self._builder = self._compiled.TreeBuilder(
                max_size=bounds.max_size,
                beam=bounds.beam,
                branch=bounds.branch,
                most_read=1 if self.session is None else self.bounds.max_read,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
            )
        self._builder.begin(
            sequence[-1],
            root_position=len(sequence) - 1,
            max_depth=bounds.max_depth,
            temperature=sampling.temperature,
            sampled=expansion.draws,
            draws=SUPPORTED_SAMPLINGS.get(self.run.draft_sampling, False),
            tables=None if chances.values is None else (BIN_CENTRES, chances.values, MASS_EDGES),
            gain=chances.gain,
            threshold=expansion.threshold,
            expected=expansion.expected,
            token_costs=expansion.token_costs,
        )
        if expansion.look_up is not None:
            self._builder.look_up(
                expansion.look_up.addresses,
                least_score=MIN_SCORE,
                max_total=MAX_TOTAL_LOOKUP_CHANCE,
                combined=COMBINED_WEIGHTS,
                draft_only=DRAFT_ONLY_WEIGHTS,
            )
        return self._builder

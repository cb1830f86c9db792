"""Grows trees by compiled code, equal to `plain_growing`, where it can in one call with the draft's passes."""

from collections.abc import Sequence

import numpy as np
import torch

from ...design.calibration import CENTRES, MASS_EDGES
from ...design.tree import TokenTree
from ...models.heads.features import GivenFeatures
from ...native import sampling_ops, tree_expansion
from ...native.drafting_calls import GrowCall
from ...native.llama_x86 import CompiledSession
from ..drafting import DraftRun, unseen_tokens
from ..plan import TreePlan
from ..sampling import finite, sample_without_replacement, take_most_likely
from ..verifiers import DraftSampling
from . import running_lookup
from .expansion import Nodes, TreeBounds
from .text_index import LEAST_SCORE
from .top_k_expansion import TopKExpansion

# -> whether tokens are drawn
DRAFT_SAMPLINGS: dict[DraftSampling, bool] = {sample_without_replacement: True, take_most_likely: False}


class CompiledGrower:
    """Grows one tree after the other, with the buffers of a whole run; arguments as for `PlainGrower`."""

    def __init__(self, run: DraftRun, bounds: TreeBounds) -> None:
        self.run, self.session, self.bounds = run, run.session, bounds
        self._reads = sampling_ops.compiled() is not None and tree_expansion.compiled() is not None
        if self.session is not None:  # the generator is where the draft is
            self._reads &= self.session.logits_dtype == torch.float32 and run.generator.device.type == "cpu"
        self._shaping: tree_expansion.Shaping | None = None
        self._call: GrowCall | None = None

    @property
    def rows(self) -> torch.Tensor | None:
        return None if self._shaping is None else self._shaping.rows

    @property
    def first_rows(self) -> torch.Tensor | None:
        return None if self._shaping is None else self._shaping.first_rows

    def supports(self, expansion: TopKExpansion) -> bool:
        """Whether compiled code knows such an expansion policy, and reads the session's logits."""
        known = self.run.draft_sampling in DRAFT_SAMPLINGS
        return self._reads and expansion.compiled and (known or not expansion.draws)

    def grow(self, expansion: TopKExpansion, sequence: Sequence[int]) -> tuple[TreePlan, Nodes, list[int]]:
        shaping = self._begun(expansion, sequence)
        in_turn = expansion.look_up is not None and isinstance(self.session, GivenFeatures)  # parents, then children
        if isinstance(self.session, CompiledSession) and expansion.bounds.max_depth and not in_turn:
            widths = finite(self._in_one_call(shaping, expansion, self.session, sequence), "draft")
        else:
            widths = self._pass_by_pass(shaping, sequence)
        nodes = Nodes(*shaping.kept())
        tree = TokenTree.unchecked(nodes.parents.astype(np.int32))
        firsts, counts, mask = shaping.description(tree.size)
        plan = TreePlan(tree, depths=nodes.depths, child_counts=counts, first_children=firsts, tree_mask=mask)
        return plan, nodes, widths

    def _in_one_call(
        self,
        shaping: tree_expansion.Shaping,
        expansion: TopKExpansion,
        session: CompiledSession,
        sequence: Sequence[int],
    ) -> list[int] | None:
        if self._call is None:
            self._call = GrowCall(session, shaping, most_frontiers=self.bounds.max_depth)
        draws = expansion.draws and DRAFT_SAMPLINGS[self.run.draft_sampling]
        return self._call.grow(sequence[session.length :], self.run.generator if draws else None)

    def _pass_by_pass(self, shaping: tree_expansion.Shaping, sequence: Sequence[int]) -> list[int]:
        widths: list[int] = []
        while len(widths) < self.bounds.max_depth and (width := shaping.frontier()):
            assert self.session is not None, "nothing is read where trees are looked up alone"
            request = shaping.request() if widths else unseen_tokens(self.session, sequence)
            ranks = finite(shaping.read(self.session.forward(*request, keep=width)), "draft")
            if ranks:
                shaping.draw(ranks, self.run.generator)
            widths.append(width)
        return widths

    def _begun(self, expansion: TopKExpansion, sequence: Sequence[int]) -> tree_expansion.Shaping:
        """Return the buffers with the rules of this step and the root alone."""
        bounds, chances, sampling = expansion.bounds, expansion.chances, self.run.sampling
        if self._shaping is None:
            self._shaping = tree_expansion.Shaping(
                max_size=bounds.max_size, beam=bounds.beam, branch=bounds.branch,
                most_read=1 if self.session is None else self.bounds.most_read,
                top_p=sampling.top_p, top_k=sampling.top_k,
            )  # fmt: skip
        self._shaping.begin(
            sequence[-1], root_position=len(sequence) - 1, max_depth=bounds.max_depth,
            temperature=sampling.temperature, sampled=expansion.draws,
            draws=DRAFT_SAMPLINGS.get(self.run.draft_sampling, False),
            tables=None if chances.values is None else (CENTRES, chances.values, MASS_EDGES), gain=chances.gain,
            threshold=expansion.threshold, expected=expansion.expected, token_costs=expansion.token_costs,
        )  # fmt: skip
        if expansion.look_up is not None:
            self._shaping.look_up(
                expansion.look_up.addresses, least_score=LEAST_SCORE, most_sure=running_lookup.MAX_TOTAL_LOOKUP_CHANCE,
                both=running_lookup.BOTH_WEIGHTS, beside=running_lookup.BESIDE_WEIGHTS,
            )  # fmt: skip
        return self._shaping

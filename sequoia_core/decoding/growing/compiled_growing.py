"""Grows trees by compiled code, equal to `growing.PlainGrower`, where it can in one call with the draft's passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import numpy as np
import torch

from ...design.calibration import CENTRES, MASS_EDGES, ChanceTables
from ...design.tree import TokenTree
from ...models.protocol import Session
from ...native import sampling_ops, tree_expansion
from ...native.drafting_calls import GrowCall
from ...native.llama_x86 import CompiledSession
from ..drafting import unseen_tokens
from ..plan import TreePlan
from ..sampling import SamplingConfig, finite, sample_without_replacement, take_most_likely
from ..tree_policy import TreePolicy
from ..verifiers import DraftSampling
from . import hybrid_expansion
from .expansion import DraftChances, ExpansionPolicy, Nodes, SampledExpansion, TopKExpansion
from .hybrid_expansion import HybridExpansion
from .in_turn_expansion import InTurnExpansion

# -> whether tokens are drawn
DRAFT_SAMPLINGS: dict[DraftSampling, bool] = {sample_without_replacement: True, take_most_likely: False}

Drawing = SampledExpansion | InTurnExpansion  # whether to draw is decided before each draw
CompiledExpansion = TopKExpansion | HybridExpansion | Drawing


class CompiledGrower:
    """Grows one tree after the other, with the buffers of a whole run."""

    def __init__(
        self,
        policy: TreePolicy,
        *,
        draft_sampling: DraftSampling,
        sampling: SamplingConfig,
        generator: torch.Generator,
    ) -> None:
        self.policy, self.draft_sampling, self.sampling = policy, draft_sampling, sampling
        self.generator = generator
        self._shaping: tree_expansion.Shaping | None = None
        self._session: Session | None = None
        self._call: GrowCall | None = None  # for the session that was last grown in

    @property
    def rows(self) -> torch.Tensor | None:
        return None if self._shaping is None else self._shaping.rows

    @property
    def first_rows(self) -> torch.Tensor | None:
        return None if self._shaping is None else self._shaping.first_rows

    def supports(self, expansion: ExpansionPolicy, session: Session) -> bool:
        """Whether compiled code knows such an expansion policy, and reads that session's logits."""
        return (
            isinstance(expansion, CompiledExpansion)
            # not subclasses, which may decide otherwise
            and type(expansion) in get_args(CompiledExpansion)
            and type(expansion.chances) in (DraftChances, ChanceTables)
            and (self.draft_sampling in DRAFT_SAMPLINGS or not isinstance(expansion, Drawing))
            and self._reads(session)
        )

    def _reads(self, session: Session) -> bool:
        """Whether it reads the logits of a session (cached: a run has one session)."""
        if self._session is not session:
            self._session = session
            self._is_read = (
                session.logits_dtype == torch.float32
                and self.generator.device.type == "cpu"  # it is where the draft is
                and sampling_ops.compiled() is not None
                and tree_expansion.compiled() is not None
            )
        return self._is_read

    def grow(
        self, expansion: ExpansionPolicy, session: Session, sequence: Sequence[int]
    ) -> tuple[TreePlan, Nodes, list[int]]:
        assert isinstance(expansion, CompiledExpansion)
        shaping = self._begun(expansion, sequence)
        if isinstance(session, CompiledSession) and expansion.bounds.max_depth:
            widths = finite(self._in_one_call(shaping, expansion, session, sequence), "draft")
        else:
            widths = self._pass_by_pass(shaping, session, sequence)
        nodes = Nodes(*shaping.kept())
        tree = TokenTree.unchecked(nodes.parents.astype(np.int32))
        firsts, counts, mask = shaping.description(tree.size)
        plan = TreePlan(tree, depths=nodes.depths, child_counts=counts, first_children=firsts, tree_mask=mask)
        return plan, nodes, widths

    def _in_one_call(
        self,
        shaping: tree_expansion.Shaping,
        expansion: CompiledExpansion,
        session: CompiledSession,
        sequence: Sequence[int],
    ) -> list[int] | None:
        if self._call is None or self._call.session is not session:
            self._call = GrowCall(session, shaping, most_frontiers=self.policy.max_depth)
        draws = isinstance(expansion, Drawing) and DRAFT_SAMPLINGS[self.draft_sampling]
        return self._call.grow(sequence[session.length :], self.generator if draws else None)

    def _pass_by_pass(self, shaping: tree_expansion.Shaping, session: Session, sequence: Sequence[int]) -> list[int]:
        widths: list[int] = []
        for _ in range(self.policy.max_depth):
            width = shaping.frontier()
            if width == 0:
                break
            request = shaping.request() if widths else unseen_tokens(session, sequence)
            ranks = finite(shaping.read(session.forward(*request, keep=width)), "draft")
            if ranks:
                shaping.draw(ranks, self.generator)
            widths.append(width)
        return widths

    def _begun(self, expansion: CompiledExpansion, sequence: Sequence[int]) -> tree_expansion.Shaping:
        """Return the buffers with the rules of this step and the root alone."""
        bounds, sampled = expansion.bounds, isinstance(expansion, Drawing)
        by_table = expansion.chances if isinstance(expansion.chances, ChanceTables) else None
        if self._shaping is None:
            self._shaping = tree_expansion.Shaping(
                max_size=bounds.max_size, beam=bounds.beam, branch=bounds.branch, most_read=self.policy.max_inner,
                top_p=self.sampling.top_p, top_k=self.sampling.top_k,
            )  # fmt: skip
        self._shaping.begin(
            sequence[-1], root_position=len(sequence) - 1, max_depth=bounds.max_depth,
            temperature=self.sampling.temperature, sampled=sampled,
            draws=DRAFT_SAMPLINGS.get(self.draft_sampling, False),
            tables=None if by_table is None else (CENTRES, by_table.values, MASS_EDGES),
            gain=1.0 if by_table is None else by_table.gain,
            threshold=expansion.threshold if isinstance(expansion, Drawing) else 0.0,
            expected=expansion.expected, token_costs=expansion.token_costs,
        )  # fmt: skip
        if isinstance(expansion, HybridExpansion):
            self._shaping.look_up(
                (*expansion.text.addresses, expansion.columns.address), least_score=hybrid_expansion.LEAST_SCORE,
                most_sure=hybrid_expansion.MAX_TOTAL_LOOKUP_CHANCE, both=hybrid_expansion.BOTH_WEIGHTS,
                beside=hybrid_expansion.BESIDE_WEIGHTS,
            )  # fmt: skip
        return self._shaping

"""Predict lookup and hybrid trees on recorded answers, without the target. S = steps of all answers.

For trees with drawn children, the tokens of a step are estimated by the sum of the nodes' acceptance probabilities,
which was 7 to 13 % less than decoding achieved on the demo pair.
"""

from collections.abc import Sequence
from dataclasses import replace

import sequoia_core.models.short_spins  # noqa: F401  before torch, whose threads read their settings once

# isort: split
import numpy as np
import torch

from sequoia_core.acceptance.conditions import TOPK
from sequoia_core.decoding.drafting import DraftRun, DraftTree, Reach
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.decoding.verifiers import choose_verifier
from sequoia_core.models.protocol import LanguageModel
from sequoia_core.planning.prediction import Prediction, predict_prompts
from sequoia_core.planning.profile import HardwareProfile
from sequoia_core.planning.step_time import padded_widths, step_parts
from sequoia_extras.dynamic_trees.drafter import GrowingDrafter
from sequoia_extras.dynamic_trees.lookup_replay import EncodedRequest
from sequoia_extras.dynamic_trees.policies import HybridTree, LookupTree


def predict_on_texts(
    policy: LookupTree | HybridTree,
    answers: Sequence[EncodedRequest],
    profile: HardwareProfile,
    *,
    draft: LanguageModel | None = None,
    temperature: float = 0.0,
    prompts: int | None = None,
) -> Prediction:
    """Predict decoding with lookup or hybrid trees on text like the recorded answers.

    Args:
        answers: token ids of this target's answers at this temperature. The policy's index is not changed.
        draft: the draft model for hybrid trees; unused for lookup trees.
    """
    if isinstance(policy, HybridTree) and draft is None:
        raise ValueError("draft: found none for hybrid trees, expected their draft model")
    if policy.fixed is not None:
        raise ValueError("policy: found a static tree, expected trees that depend on the text (see `predict`)")
    greedy = temperature == 0.0
    owners: list[int] = []
    # Tokens, nodes, and the number of nodes in each draft pass.
    steps: list[tuple[float, int, Sequence[int]]] = []
    for number, answer in enumerate(answers):
        if len(answer.prompt_ids) and len(answer.token_ids):
            taken = _steps(policy, answer, draft, temperature, seed=number)
            steps += taken
            owners += [number] * len(taken)
    if not steps:
        raise ValueError("found no answers to prompts, expected at least one")
    sizes = np.array([step[1] for step in steps])
    widths = padded_widths([step[2] for step in steps])
    growing = isinstance(policy, HybridTree)
    own = np.unique(owners, return_inverse=True)[1]
    counts = np.bincount(own)

    def parts(times: HardwareProfile) -> np.ndarray:
        each = step_parts(sizes, widths, times, greedy=greedy, growing=growing)
        return np.array([np.bincount(own, part) / counts for part in each])

    tokens = np.bincount(own, [step[0] for step in steps])
    prediction = predict_prompts(tokens, counts, parts, profile, greedy=greedy, prompts=prompts)
    return replace(prediction, replayed=policy.verifiers == (TOPK,))


def _drafter(
    policy: LookupTree | HybridTree, draft: LanguageModel | None, temperature: float, *, capacity: int, seed: int
) -> GrowingDrafter:
    # The target's context is unknown, but the answer fitted into it.
    whole = capacity + policy.max_depth
    session, context = None, 0
    if isinstance(policy, LookupTree):
        policy = replace(policy, temperature=temperature)
    elif draft is not None:
        session, context = draft.open(capacity + policy.max_inner + 1), draft.max_context
    drafted_by = choose_verifier(policy.verifiers[0], greedy=temperature == 0.0).draft_sampling
    generator = torch.Generator().manual_seed(seed)
    reach = Reach(whole, context)
    run = DraftRun(session, policy, drafted_by, SamplingConfig(temperature or 1.0), reach, generator)
    return (GrowingDrafter if policy.verifiers == (TOPK,) else _ExpectedTokensDrafter)(run)


class _ExpectedTokensDrafter(GrowingDrafter):
    """Counts expected tokens, because recorded text does not show which drawn tokens would be accepted."""

    def record_step(self, size: int, tokens: float, accepted: int, expected: float) -> None:
        super().record_step(size, accepted + self.expected - expected, accepted, expected)


def _steps(
    policy: LookupTree | HybridTree,
    answer: EncodedRequest,
    draft: LanguageModel | None,
    temperature: float,
    *,
    seed: int,
) -> list[tuple[float, int, Sequence[int]]]:
    """Return the tokens, nodes and widths of the draft's passes for each step along one answer."""
    text = [*answer.prompt_ids, *answer.token_ids]
    drafter = _drafter(policy, draft, temperature, capacity=len(text) + 1, seed=seed)
    length, generator = len(answer.prompt_ids), np.random.default_rng(seed)
    steps: list[tuple[float, int, Sequence[int]]] = []
    while length < len(text):
        tree = drafter.grow(text[:length])
        path = _path(tree, text[length:])
        tokens: float = len(path)
        committed = len(path)
        if isinstance(drafter, _ExpectedTokensDrafter):
            tokens = drafter.expected
            # Round at random, so that steps begin at the same positions as in a real run.
            committed = max(1, int(tokens + generator.random()))
            path = path[:committed]
        drafter.commit(tree, path)
        steps.append((min(tokens, len(text) - length), tree.tree.size, drafter.widths))
        length += committed
    return steps


def _path(draft: DraftTree, text: Sequence[int]) -> tuple[int, ...]:
    """Return the nodes that match a text, beginning with the root."""
    tokens, node, path = draft.tokens.tolist(), 0, [0]
    for wanted in text:
        node = next((child for child in draft.tree.children(node) if tokens[child] == wanted), -1)
        if node < 0:
            break
        path.append(node)
    return tuple(path)

"""Predictions of lookup and hybrid trees on recorded answers, without the target. S = steps of all answers.

Of trees whose children are drawn, the tokens of a step are the sum of their nodes' chances, which on the demo pair was
7 to 13 % less than what decoding then did.
"""

from collections.abc import Sequence
from dataclasses import replace

import sequoia_core.native.short_spins  # noqa: F401  before torch, whose threads read their settings once

# isort: split
import numpy as np
import torch

from sequoia_core.decoding.drafting import DraftRun, DraftTree, Reach
from sequoia_core.decoding.growing.drafter import GrowingDrafter
from sequoia_core.decoding.growing.policies import HybridTree, LookupTree
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.decoding.verifiers import choose_verifier
from sequoia_core.design.conditions import TOPK
from sequoia_core.design.prediction import Prediction, predict_prompts
from sequoia_core.design.profile import HardwareProfile
from sequoia_core.design.step_time import padded_widths, step_parts
from sequoia_core.models.protocol import LanguageModel
from sequoia_core.studies.lookup_replay import Request


def predict_on_texts(
    policy: LookupTree | HybridTree,
    answers: Sequence[Request],
    profile: HardwareProfile,
    *,
    draft: LanguageModel | None = None,
    temperature: float = 0.0,
    prompts: int | None = None,
) -> Prediction:
    """Predict what decoding with lookup or hybrid trees does on text like some recorded answers.

    Args:
        answers: token ids of this target at that temperature. The policy's index stays as it is.
        draft: the model that hybrid trees draft with; not used for lookup trees.
    """
    if isinstance(policy, HybridTree) and draft is None:
        raise ValueError("draft: found none for hybrid trees, expected the model that they draft with")
    if policy.fixed is not None:
        raise ValueError("policy: found a static tree, expected trees that depend on the text: `predict` is for others")
    greedy = temperature == 0.0
    owners: list[int] = []
    steps: list[tuple[float, int, Sequence[int]]] = []  # tokens, nodes, nodes of each draft pass
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
    whole = capacity + policy.max_depth  # the target's context is not known, and held the answer
    session, context = None, 0
    if isinstance(policy, LookupTree):
        policy = replace(policy, temperature=temperature)
    elif draft is not None:
        session, context = draft.open(capacity + policy.max_inner + 1), draft.max_context
    drafted_by = choose_verifier(policy.verifiers[0], greedy=temperature == 0.0).draft_sampling
    generator = torch.Generator().manual_seed(seed)
    reach = Reach(whole, context)
    run = DraftRun(session, policy, drafted_by, SamplingConfig(temperature or 1.0), reach, generator)
    return (GrowingDrafter if policy.verifiers == (TOPK,) else _Promising)(run)


class _Promising(GrowingDrafter):
    """Counts expected instead of accepted tokens: recorded texts do not say which drawn tokens would be accepted."""

    def follow(self, size: int, tokens: float, accepted: int, expected: float) -> None:
        super().follow(size, accepted + self.expected - expected, accepted, expected)


def _steps(
    policy: LookupTree | HybridTree, answer: Request, draft: LanguageModel | None, temperature: float, *, seed: int
) -> list[tuple[float, int, Sequence[int]]]:
    """Return tokens, nodes and widths of the draft's passes of each step along one answer."""
    text = [*answer.prompt_ids, *answer.token_ids]
    drafter = _drafter(policy, draft, temperature, capacity=len(text) + 1, seed=seed)
    length, generator = len(answer.prompt_ids), np.random.default_rng(seed)
    steps: list[tuple[float, int, Sequence[int]]] = []
    while length < len(text):
        tree = drafter.grow(text[:length])
        path = _path(tree, text[length:])
        tokens: float = len(path)
        committed = len(path)
        if isinstance(drafter, _Promising):
            tokens = drafter.expected
            committed = max(1, int(tokens + generator.random()))  # so that steps begin where those of a run do
            path = path[:committed]
        drafter.commit(tree, path)
        steps.append((min(tokens, len(text) - length), tree.tree.size, drafter.widths))
        length += committed
    return steps


def _path(draft: DraftTree, text: Sequence[int]) -> tuple[int, ...]:
    """Return the nodes that a text passes through, the root first."""
    tokens, node, path = draft.tokens.tolist(), 0, [0]
    for wanted in text:
        node = next((child for child in draft.tree.children(node) if tokens[child] == wanted), -1)
        if node < 0:
            break
        path.append(node)
    return tuple(path)

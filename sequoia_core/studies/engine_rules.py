"""What chains yield under the rule by which an engine accepts a drafted token, on text that the target writes.

"match" is the rule of engines that draft greedily, sample from the target and accept what is equal: chance P at Q's
likeliest token. Accepting such a draft with probability p, as vLLM says it, is the same. "match sampled" is that with
a drawn draft: sum of P · Q. "rejection" accepts a drawn token with probability min(1, p / q): sum of min(P, Q).
Shapes: N = positions, V = vocabulary, R = rules; P = target row, Q = draft row.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import torch

from ..decoding.sampling import SamplingConfig, probabilities
from ..design.acceptance import AcceptanceVector
from ..design.chain_acceptance import MATCH, REJECTION
from ..models.protocol import LanguageModel
from .measure_acceptance import pair_settings, vector_from_prompts
from .prompt_loop import Progress, Report, one_by_one, require_a_prompt, room_after
from .ranks_along_text import Question, ranks_on_target_text

RULES = (MATCH, "match sampled", REJECTION, "rejection, draft cut")  # the last draws from Q cut by the same top-p


def rule_acceptance(target: torch.Tensor, draft: torch.Tensor) -> torch.Tensor:
    """Return the chance that a drafted token is accepted by each of the first three rules, float64 [N, 3].

    Args:
        target, draft: float [N, V], rows P and Q.
    """
    likeliest = target.gather(1, draft.argmax(1, keepdim=True))[:, 0]
    sums = (target * draft).sum(1), torch.minimum(target, draft).sum(1)
    return torch.stack([likeliest, *sums], 1).double()


def accepted_given_token(
    target: torch.Tensor, draft: torch.Tensor, tokens: torch.Tensor, uniform: torch.Tensor
) -> torch.Tensor:
    """Draw whether the draft was accepted, given the token that came out, by the first three rules, bool [N, 3].

    The token's law is P whatever the rule, so a text that the target wrote serves all. Rejection yields it by accepting
    a draft with probability min(p, q), of p in all.

    Args:
        tokens: int64 [N], which P gives some probability; uniform: float64 [N], from 0 to 1.
    """
    p, q = (rows.gather(1, tokens[:, None])[:, 0].double() for rows in (target, draft))
    return torch.stack([draft.argmax(1) == tokens, uniform < q, uniform * p < q], 1)


def measure_rules(
    prompts: Sequence[Sequence[int]],
    *,
    target: LanguageModel,
    draft: LanguageModel,
    sampling: SamplingConfig,
    max_new_tokens: int = 128,
    seed: int = 0,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> dict[str, AcceptanceVector]:
    """Return for each rule a vector of rank 1 with its outcome at every position, all on the same text.

    Args:
        prompts: token ids, one list per prompt; sampling: of the target, temperature above 0.
    """
    if sampling.greedy:
        raise ValueError("temperature: found 0, expected more: there all rules accept the target's likeliest token")
    room_after(prompts, (target, draft), max_new_tokens)
    cancel = cancel or threading.Event()

    def measure(number: int, report: Report) -> np.ndarray | None:
        parts = ranks_on_target_text(
            prompts[number], target=target, draft=draft, sampling=sampling, questions={"rules": _question(sampling)},
            max_new_tokens=max_new_tokens, seed=seed, number=number, cancel=cancel, report=report,
        )  # fmt: skip
        return None if parts is None else parts[0]["rules"]

    found = list(one_by_one(len(prompts), measure, progress=progress, cancel=cancel))  # [N, 2, R] of each prompt
    require_a_prompt(found, "acceptance by rule")
    meta = pair_settings(target, draft) | {"temperature": sampling.temperature, "top_p": sampling.top_p}
    return {
        rule: vector_from_prompts(
            [part[:, 0, place].sum(keepdims=True) for part in found], [len(part) for part in found],
            meta=meta | {"rule": rule}, ranks=[part[:, 1, place].astype(np.int16) for part in found],
        )
        for place, rule in enumerate(RULES)
    }  # fmt: skip


def _question(sampling: SamplingConfig) -> Question:
    """Ask for the chance of acceptance and for its outcome, by each rule: answers are float64 [N, 2, R]."""

    def ask(target: torch.Tensor, draft: torch.Tensor, tokens: torch.Tensor, draws: torch.Generator) -> torch.Tensor:
        cut = SamplingConfig(1.0, top_p=sampling.top_p)
        rows = [draft, draft if sampling.top_p == 1 else probabilities(draft.clamp_min(1e-30).log(), cut)]
        uniform = torch.rand(len(tokens), dtype=torch.float64, device=draft.device, generator=draws)
        chances = torch.cat([rule_acceptance(target, row) for row in rows], 1)
        drawn = torch.cat([accepted_given_token(target, row, tokens, uniform) for row in rows], 1)
        return torch.stack([chances, drawn.double()], 1)[:, :, [0, 1, 2, 5]]

    return ask

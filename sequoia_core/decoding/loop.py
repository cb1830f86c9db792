"""The decode loop: draft a tree, verify it in one target pass, walk it, and commit the accepted path."""

import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..acceptance.conditions import Conditions
from ..models.finite_weights import overflow_advice
from ..models.language_model import ModelPair
from ..models.protocol import Session, prefill
from ..models.threads import release_threads, use_free_cores
from ..trees.tree import TokenTree
from .assemble import assemble, store_run
from .drafting import Drafter, DraftTree
from .judging import RowJudge
from .record import PROBABILITIES, TOKENS_ONLY, DecodeStep, StepDetails, node_outcomes
from .sampling import SamplingConfig
from .tree_policy import ROOT_ONLY, TreePolicy, as_policy
from .verifiers import Verifier, choose_verifier
from .walk import Walk


def decode(
    prompt_ids: Sequence[int],
    pair: ModelPair,
    *,
    tree: TokenTree | TreePolicy,
    sampling: SamplingConfig | None = None,
    max_new_tokens: int = 128,
    verifier: str | None = None,
    generator: torch.Generator | None = None,
    cancel: threading.Event | None = None,
    details: StepDetails = PROBABILITIES,
) -> Iterator[DecodeStep]:
    """Decode with token trees (paper §3, Algorithm 2); the output follows the warped target distribution exactly.

    The target's distribution covers its first `vocab_size` tokens: padding logits are dropped before any softmax.

    Args:
        prompt_ids: int [L], at least one token.
        pair: the models; the draft may be None if the policy does not need one. Beyond the draft's context, the target
            continues without it, with a warning.
        tree: a fixed tree, or a policy that chooses one per step.
        sampling: settings that warp the target's distribution; the draft is sampled at the same temperature. None
            decodes greedily.
        verifier: "sequoia", "specinfer", "topk" or "traversal"; None for the policy's default, which is "sequoia" for a
            tree. At temperature 0, all of them compare tokens with the argmax.
        generator: the only source of randomness; None creates one with a random seed. On the same machine, a seed
            always gives the same text. Compiled sampling and PyTorch sampling consume the generator differently, so the
            texts differ, but their distribution does not.
        cancel: event checked between phases, and after every 512 tokens of the prompt; a cancelled run ends without
            another record.
        details: what to record besides tokens; `TOKENS_ONLY` is fastest.

    Returns:
        An iterator over `DecodeStep` records, which stops at EOS, after exactly `max_new_tokens`, or at the target's
        context limit. Warns if the trees were planned for a different pair or different sampling settings.

    Raises:
        FloatingPointError: if a model returns non-finite logits during the run; the message names the step.
    """
    sampling = sampling or SamplingConfig()
    prompt = [int(token) for token in prompt_ids]
    policy = as_policy(tree)
    _check_request(prompt, pair, policy, max_new_tokens=max_new_tokens)
    chosen = _allowed_verifier(policy, verifier, sampling)
    if generator is None:
        generator = torch.Generator()
        generator.seed()
    end = End.at_limits(pair, len(prompt) + max_new_tokens)
    if pair.draft is not None:
        _warn_if_conditions_differ(policy, pair.target.name, pair.draft.name, sampling)
        if policy.needs_draft and pair.draft.max_context < end.length:
            warnings.warn(short_draft(pair.draft.max_context, end.length), stacklevel=2)
    cancel = cancel or threading.Event()
    return _steps(prompt, pair, policy, chosen, sampling, end, generator, cancel, details)


def autoregressive(
    prompt_ids: Sequence[int],
    pair: ModelPair,
    *,
    sampling: SamplingConfig | None = None,
    max_new_tokens: int = 128,
    generator: torch.Generator | None = None,
    cancel: threading.Event | None = None,
) -> Iterator[DecodeStep]:
    """Decode one token per target pass, without the draft; this baseline runs the same code as `decode`."""
    return decode(
        prompt_ids,
        ModelPair(pair.target, None, pair.tokenizer),
        tree=ROOT_ONLY,
        sampling=sampling,
        max_new_tokens=max_new_tokens,
        generator=generator,
        cancel=cancel,
    )


def _check_request(prompt: Sequence[int], pair: ModelPair, policy: TreePolicy, *, max_new_tokens: int) -> None:
    target = pair.target
    draft = pair.draft
    if not prompt:
        raise ValueError("prompt: found no tokens, expected at least one")
    outside = next((token for token in prompt if not 0 <= token < target.vocab_size), None)
    if outside is not None:
        raise ValueError(f"prompt: found token {outside}, expected ids from 0 to {target.vocab_size - 1}")
    if len(prompt) >= target.max_context:
        raise ValueError(
            f"prompt: found {len(prompt)} tokens, expected at most {target.max_context - 1}: the target's context of "
            f"{target.max_context}, less one for a new token"
        )
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens: found {max_new_tokens}, expected at least 1")
    if policy.needs_draft and draft is None:
        raise ValueError(f"draft: found none for trees of up to {policy.max_size} nodes, expected a draft model")
    if draft is not None and draft.vocab_size != target.vocab_size:
        raise ValueError(
            f"draft: found a vocabulary of {draft.vocab_size}, expected {target.vocab_size}, like the target's "
            "(load_pair truncates both to the tokenizer's vocabulary)"
        )
    if policy.largest_token >= target.vocab_size:
        raise ValueError(
            f"index: found token {policy.largest_token} in its texts, expected ids from 0 to {target.vocab_size - 1}: "
            "encode the texts with this model's tokenizer"
        )
    if policy.max_children > target.vocab_size:
        raise ValueError(
            f"tree: found {policy.max_children} children of one node, expected at most {target.vocab_size} "
            "(the vocabulary size)"
        )


def _allowed_verifier(policy: TreePolicy, name: str | None, sampling: SamplingConfig) -> Verifier:
    chosen = choose_verifier(policy.verifiers[0] if name is None else name, greedy=sampling.greedy)
    if not sampling.greedy and chosen.name not in policy.verifiers:
        raise ValueError(
            f"verifier: found {chosen.name!r}, expected {' or '.join(policy.verifiers)}: no other verifier is exact "
            "for these trees"
        )
    return chosen


def short_draft(context: int, length: int) -> str:
    """Describe what happens when the text outgrows the draft's context."""
    return (
        f"draft: found a context of {context} tokens, expected {length} for the prompt and the new tokens: beyond "
        f"{context} the target continues without the draft"
    )


def _warn_if_conditions_differ(policy: TreePolicy, target: str, draft: str, sampling: SamplingConfig) -> None:
    wanted = Conditions(target, draft, sampling.temperature, sampling.top_p, policy.verifiers[0], top_k=sampling.top_k)
    if reasons := policy.differences(wanted):
        warnings.warn(
            f"tree: found one measured for {'; '.join(reasons)}: the output stays exact, but decoding may be slower",
            stacklevel=3,
        )


@dataclass(frozen=True, slots=True)
class End:
    """The conditions that end a run: an EOS token, or a maximum length, which is reported as `reason`."""

    eos_ids: frozenset[int]
    length: int
    reason: str

    @classmethod
    def at_limits(cls, pair: ModelPair, length: int) -> "End":
        """Return the end of a run limited to `length` tokens, including the prompt, and to the target's context."""
        context = pair.target.max_context
        return cls(pair.target.eos_ids, min(context, length), "length" if length <= context else "context")

    def cut(self, sequence: Sequence[int], new: list[int]) -> tuple[list[int], str | None]:
        """Return the tokens to append to a sequence, and why the run ends there (None if it continues)."""
        finished = None
        last = next((i for i, token in enumerate(new) if token in self.eos_ids), None)
        if last is not None:
            new = new[: last + 1]
            finished = "eos"
        room = self.length - len(sequence)
        if len(new) > room or (len(new) == room and finished is None):
            new = new[:room]
            finished = self.reason
        return new, finished


def _steps(
    sequence: list[int],
    pair: ModelPair,
    policy: TreePolicy,
    verifier: Verifier,
    sampling: SamplingConfig,
    end: End,
    generator: torch.Generator,
    cancel: threading.Event,
    details: StepDetails,
) -> Iterator[DecodeStep]:
    with release_threads():
        parts = assemble(pair, policy, verifier=verifier, sampling=sampling, capacity=end.length, generator=generator)
        drafter, judge, sessions, _ = parts
        for session, model in zip(sessions, pair.models, strict=False):
            # The prompt's last token is the first root.
            fits = len(sequence) <= model.max_context
            if fits and not prefill(session, sequence[:-1], reader=sessions[-1], cancel=cancel):
                return
        index = 0
        finished = None
        while finished is None and not cancel.is_set():
            step = take_step(
                drafter, judge, sequence, end, sessions=sessions, index=index, cancel=cancel, details=details
            )
            if step is None:
                return
            finished = step.finished
            try:
                yield step
            except GeneratorExit:  # the caller stopped iterating
                store_run(parts)
                raise
            index += 1
        store_run(parts)


@use_free_cores()
def take_step(
    drafter: Drafter,
    judge: RowJudge,
    sequence: list[int],
    end: End,
    *,
    sessions: Sequence[Session],
    index: int = 0,
    cancel: threading.Event,
    details: StepDetails = TOKENS_ONLY,
) -> DecodeStep | None:
    """Draft, score, walk and commit once, and append the new tokens to `sequence`.

    Returns None and appends nothing if cancelled between phases. A FloatingPointError for non-finite logits names the
    step. `sessions` contains the judge's and the drafter's sessions.
    """
    waited = sum(session.read_wait_sec for session in sessions)
    try:
        started = time.perf_counter()
        draft = drafter.grow(sequence)
        drafter.wait()
        drafted = time.perf_counter()
        if cancel.is_set():
            return None
        judge.score(draft)
        judge.wait()
        verified = time.perf_counter()
        if cancel.is_set():
            return None
        walk = judge.walk(draft)
        tokens = draft.tokens.tolist()
        yielded = [*(tokens[node] for node in walk.path[1:]), walk.bonus_token]
        new, finished = end.cut(sequence, yielded)
        walk = walk.up_to(draft.tree, len(new))
        walked = time.perf_counter()
        described = _describe_step(judge, draft, walk, tokens, details)
    except FloatingPointError as error:
        advice = overflow_advice(session.logits_dtype for session in sessions)
        raise FloatingPointError(f"step {index}: {error}{advice}") from error
    explained = time.perf_counter()  # display-only work is not timed
    if finished is None:
        judge.commit(draft, walk.path)
        drafter.commit(draft, walk.path)
    sequence.extend(new)
    committed = time.perf_counter()
    return DecodeStep(
        index=index,
        bonus_token=walk.bonus_token if len(new) == len(yielded) else None,
        new_tokens=new,
        draft_sec=drafted - started,
        verify_sec=verified - drafted,
        walk_sec=walked - verified,
        commit_sec=committed - explained,
        finished=finished,
        cut_by_length=0 if finished in (None, "eos") else len(yielded) - len(new),
        read_wait_sec=sum(session.read_wait_sec for session in sessions) - waited,
        **described,
    )


def _describe_step(
    judge: RowJudge, draft: DraftTree, walk: Walk, tokens: list[int], details: StepDetails
) -> dict[str, Any]:
    """Return the fields of `DecodeStep` that describe the tree and the walk, including the requested details."""
    return {
        "tree": draft.tree,
        "tokens": tuple(tokens),
        "outcomes": node_outcomes(len(tokens), walk),
        "accepted_path": walk.path,
        "trials": walk.trials,
        "draft_widths": tuple(draft.widths),
        "draft_probs": tuple(draft.probs.tolist()) if details.probabilities else (),
        "target_probs": judge.target_probs(draft) if details.probabilities else (),
        "path_rows": judge.path_rows(draft, walk, details.likely) if details.likely else (),
        "marginal_gains": draft.marginal_gains(details.left_out) if details.left_out and draft.marginal_gains else None,
        "occurrences": draft.occurrences() if details.likely else (),
    }

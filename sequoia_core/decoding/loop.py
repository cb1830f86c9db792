"""The decode loop: draft a tree, verify it in one target pass, walk it, commit the accepted path."""

import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from ..design.conditions import Conditions
from ..design.tree import TokenTree
from ..models.finite_weights import overflow_words
from ..models.language_model import ModelPair
from ..models.protocol import Session, prefill
from ..native.threads import release_threads, use_free_cores
from .assemble import Parts, assemble, keep
from .drafting import Drafter
from .judging import RowJudge
from .record import PROBABILITIES, TOKENS_ONLY, DecodeStep, StepDetails, outcomes_of
from .sampling import SamplingConfig
from .tree_policy import ROOT_ONLY, TreePolicy, policy_of
from .verifiers import choose_verifier


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
    """Decode with token trees (paper §3, Algorithm 2); the output follows the warped target exactly.

    The target's distribution is the one over its `vocab_size` tokens: logits of padding are cut before any softmax.

    Args:
        prompt_ids: int [L], at least one token.
        pair: its draft may be None if the policy needs no draft model. Where the draft's context is full the target
            goes on without it, with a warning.
        tree: a fixed tree, or a policy that chooses one per step.
        sampling: warps the target; the draft is sampled at the same temperature. None is greedy.
        verifier: "sequoia", "specinfer", "topk" or "traversal"; None is the policy's own, "sequoia" for a tree. At
            temperature 0 all of them compare with the argmax.
        generator: the only source of randomness; None seeds a fresh one. Equal seeds give equal text on one machine.
            Compiled and PyTorch sampling consume the generator differently: same distribution, other text.
        cancel: looked at between phases, and while the prompt is read after every 512 tokens; a cancelled run ends
            without a further record.
        details: what steps record beyond what decoding needs; `TOKENS_ONLY` is the fastest.

    Returns:
        An iterator of `DecodeStep`; it stops at EOS, at exactly `max_new_tokens`, or at the target's context limit.
        Where the trees were measured for another pair or other sampling, a warning says so first.

    Raises:
        FloatingPointError: during the run, naming the step, when a model returns logits that are not finite.
    """
    sampling = sampling or SamplingConfig()
    prompt = [int(token) for token in prompt_ids]
    context, policy = pair.target.max_context, policy_of(tree)
    _check_request(prompt, pair, policy, max_new_tokens=max_new_tokens)
    chosen = choose_verifier(policy.verifiers[0] if verifier is None else verifier, greedy=sampling.greedy)
    if not sampling.greedy and chosen.name not in policy.verifiers:
        raise ValueError(
            f"verifier: found {chosen.name!r}, expected {' or '.join(policy.verifiers)}, which alone are exact for "
            "these trees"
        )
    if generator is None:
        generator = torch.Generator()
        generator.seed()
    end = End(
        eos_ids=pair.target.eos_ids,
        length=min(context, len(prompt) + max_new_tokens),
        reason="length" if len(prompt) + max_new_tokens <= context else "context",
    )
    if pair.draft is not None:
        _warn_of_other_conditions(policy, pair.target.name, pair.draft.name, sampling)
        if policy.needs_draft and pair.draft.max_context < end.length:
            warnings.warn(short_draft(pair.draft.max_context, end.length), stacklevel=2)
    parts = partial(
        assemble, pair, policy, verifier=chosen, sampling=sampling, capacity=end.length, generator=generator
    )
    contexts = [model.max_context for model in pair.models]
    return _steps(prompt, parts, contexts, end, cancel or threading.Event(), details)


def autoregressive(
    prompt_ids: Sequence[int],
    pair: ModelPair,
    *,
    sampling: SamplingConfig | None = None,
    max_new_tokens: int = 128,
    generator: torch.Generator | None = None,
    cancel: threading.Event | None = None,
) -> Iterator[DecodeStep]:
    """Decode one token per target pass, without the draft: the baseline, on the same code path as `decode`."""
    alone = ModelPair(pair.target, None, pair.tokenizer)
    return decode(
        prompt_ids, alone, tree=ROOT_ONLY, sampling=sampling, max_new_tokens=max_new_tokens, generator=generator,
        cancel=cancel,
    )  # fmt: skip


def _check_request(prompt: Sequence[int], pair: ModelPair, policy: TreePolicy, *, max_new_tokens: int) -> None:
    target, draft = pair.target, pair.draft
    if not prompt:
        raise ValueError("prompt: found no tokens, expected at least one")
    outside = next((token for token in prompt if not 0 <= token < target.vocab_size), None)
    if outside is not None:
        raise ValueError(f"prompt: found token {outside}, expected ids from 0 to {target.vocab_size - 1}")
    if len(prompt) >= target.max_context:
        raise ValueError(
            f"prompt: found {len(prompt)} tokens, expected at most {target.max_context - 1}: the target's context of "
            f"{target.max_context} less one to write"
        )
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens: found {max_new_tokens}, expected at least 1")
    if policy.needs_draft and draft is None:
        raise ValueError(f"draft: found none for trees of up to {policy.max_size} nodes, expected a draft model")
    if draft is not None and draft.vocab_size != target.vocab_size:
        raise ValueError(
            f"draft: found a vocabulary of {draft.vocab_size}, expected {target.vocab_size} as the target has "
            "(load_pair cuts padding off both)"
        )
    if policy.largest_token >= target.vocab_size:
        raise ValueError(
            f"index: found token {policy.largest_token} in its texts, expected ids from 0 to {target.vocab_size - 1}: "
            "texts of the tokenizer that this model has"
        )
    if policy.max_children > target.vocab_size:
        raise ValueError(
            f"tree: found {policy.max_children} children of one node, expected at most {target.vocab_size} tokens"
        )


def short_draft(context: int, length: int) -> str:
    """Say what happens to a text of so many tokens that a draft's context does not hold."""
    return (
        f"draft: found a context of {context} tokens, expected {length} for the prompt and what follows: beyond "
        f"{context} the target goes on without it"
    )


def _warn_of_other_conditions(policy: TreePolicy, target: str, draft: str, sampling: SamplingConfig) -> None:
    wanted = Conditions(target, draft, sampling.temperature, sampling.top_p, policy.verifiers[0], top_k=sampling.top_k)
    if reasons := policy.differences(wanted):
        warnings.warn(
            f"tree: found one measured for {'; '.join(reasons)}: the text stays exact, but takes longer than it could",
            stacklevel=3,
        )


@dataclass(frozen=True, slots=True)
class End:
    """When a run is over: at one of the model's last tokens, or at a length and the reason for that length."""

    eos_ids: frozenset[int]
    length: int
    reason: str

    def cut(self, sequence: Sequence[int], new: list[int]) -> tuple[list[int], str | None]:
        """Return what may be added to a sequence, and why the run ends there, if it does."""
        finished = None
        last = next((i for i, token in enumerate(new) if token in self.eos_ids), None)
        if last is not None:
            new, finished = new[: last + 1], "eos"
        room = self.length - len(sequence)
        if len(new) > room or (len(new) == room and finished is None):
            new, finished = new[:room], self.reason
        return new, finished


def _steps(
    sequence: list[int],
    choose_parts: Callable[[], Parts],
    contexts: Sequence[int],
    end: End,
    cancel: threading.Event,
    details: StepDetails,
) -> Iterator[DecodeStep]:
    with release_threads():
        drafter, judge, sessions = parts = choose_parts()
        for session, context in zip(sessions, contexts, strict=False):
            # the prompt's last token is the first root
            if len(sequence) <= context and not prefill(session, sequence[:-1], reader=sessions[-1], cancel=cancel):
                return
        index, finished = 0, None
        while finished is None and not cancel.is_set():
            step = take_step(
                drafter, judge, sequence, end, sessions=sessions, index=index, cancel=cancel, details=details
            )
            if step is None:
                return
            finished = step.finished
            try:
                yield step
            except GeneratorExit:  # the caller has enough
                keep(parts)
                raise
            index += 1
        keep(parts)


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
    """Draft, score, walk and commit once; the new tokens are added to `sequence`.

    Returns None when it was cancelled between its phases, and then nothing was added. FloatingPointError names the step
    whose logits are not finite.

    Args:
        sessions: those of the drafter and the judge, asked how long they waited for weights.
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
        target_probs = judge.target_probs(draft) if details.probabilities else ()
        path_rows = judge.path_rows(draft, walk, details.likely) if details.likely else ()
        gains = draft.marginal_gains(details.left_out) if details.left_out and draft.marginal_gains else None
        occurrences = draft.occurrences() if details.likely else ()
    except FloatingPointError as error:
        words = overflow_words(session.logits_dtype for session in sessions)
        raise FloatingPointError(f"step {index}: {error}{words}") from error
    explained = time.perf_counter()  # what is only worked out to be shown counts in no phase
    if finished is None:
        judge.commit(draft, walk.path)
        drafter.commit(draft, walk.path)
    sequence.extend(new)
    committed = time.perf_counter()
    return DecodeStep(
        index=index,
        tree=draft.tree,
        tokens=tuple(tokens),
        outcomes=outcomes_of(len(tokens), walk),
        draft_probs=tuple(draft.probs.tolist()) if details.probabilities else (),
        target_probs=target_probs,
        accepted_path=walk.path,
        bonus_token=walk.bonus_token if len(new) == len(yielded) else None,
        new_tokens=new,
        trials=walk.trials,
        draft_sec=drafted - started,
        verify_sec=verified - drafted,
        walk_sec=walked - verified,
        commit_sec=committed - explained,
        finished=finished,
        cut_by_length=0 if finished in (None, "eos") else len(yielded) - len(new),
        read_wait_sec=sum(session.read_wait_sec for session in sessions) - waited,
        path_rows=path_rows,
        marginal_gains=gains,
        occurrences=occurrences,
        draft_widths=tuple(draft.widths),
    )

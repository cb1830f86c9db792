"""The decode loop: draft a tree, verify it in one target pass, walk it, commit the accepted path.

A generator of one frozen record per step; to the end: `[token for step in decode(...) for token in step.new_tokens]`.
The autoregressive baseline is the same loop with a tree of one node, so both share model, cache, dtype and sampler.
Knows nothing of acceptance vectors, hardware or Streamlit. Shapes: n = tree nodes, V = vocabulary.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from ..design.tree import TokenTree
from ..models import vocabulary_rows as rows
from ..models.prefill import prefill
from ..models.transformers_model import LanguageModel
from .sampling import (
    SamplingConfig,
    chances,
    check_probabilities,
    finite,
    law,
    most_likely,
    probabilities,
    sample_with_replacement,
    sample_without_replacement,
    take_most_likely,
    widened,
)
from .verifiers import (
    Trial,
    Verifier,
    Walk,
    choose_verifier,
    sequoia_rule,
    specinfer_rule,
    topk_rule,
    walk_greedily,
    walk_tree,
)

ROOT_ONLY = TokenTree(np.array([-1]))
FILLS = {  # what a draft can do in one call
    sample_without_replacement: "without replacement",
    sample_with_replacement: "with replacement",
    take_most_likely: "most likely",
}
RULES = {sequoia_rule: "sequoia", specinfer_rule: "specinfer", topk_rule: "topk"}  # what compiled walks know


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """One draft-verify-commit round.

    Attributes:
        index: 0 for the first step.
        tokens: token of every node [n], root first.
        outcomes: per node [n] "accepted", "rejected" or "not reached"; the root counts as accepted.
        draft_probs, target_probs: what each model gave the node's token after its parent [n]; 1 for the root. At
            temperature 0 these are the probabilities at temperature 1, the walk itself goes by argmax. Empty where a
            run was not asked to explain itself.
        accepted_path: node ids, root first.
        bonus_token: sampled by the target after the last accepted node.
        new_tokens: what this step committed: accepted path, then bonus token, cut at EOS and at the wished-for length.
        trials: every decision in order, with its arithmetic.
        draft_sec, verify_sec, walk_sec, commit_sec: wall time of the phases in seconds.
        finished: None, or why the run ends here: "eos", "length" or "context".
    """

    index: int
    tokens: tuple[int, ...]
    outcomes: tuple[str, ...]
    draft_probs: tuple[float, ...]
    target_probs: tuple[float, ...]
    accepted_path: tuple[int, ...]
    bonus_token: int
    new_tokens: list[int]
    trials: tuple[Trial, ...]
    draft_sec: float
    verify_sec: float
    walk_sec: float
    commit_sec: float
    finished: str | None = None

    @property
    def seconds(self) -> float:
        return self.draft_sec + self.verify_sec + self.walk_sec + self.commit_sec


def decode(
    prompt_ids: Sequence[int],
    *,
    target: LanguageModel,
    draft: LanguageModel | None,
    tree: TokenTree,
    sampling: SamplingConfig | None = None,
    max_new_tokens: int = 128,
    verifier: str = "sequoia",
    generator: torch.Generator | None = None,
    cancel: threading.Event | None = None,
    explain: bool = True,
) -> Iterator[DecodeStep]:
    """Decode with a static token tree (paper §3, Algorithm 2); the output follows the warped target exactly.

    The target's distribution is the one over its `vocab_size` tokens: rows of padding are cut before any softmax.

    Args:
        prompt_ids: int [L], at least one token.
        draft: may be None only for a tree of one node.
        sampling: warps the target; the draft is sampled at the same temperature. None is greedy.
        verifier: "sequoia", "specinfer" or "topk"; at temperature 0 all of them compare with the argmax.
        generator: the only source of randomness; None seeds a fresh one.
        cancel: looked at between phases, and while the prompt is read after every 512 tokens; a cancelled run ends
            without a further record.
        explain: also work out what the target gave every node's token, which decoding itself does not need.

    Returns:
        An iterator of `DecodeStep`; it stops at EOS, at exactly `max_new_tokens`, or at the models' context limit.

    Raises:
        ValueError: at once, for a prompt, tree or option that cannot be decoded.
        FloatingPointError: during the run, naming the step, when a model returns logits that are not finite.
    """
    sampling = sampling or SamplingConfig()
    prompt = [int(token) for token in prompt_ids]
    context = target.max_context if draft is None else min(target.max_context, draft.max_context)
    if not prompt:
        raise ValueError("prompt: found no tokens, expected at least one")
    outside = next((token for token in prompt if not 0 <= token < target.vocab_size), None)
    if outside is not None:
        raise ValueError(f"prompt: found token {outside}, expected ids from 0 to {target.vocab_size - 1}")
    if len(prompt) > context - tree.size:
        raise ValueError(
            f"prompt: found {len(prompt)} tokens, expected at most {context - tree.size}: "
            f"the models' context of {context} less the tree's {tree.size} nodes"
        )
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens: found {max_new_tokens}, expected at least 1")
    if tree.size > 1 and draft is None:
        raise ValueError(f"draft: found none for a tree of {tree.size} nodes, expected a draft model")
    if draft is not None and draft.vocab_size != target.vocab_size:
        raise ValueError(
            f"draft: found a vocabulary of {draft.vocab_size}, expected {target.vocab_size} as the target has "
            "(load_pair cuts padding off both)"
        )
    widest = int(tree.child_counts.max(initial=0))
    if widest > target.vocab_size:
        raise ValueError(f"tree: found {widest} children of one node, expected at most {target.vocab_size} tokens")
    run = _Run(prompt, target, draft, tree, sampling, choose_verifier(verifier, greedy=sampling.greedy), generator)
    run.context, run.explain = context, explain
    run.limit = min(context, len(prompt) + max_new_tokens)
    run.limit_reason = "length" if len(prompt) + max_new_tokens <= context else "context"
    return run.steps(cancel or threading.Event())


def autoregressive(
    prompt_ids: Sequence[int],
    *,
    target: LanguageModel,
    sampling: SamplingConfig | None = None,
    max_new_tokens: int = 128,
    generator: torch.Generator | None = None,
    cancel: threading.Event | None = None,
) -> Iterator[DecodeStep]:
    """Decode one token per target pass: the baseline, on the same code path as `decode`. Same arguments and errors."""
    return decode(
        prompt_ids, target=target, draft=None, tree=ROOT_ONLY, sampling=sampling, max_new_tokens=max_new_tokens,
        generator=generator, cancel=cancel,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Level:
    """What drafting below one level needs, computed once per tree.

    Attributes:
        nodes, counts: the level's nodes that have children and how many, int64 [m]; only these are forwarded.
        tail: float32 [m, slots + m], additive mask over root, earlier forwarded nodes and these.
        widest: most children of one node.
        children: the c nodes of the next level; they are numbered one after the other.
        rows: int64 [c], which of the m nodes is each child's parent.
        places: int64 [c], where each child's token lies in the draws [m, widest], counted row after row.
    """

    nodes: np.ndarray
    counts: np.ndarray
    tail: torch.Tensor
    widest: int
    children: slice
    rows: torch.Tensor
    places: torch.Tensor


def _additive(visible: np.ndarray) -> torch.Tensor:
    return torch.zeros(visible.shape, dtype=torch.float32).masked_fill_(torch.from_numpy(~visible), -torch.inf)


@lru_cache(maxsize=8)  # many short runs over one tree are common: a benchmark, a proof
def _plan_levels(tree: TokenTree) -> tuple[list[_Level], dict[int, int]]:
    """Return the draft passes of one step and the draft-cache slot of each forwarded node, counted from the root."""
    mask, counts, ranks = tree.ancestor_mask, tree.child_counts, tree.child_ranks
    levels: list[_Level] = []
    forwarded: list[int] = []
    for level, below in zip(tree.levels, tree.levels[1:], strict=False):
        nodes = level[counts[level] > 0]
        forwarded.extend(nodes.tolist())
        widest, rows = int(counts[nodes].max()), np.repeat(np.arange(len(nodes)), counts[nodes])
        levels.append(
            _Level(
                nodes=nodes.astype(np.int64),
                counts=counts[nodes].astype(np.int64),
                tail=_additive(mask[np.ix_(nodes, forwarded)]),
                widest=widest,
                children=slice(int(below[0]), int(below[-1]) + 1),
                rows=torch.from_numpy(rows),
                places=torch.from_numpy(rows * widest + ranks[below].astype(np.int64) - 1),
            )
        )
    return levels, {node: slot for slot, node in enumerate(forwarded)}


class _Run:
    """State of one decode: the committed sequence, both caches, and what was precomputed for the tree."""

    context: int
    explain: bool
    limit: int
    limit_reason: str

    def __init__(
        self,
        prompt: list[int],
        target: LanguageModel,
        draft: LanguageModel | None,
        tree: TokenTree,
        sampling: SamplingConfig,
        verifier: Verifier,
        generator: torch.Generator | None,
    ) -> None:
        self.sequence = prompt
        self.target, self.draft, self.tree = target, draft, tree
        self.sampling, self.verifier = sampling, verifier
        # At temperature 0 the most likely children do not depend on the temperature; 1 keeps the shown numbers useful.
        self.draft_sampling = SamplingConfig(temperature=1.0 if sampling.greedy else sampling.temperature)
        self.levels, self.draft_slots = _plan_levels(tree)
        self.plan = None
        if hasattr(draft, "plan_draft") and verifier.fill in FILLS:
            self.plan = draft.plan_draft(self.levels, fill=FILLS[verifier.fill])
        self.depths = tree.depths.astype(np.int64)
        self.inner = np.array(list(self.draft_slots), dtype=np.int64)  # nodes that have children
        self.child_starts = np.concatenate([[0], np.cumsum(tree.child_counts[self.inner])]).astype(np.int64)
        self.walker = None
        drafted_at_once = self.plan is not None or tree.size == 1
        simple = verifier.rule in RULES and sampling.plain and drafted_at_once
        if rows.compiled() is not None and (sampling.greedy or simple):
            slots = [self.draft_slots.get(node, 0) for node in range(tree.size)]
            firsts = [tree.children(node).start for node in range(tree.size)]
            self.walker = rows.Walker(*(np.array(a, dtype=np.int64) for a in (firsts, tree.child_counts, slots)))
        self.tail = _additive(tree.ancestor_mask)
        self.generator = generator or torch.Generator()
        if generator is None:
            self.generator.seed()
        self.target_cuda, self.draft_cuda = (
            torch.device(model.device) if model is not None and torch.device(model.device).type == "cuda" else None
            for model in (target, draft)
        )  # to wait for before looking at the clock
        self.draft_generator = self.generator
        if draft is not None and torch.device(draft.device).type != self.generator.device.type:
            seed = int(torch.randint(2**62, (), generator=self.generator))
            self.draft_generator = torch.Generator(draft.device).manual_seed(seed)

    def steps(self, cancel: threading.Event) -> Iterator[DecodeStep]:
        before = self.sequence[:-1]  # the prompt's last token is the first root
        self.target_cache = self.target.new_cache(self.limit + self.tree.size)
        if not prefill(self.target, before, cache=self.target_cache, cancel=cancel):
            return
        if self.draft is not None:
            self.draft_cache = self.draft.new_cache(self.limit + len(self.draft_slots) + 1)
            if not prefill(self.draft, before, cache=self.draft_cache, cancel=cancel):
                return
        index, finished = 0, None
        while finished is None and not cancel.is_set():
            try:
                started = time.perf_counter()
                tokens, draft_probs = self._draft_tree()
                drafted = self._clock(self.draft_cuda)
                if cancel.is_set():
                    return
                logits = self._verify(tokens)
                verified = self._clock(self.target_cuda)
                if cancel.is_set():
                    return
                walk = self._walk(tokens, logits)
                target_probs = self._target_probs(tokens, logits) if self.explain else ()
            except FloatingPointError as error:
                raise FloatingPointError(f"step {index}: {error}") from error
            walked = time.perf_counter()
            node_tokens = tokens.tolist()
            new_tokens, finished = self._commit(walk, node_tokens)
            committed = time.perf_counter()
            yield DecodeStep(
                index=index,
                tokens=tuple(node_tokens),
                outcomes=_outcomes(self.tree.size, walk),
                draft_probs=tuple(draft_probs.tolist()) if self.explain else (),
                target_probs=target_probs,
                accepted_path=walk.path,
                bonus_token=walk.bonus_token,
                new_tokens=new_tokens,
                trials=walk.trials,
                draft_sec=drafted - started,
                verify_sec=verified - drafted,
                walk_sec=walked - verified,
                commit_sec=committed - walked,
                finished=finished,
            )
            index += 1

    def _clock(self, device: torch.device | None) -> float:
        if device is not None:
            torch.cuda.synchronize(device)
        return time.perf_counter()

    @torch.inference_mode()
    def _draft_tree(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Fill the tree level by level -> tokens int64 [n], draft probabilities float32 [n]; keep the draft's rows."""
        if self.plan is not None:
            self.root_slot = len(self.sequence) - 1
            grown = self.plan.grow(
                self.sequence[self.draft_cache.length :], self.draft_cache, place=self.root_slot, limit=self.context,
                temperature=self.draft_sampling.temperature, generator=self.draft_generator,
            )  # fmt: skip
            tokens, node_probs, probs = finite(grown, "draft")
            self.draft_rows = [probs]
            return tokens, node_probs
        tokens = torch.empty(self.tree.size, dtype=torch.int64)
        node_probs = torch.ones(self.tree.size, dtype=torch.float32)
        known = tokens.numpy()  # the same memory: single entries cost less there
        known[0] = self.sequence[-1]
        self.draft_rows: list[torch.Tensor] = []
        for depth, level in enumerate(self.levels):
            if depth == 0:
                unseen = self.sequence[self.draft_cache.length :]  # the last accepted leaf, if any, and the root
                ids = torch.tensor(unseen)
                positions = torch.arange(self.draft_cache.length, len(self.sequence))
                tail = _additive(np.tri(len(unseen), dtype=bool))
                self.root_slot = len(self.sequence) - 1
            else:
                ids = torch.from_numpy(known[level.nodes])
                positions = torch.full((len(ids),), self._position(depth))
                tail = level.tail
            logits = self.draft.forward(ids, positions, cache=self.draft_cache, tail=tail, keep=len(level.nodes))
            probs = probabilities(logits, self.draft_sampling)
            check_probabilities(probs, "draft")
            drawn = self.verifier.fill(probs, level.widest, self.draft_generator).take(level.places.to(probs.device))
            tokens[level.children] = drawn
            node_probs[level.children] = probs.take(level.rows.to(probs.device) * probs.shape[1] + drawn)
            self.draft_rows.append(probs)
        return tokens, node_probs

    def _position(self, depth: int) -> int:
        # Nodes past the context limit get its last position: whatever they hold is cut before it is committed.
        return min(len(self.sequence) - 1 + depth, self.context - 1)

    @torch.inference_mode()
    def _verify(self, tokens: torch.Tensor) -> torch.Tensor:
        """One target pass over all nodes -> logits float [n, V]."""
        positions = torch.from_numpy(np.minimum(self.depths + (len(self.sequence) - 1), self.context - 1))
        return self.target.forward(tokens, positions, cache=self.target_cache, tail=self.tail, keep=self.tree.size)

    @torch.inference_mode()
    def _walk(self, tokens: torch.Tensor, logits: torch.Tensor) -> Walk:
        """Decide the accepted path."""
        compiled = self.walker is not None and rows.fit(logits)
        if self.sampling.greedy:
            if compiled:
                path, bonus, nodes = finite(self.walker.greedily(logits, tokens), "target")
                accepted = set(path)
                return Walk(tuple(path), bonus, tuple(Trial(n, 0.0, float(n in accepted), 1.0) for n in nodes))
            return walk_greedily(self.tree, tokens.tolist(), most_likely(logits, "target").tolist().__getitem__)
        uniforms = torch.rand(self.tree.size, generator=self.generator, dtype=torch.float64)  # enough for all trials
        if compiled:
            draft = logits if self.plan is None else self.draft_rows[0]  # a lone root has no use for any
            found = self.walker.sampled(
                RULES[self.verifier.rule], logits, self.sampling.temperature, tokens, draft, uniforms
            )
            path, bonus, trials = finite(found, "target")
            return Walk(tuple(path), bonus, tuple(Trial(*trial) for trial in trials))
        return walk_tree(
            self.tree,
            tokens.tolist(),
            target_row=lambda node: law(logits[node], self.sampling, "target"),
            draft_row=self._draft_row,
            rule=self.verifier.rule,
            uniform=iter(uniforms.tolist()).__next__,
        )

    @torch.inference_mode()
    def _target_probs(self, tokens: torch.Tensor, logits: torch.Tensor) -> tuple[float, ...]:
        """What the target gives every node's token after its parent [n]."""
        if self.tree.size == 1:
            return (1.0,)
        sampling = self.draft_sampling if self.sampling.greedy else self.sampling
        found = chances(logits, sampling, self.inner, self.child_starts, tokens[1:], "target")
        return (1.0, *found.tolist())

    def _draft_row(self, node: int) -> np.ndarray:
        slot = self.draft_slots[node]
        for level in self.draft_rows:
            if slot < len(level):
                return widened(level[slot])
            slot -= len(level)
        raise AssertionError(f"node {node} was offered children but never forwarded by the draft")

    @torch.inference_mode()
    def _commit(self, walk: Walk, tokens: list[int]) -> tuple[list[int], str | None]:
        """Extend the sequence, keep the accepted path's cache entries, and say whether the run is over."""
        new = [tokens[node] for node in walk.path[1:]] + [walk.bonus_token]
        finished = None
        end = next((i for i, token in enumerate(new) if token in self.target.eos_ids), None)
        if end is not None:
            new, finished = new[: end + 1], "eos"
        room = self.limit - len(self.sequence)
        if len(new) > room or (len(new) == room and finished is None):
            new, finished = new[:room], self.limit_reason
        if finished is None:
            self.target_cache.keep(len(self.sequence) - 1, list(walk.path))
            if self.levels:
                kept = [self.draft_slots[node] for node in walk.path if node in self.draft_slots]
                self.draft_cache.keep(self.root_slot, kept)
        self.sequence.extend(new)
        return new, finished


def _outcomes(size: int, walk: Walk) -> tuple[str, ...]:
    outcomes = ["not reached"] * size
    for trial in walk.trials:
        outcomes[trial.node] = "rejected"
    for node in walk.path:
        outcomes[node] = "accepted"
    return tuple(outcomes)

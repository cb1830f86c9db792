"""Replays recorded answers through lookup trees, exactly and without a model. m = requests, S = sizes.

A lookup tree is chosen before the target draws, so a recorded answer can be followed through the tree of each step.
"""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from os.path import isdir
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sequoia_core.acceptance.bootstrap import Estimate, ratio_estimate
from sequoia_core.files.response_logs import RecordedRequest
from sequoia_core.files.safe_files import one_line, read_bytes
from sequoia_core.measuring.prompt_loop import Progress, progress_slice
from sequoia_core.models.model_sources import claim
from sequoia_core.planning.profile import HardwareProfile
from sequoia_core.planning.step_time import autoregressive_sec, step_seconds

from .index_memory import MAX_CANDIDATES, TreeColumns
from .text_index import MIN_SCORE, RunningText, TextIndex, validate_tokens

TREE_SIZES = (2, 4, 8, 16, 32, 64)
TREE_DEPTH = 16
# Replaying this many tokens of prompts and answers takes a minute or two.
MAX_REPLAYED_TOKENS = 1_000_000
# Without a profile, the smallest size with this share of the largest tree's gain is chosen.
ENOUGH_GAIN = 0.95


class EncodedRequest(NamedTuple):
    """The token ids of a prompt and its answer."""

    prompt_ids: Sequence[int]
    token_ids: Sequence[int]


@dataclass(frozen=True, slots=True, eq=False)
class LookupReplay:
    """The steps needed to decode recorded answers with lookup trees.

    Attributes:
        sizes: maximum tree sizes, int [S].
        tokens: int64 [m], number of tokens in each answer.
        steps: int64 [S, m], number of steps for each answer.
        nodes: for each maximum size, a mapping: number of nodes in the tree -> number of steps.
    """

    sizes: tuple[int, ...]
    tokens: np.ndarray
    steps: np.ndarray
    nodes: tuple[dict[int, int], ...]

    def tokens_per_step(self, size: int) -> Estimate:
        """Return the committed tokens per step for trees of up to `size` nodes, with an interval over requests."""
        return ratio_estimate(self.tokens, self.steps[self.sizes.index(size)])

    def predicted_speedup(self, size: int, profile: HardwareProfile) -> float:
        """Return the speedup over autoregressive decoding that a profile predicts at temperature 0."""
        counts = self.nodes[self.sizes.index(size)]
        nodes = np.array(list(counts))
        steps = np.array(list(counts.values()))
        seconds = step_seconds(nodes, np.zeros((len(nodes), 1), np.int64), profile)
        return float(self.tokens.sum() * autoregressive_sec(profile) / (steps @ seconds))

    def best_size(self, profile: HardwareProfile | None) -> int:
        """Return the size predicted to be the fastest; without a profile, the smallest with nearly the full gain."""
        if profile is not None:
            return max(self.profiled_sizes(profile), key=lambda size: self.predicted_speedup(size, profile))
        gains = self.tokens.sum() / self.steps.sum(axis=1) - 1.0
        return self.sizes[int((gains >= ENOUGH_GAIN * gains.max()).argmax())]

    def profiled_sizes(self, profile: HardwareProfile) -> list[int]:
        """Return the sizes whose trees are within the profiled sizes."""
        return [
            size
            for size, counts in zip(self.sizes, self.nodes, strict=True)
            if max(counts, default=1) <= profile.max_size
        ]


def text_encoder(tokenizer: Path) -> Callable[[str], list[int]]:
    """Return a function that encodes text with the tokenizer in a tokenizer.json, a folder or a GGUF file.

    The tokenizer is loaded on first use.
    """

    @cache
    def load_encoder() -> Callable[..., Any]:
        files = claim(tokenizer)
        built_in = None if files is None else files.tokenizer()
        if built_in is not None:
            return built_in.encode
        from tokenizers import Tokenizer

        path = tokenizer / "tokenizer.json" if isdir(tokenizer) else tokenizer
        data = read_bytes(path)
        try:
            loaded = Tokenizer.from_buffer(data)
        # The library raises no more specific exception.
        except Exception as error:
            raise ValueError(f"{path}: cannot be loaded ({one_line(error)}), expected a tokenizer.json") from error
        return lambda text, **options: loaded.encode(text, **options).ids

    return lambda text: list(load_encoder()(text, add_special_tokens=False))


class EncodedLog(NamedTuple):
    """A log's requests as token ids.

    Attributes:
        exact: whether all requests were recorded as token ids; encoding text again may give different ones.
        left_out: number of requests at the end that were left out to stay within `MAX_REPLAYED_TOKENS`.
    """

    requests: list[EncodedRequest]
    exact: bool
    left_out: int


def encode_requests(
    recorded: Sequence[RecordedRequest],
    encode: Callable[[str], list[int]],
    *,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> EncodedLog:
    """Return recorded requests as token ids; text is encoded without special tokens."""
    requests: list[EncodedRequest] = []
    tokens = 0
    for number, request in enumerate(recorded):
        if cancel is not None and cancel.is_set():
            break
        ids = [encode(part) if isinstance(part, str) else part for part in request]
        tokens += sum(map(len, ids))
        if requests and tokens > MAX_REPLAYED_TOKENS:
            break
        requests.append(EncodedRequest(*ids))
        if progress is not None:
            progress((number + 1) / len(recorded), f"encoding: {number + 1} of {len(recorded)} requests")
    return EncodedLog(requests, not any(request.is_text for request in recorded), len(recorded) - len(requests))


@dataclass(frozen=True, slots=True)
class LookupReport:
    """Replays of a log.

    Attributes:
        isolated: trees from the current request alone.
        shared: trees from the current request and earlier ones.
        isolated_chain, shared_chain: the same with chains, which most servers draft.
    """

    isolated: LookupReplay
    shared: LookupReplay
    isolated_chain: LookupReplay
    shared_chain: LookupReplay

    def server_settings(self, profile: HardwareProfile | None = None) -> dict[str, str]:
        """Return the closest server settings for vLLM 0.32, SGLang 0.5 and llama.cpp (2026), whose matching differs."""
        chain = self.isolated_chain.best_size(profile) - 1
        earlier = self.shared_chain.best_size(profile) - 1
        vllm = '--speculative-config \'{{"method": "{}", "num_speculative_tokens": {}{}}}\''
        return {
            "vLLM, this text": vllm.format("ngram", chain, ', "prompt_lookup_min": 2, "prompt_lookup_max": 12'),
            "vLLM, earlier answers": vllm.format("suffix", earlier, ""),
            "SGLang, earlier answers": "--speculative-algorithm NGRAM --speculative-num-draft-tokens "
            f"{self.shared.best_size(profile)} --speculative-ngram-max-match-window-size 12",
            "llama.cpp, this text": "--spec-type ngram-simple --spec-ngram-simple-size-n 3 "
            f"--spec-ngram-simple-size-m {chain}",
            "llama.cpp, earlier answers": "--spec-type ngram-mod --spec-ngram-mod-n-match 12 --spec-ngram-mod-n-min 1 "
            f"--spec-ngram-mod-n-max {earlier}",
        }


def replay_log(
    requests: Sequence[EncodedRequest],
    *,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> LookupReport:
    """Replay a log with trees and with chains, each from the current request alone and from earlier ones too."""
    replays: list[LookupReplay] = []
    for max_children in (MAX_CANDIDATES, 1):
        for shared in (False, True):
            done = len(replays)
            show = progress_slice(progress, done / 4, (done + 1) / 4)
            replays.append(replay(requests, shared=shared, max_children=max_children, progress=show, cancel=cancel))
    return LookupReport(*replays)


def replay(
    requests: Sequence[EncodedRequest],
    *,
    shared: bool,
    max_children: int = MAX_CANDIDATES,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> LookupReplay:
    """Follow recorded answers through the lookup trees that decoding them would have used.

    Args:
        requests: requests in order of arrival; those without an answer are skipped.
        shared: whether earlier requests are searched too, not only a request's own text.
        max_children: maximum number of children per node; 1 for chains, which most servers draft.

    Returns:
        The steps of all requests, or of those completed before `cancel` was set.
    """
    index = TextIndex()
    tree = TreeColumns(max_size=TREE_SIZES[-1], max_depth=TREE_DEPTH, max_children=max_children, min_score=MIN_SCORE)
    tokens = []
    steps = []
    nodes: tuple[dict[int, int], ...] = tuple(Counter() for _ in TREE_SIZES)
    for number, request in enumerate(requests):
        if cancel is not None and cancel.is_set():
            break
        prompt = validate_tokens(request.prompt_ids)
        answer = validate_tokens(request.token_ids)
        if answer.size:
            outcomes = _possible_steps(index, prompt, answer, tree)
            tokens.append(len(answer))
            steps.append([_follow_steps(*column) for column in zip(*outcomes, nodes, strict=True)])
            if shared:
                index.add([*prompt.tolist(), *answer.tolist()])
        if progress is not None:
            progress((number + 1) / len(requests), f"{number + 1} of {len(requests)} requests")
    if not tokens:
        raise ValueError("found no answers, expected at least one")
    return LookupReplay(TREE_SIZES, np.array(tokens), np.array(steps).T, nodes)


def _possible_steps(
    index: TextIndex, prompt: np.ndarray, answer: np.ndarray, tree: TreeColumns
) -> tuple[list[list[int]], list[list[int]]]:
    """Return, for each tree size, the tokens committed and the nodes drafted by a step at each answer position."""
    text = RunningText(index, len(prompt) + len(answer) + 1)
    text.extend(prompt)
    committed: list[list[int]] = [[] for _ in TREE_SIZES]
    drafted: list[list[int]] = [[] for _ in TREE_SIZES]
    wanted = answer.tolist()
    for position in range(len(wanted)):
        # Without a prompt, there is no root to look up from, so the first token takes a separate step.
        size = text.grow(tree) if text.length else 1
        path = _matching_path(tree, size, wanted[position : position + tree.state.max_depth + 1]) if size > 1 else []
        for column, max_size in enumerate(TREE_SIZES):
            accepted = sum(node < max_size for node in path)
            # Count the bonus token even if the answer ends before it.
            committed[column].append(accepted + 1)
            drafted[column].append(min(size, max_size))
        text.extend(answer[position : position + 1])
    return committed, drafted


def _matching_path(tree: TreeColumns, size: int, wanted: Sequence[int]) -> list[int]:
    """Return the path of nodes below the root that matches the wanted tokens; lower indices are likelier."""
    parents, tokens = (tree.columns[name][:size].tolist() for name in ("parents", "tokens"))
    children = {edge: node for node, edge in enumerate(zip(parents, tokens, strict=True))}
    node = 0
    path: list[int] = []
    for token in wanted:
        node = children.get((node, token), 0)
        if not node:
            break
        path.append(node)
    return path


def _follow_steps(committed: Sequence[int], drafted: Sequence[int], nodes: dict[int, int]) -> int:
    """Return the number of steps that an answer takes, and count their trees by size in `nodes`."""
    position = steps = 0
    while position < len(committed):
        nodes[drafted[position]] += 1
        position += committed[position]
        steps += 1
    return steps

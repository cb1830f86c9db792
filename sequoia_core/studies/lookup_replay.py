"""What lookup trees would have done on recorded answers: exactly, without a model. m = requests, S = sizes.

A lookup tree is fixed before the target draws, so a recorded answer can be followed through the trees of each step.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from os.path import isdir
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..decoding.growing.text_index import LEAST_SCORE, RunningText, TextIndex, checked_tokens
from ..design.bootstrap import Estimate, ratio_estimate
from ..design.profile import HardwareProfile
from ..design.step_time import autoregressive_sec, step_seconds
from ..files.gguf_header import is_gguf
from ..files.response_logs import Recorded
from ..files.safe_files import one_line, read_bytes
from ..native.text_index import MOST, TreeColumns
from .prompt_loop import part_of

SIZES = (2, 4, 8, 16, 32, 64)
DEPTH = 16
MAX_TOKENS = 1_000_000  # of prompts and answers that are replayed: a minute or two
ENOUGH_GAIN = 0.95  # of the largest tree's gain: the size that is named where no profile tells the best


class Request(NamedTuple):
    """Token ids of a prompt and its answer."""

    prompt_ids: Sequence[int]
    token_ids: Sequence[int]


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """Steps of lookup trees on recorded answers.

    Attributes:
        sizes: the largest trees that were tried, int [S].
        tokens: int64 [m], of each answer.
        steps: int64 [S, m], how many steps each answer took.
        nodes: size -> how many steps had a tree of so many nodes, for each of `sizes`.
    """

    sizes: tuple[int, ...]
    tokens: np.ndarray
    steps: np.ndarray
    nodes: tuple[dict[int, int], ...]

    def tokens_per_step(self, size: int) -> Estimate:
        """Return committed tokens per step for trees of at most `size` nodes, with an interval over requests."""
        return ratio_estimate(self.tokens, self.steps[self.sizes.index(size)])

    def predicted_speedup(self, size: int, profile: HardwareProfile) -> float:
        """Return the speed over autoregressive decoding that a profile's times predict (T = 0)."""
        counts = self.nodes[self.sizes.index(size)]
        nodes, steps = np.array(list(counts)), np.array(list(counts.values()))
        seconds = step_seconds(nodes, np.zeros((len(nodes), 1), np.int64), profile)
        return float(self.tokens.sum() * autoregressive_sec(profile) / (steps @ seconds))

    def best_size(self, profile: HardwareProfile | None) -> int:
        """Return the size predicted to be the fastest; without a profile the least with nearly the whole gain."""
        if profile is not None:
            return max(self.within(profile), key=lambda size: self.predicted_speedup(size, profile))
        gains = self.tokens.sum() / self.steps.sum(axis=1) - 1.0
        return self.sizes[int((gains >= ENOUGH_GAIN * gains.max()).argmax())]

    def within(self, profile: HardwareProfile) -> list[int]:
        """Return the sizes that were profiled."""
        return [
            size
            for size, counts in zip(self.sizes, self.nodes, strict=True)
            if max(counts, default=1) <= profile.max_size
        ]


def text_encoder(tokenizer: Path) -> Callable[[str], list[int]]:
    """Return what encodes text, by a tokenizer.json, the one in a folder or that of a GGUF file, read on first use."""

    @cache
    def encoder() -> Callable[..., Any]:
        if is_gguf(tokenizer):
            from ..models.gguf.tokenizer import GGUFTokenizer

            return GGUFTokenizer(tokenizer, str(tokenizer)).encode
        from tokenizers import Tokenizer

        path = tokenizer / "tokenizer.json" if isdir(tokenizer) else tokenizer
        data = read_bytes(path)
        try:
            read = Tokenizer.from_buffer(data)
        except Exception as error:  # the library raises nothing more precise
            raise ValueError(f"{path}: found no tokenizer ({one_line(error)}), expected a tokenizer.json") from error
        return lambda text, **options: read.encode(text, **options).ids

    return lambda text: list(encoder()(text, add_special_tokens=False))


class Encoded(NamedTuple):
    """Requests as token ids.

    Attributes:
        exact: whether all came as token ids; text that is encoded again may have been other tokens.
        left_out: how many of the last requests were left out, since there were `MAX_TOKENS` before them.
    """

    requests: list[Request]
    exact: bool
    left_out: int


def encode_requests(
    recorded: Sequence[Recorded],
    encode: Callable[[str], list[int]],
    *,
    progress: Callable[[float, str], None] | None = None,
    cancel: threading.Event | None = None,
) -> Encoded:
    """Return recorded requests as token ids, encoding text by `encode`, without special tokens."""
    requests: list[Request] = []
    tokens = 0
    for number, request in enumerate(recorded):
        if cancel is not None and cancel.is_set():
            break
        ids = [part if not isinstance(part, str) else encode(part) for part in request]
        tokens += sum(map(len, ids))
        if requests and tokens > MAX_TOKENS:
            break
        requests.append(Request(*ids))
        if progress is not None:
            progress((number + 1) / len(recorded), f"encoding, {number + 1} of {len(recorded)} requests")
    return Encoded(requests, not any(request.is_text for request in recorded), len(recorded) - len(requests))


@dataclass(frozen=True, slots=True)
class LookupReport:
    """What lookup would do for a log of requests.

    Attributes:
        own, shared: trees from the text under way alone, and from earlier requests too.
        own_chain, shared_chain: the same for chains, which most servers draft.
    """

    own: Replay
    shared: Replay
    own_chain: Replay
    shared_chain: Replay

    def server_settings(self, profile: HardwareProfile | None = None) -> dict[str, str]:
        """Return the nearest settings of servers, whose matching differs (vLLM 0.32, SGLang 0.5, llama.cpp of 2026)."""
        chain, earlier = (replay.best_size(profile) - 1 for replay in (self.own_chain, self.shared_chain))
        tree = self.shared.best_size(profile)
        vllm = '--speculative-config \'{{"method": "{}", "num_speculative_tokens": {}{}}}\''
        return {
            "vLLM, this text": vllm.format("ngram", chain, ', "prompt_lookup_min": 2, "prompt_lookup_max": 12'),
            "vLLM, earlier answers": vllm.format("suffix", earlier, ""),
            "SGLang, earlier answers": f"--speculative-algorithm NGRAM --speculative-num-draft-tokens {tree} "
            "--speculative-ngram-max-match-window-size 12",
            "llama.cpp, this text": "--spec-type ngram-simple --spec-ngram-simple-size-n 3 "
            f"--spec-ngram-simple-size-m {chain}",
            "llama.cpp, earlier answers": "--spec-type ngram-mod --spec-ngram-mod-n-match 12 --spec-ngram-mod-n-min 1 "
            f"--spec-ngram-mod-n-max {earlier}",
        }


def replay_log(
    requests: Sequence[Request],
    *,
    progress: Callable[[float, str], None] | None = None,
    cancel: threading.Event | None = None,
) -> LookupReport:
    """Replay a log with and without earlier requests, with trees and with chains."""
    replays = []
    for number, (shared, children) in enumerate(((False, MOST), (True, MOST), (False, 1), (True, 1))):
        show = part_of(progress, number / 4, (number + 1) / 4)
        replays.append(replay(requests, shared=shared, max_children=children, progress=show, cancel=cancel))
    return LookupReport(*replays)


def replay(
    requests: Sequence[Request],
    *,
    shared: bool,
    max_children: int = MOST,
    progress: Callable[[float, str], None] | None = None,
    cancel: threading.Event | None = None,
) -> Replay:
    """Follow recorded answers through the lookup trees that each step would have had.

    Args:
        requests: in the order in which they came; those without an answer take no part.
        shared: every request also looks through the ones before it; else through its own text alone.
        max_children: 1 for chains, which servers draft.

    Returns:
        The steps of all requests, or of those that were finished before `cancel` was set.
    """
    index = TextIndex()
    tree = TreeColumns(max_size=SIZES[-1], max_depth=DEPTH, max_children=max_children, least=LEAST_SCORE)
    tokens, steps = [], []
    nodes: tuple[dict[int, int], ...] = tuple({} for _ in SIZES)
    for number, request in enumerate(requests):
        if cancel is not None and cancel.is_set():
            break
        prompt, answer = checked_tokens(request.prompt_ids), checked_tokens(request.token_ids)
        if answer.size:
            committed, drafted = _along(index, prompt, answer, tree)
            tokens.append(len(answer))
            steps.append([_count_steps(*columns) for columns in zip(committed, drafted, nodes, strict=True)])
            if shared:
                index.add([*prompt.tolist(), *answer.tolist()])
        if progress is not None:
            progress((number + 1) / len(requests), f"{number + 1} of {len(requests)} requests")
    if not tokens:
        raise ValueError("found no answers, expected at least one")
    return Replay(SIZES, np.array(tokens), np.array(steps).T, nodes)


def _along(
    index: TextIndex, prompt: np.ndarray, answer: np.ndarray, tree: TreeColumns
) -> tuple[list[list[int]], list[list[int]]]:
    """Return what a step at each token of an answer would commit, and its nodes, for trees of each size."""
    text = RunningText(index, len(prompt) + len(answer) + 1)
    text.extend(prompt)
    committed: list[list[int]] = [[] for _ in SIZES]
    drafted: list[list[int]] = [[] for _ in SIZES]
    wanted = answer.tolist()
    for position in range(len(wanted)):
        # Without a prompt the first token has no root to look up from: it is a step of its own.
        grown = text.grow(tree) if text.length else 1
        path = _path(tree, grown, wanted[position : position + tree.state.max_depth + 1]) if grown > 1 else []
        for number, size in enumerate(SIZES):
            inside = sum(node < size for node in path)
            committed[number].append(inside + 1)  # and the bonus token; an answer may end before it
            drafted[number].append(min(grown, size))
        text.extend(answer[position : position + 1])
    return committed, drafted


def _path(tree: TreeColumns, size: int, wanted: Sequence[int]) -> list[int]:
    """Return the nodes that some tokens pass through, without the root; nodes are numbered likeliest first."""
    parents, tokens = (tree.columns[name][:size].tolist() for name in ("parents", "tokens"))
    at = {pair: node for node, pair in enumerate(zip(parents, tokens, strict=True))}
    node, path = 0, []
    for token in wanted:
        node = at.get((node, token), 0)
        if not node:
            break
        path.append(node)
    return path


def _count_steps(committed: Sequence[int], drafted: Sequence[int], nodes: dict[int, int]) -> int:
    """Go through an answer step by step; return how many steps it took, and count their trees by size."""
    position = steps = 0
    while position < len(committed):
        nodes[drafted[position]] = nodes.get(drafted[position], 0) + 1
        position += committed[position]
        steps += 1
    return steps

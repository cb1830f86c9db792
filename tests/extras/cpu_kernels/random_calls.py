"""Call every Python function that passes pointers to C with random arguments, valid and invalid ones.

`test_memory` runs this in a process whose C code is built with AddressSanitizer, which aborts at the first access out
of bounds. Any invalid argument must raise ValueError or one of PyTorch's errors.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn

from sequoia_core.acceptance.calibration import BIN_CENTRES, MASS_EDGES, PROBABILITY_BINS, TABLE_NAMES
from sequoia_core.decoding.plan import TreePlan
from sequoia_core.trees.tree import TokenTree
from sequoia_extras.cpu_kernels import sampling_ops as rows
from sequoia_extras.cpu_kernels import tree_expansion
from sequoia_extras.cpu_kernels.drafting_calls import DraftCall, GrowCall
from sequoia_extras.cpu_kernels.linear import CompiledLinear, compile_layers
from sequoia_extras.cpu_kernels.llama_x86 import CompiledLlama
from sequoia_extras.cpu_kernels.walker import Walker
from sequoia_extras.dynamic_trees.index_memory import MAX_CANDIDATES, TreeColumns
from sequoia_extras.dynamic_trees.text_index import RunningText, TextIndex

REFUSALS = (ValueError, RuntimeError, IndexError, OverflowError, TypeError)


class Calls:
    """Makes calls with valid arguments and with one spoiled argument, and counts the outcomes."""

    def __init__(self, seed: int) -> None:
        self.numbers = np.random.default_rng(seed)
        self.done = self.refused = 0

    def below(self, stop: int) -> int:
        return int(self.numbers.integers(stop))

    def spoiled(self, value: object) -> object:
        """Return a value with another width, length, dtype, order or range."""
        if isinstance(value, torch.Tensor):
            ways: list[Callable] = [
                lambda x: x[..., :-1],
                lambda x: x[:-1],
                lambda x: torch.cat([x, x], -1),
                lambda x: torch.cat([x, x]),
                lambda x: x.double() if x.dtype != torch.float64 else x.float(),
                lambda x: x.repeat(2, 1)[::2],
                lambda x: x + 10**6,
                lambda x: x - 10**6,
                lambda x: x[None],
                lambda x: x.to(torch.int32),
            ]
        elif isinstance(value, np.ndarray):
            ways = [
                lambda x: x[:-1],
                lambda x: np.concatenate([x, x]),
                lambda x: x.astype(np.int32),
                lambda x: x + 10**6,
                lambda x: x - 10**6,
                lambda x: x[None],
                lambda x: np.repeat(x, 2)[::2],
                lambda x: x[::-1],
            ]
        elif isinstance(value, int):
            ways = [lambda x: x + 1, lambda x: x + 10**6, lambda x: -x - 1, lambda x: 0]
        elif isinstance(value, Sequence) and not isinstance(value, str):
            ways = [lambda x: [*x, 10**6], lambda x: [*x, -(10**6)], lambda x: [], lambda x: list(x)[::-1]]
        else:
            ways = [lambda x: x]
        return ways[self.below(len(ways))](value)

    def __call__(self, function: Callable, *arguments: object, **options: object) -> object:
        """Call with valid arguments, which must work, then with one spoiled argument, which may raise a refusal."""
        found = function(*arguments, **options)
        self.done += 1
        for _ in range(3):
            at = self.below(len(arguments) + len(options))
            bad = list(arguments)
            changed = dict(options)
            try:
                if at < len(bad):
                    bad[at] = self.spoiled(bad[at])
                else:
                    name = list(changed)[at - len(bad)]
                    changed[name] = self.spoiled(changed[name])
                function(*bad, **changed)
            except REFUSALS:
                self.refused += 1
            except MemoryError as error:
                assert "no memory" in str(error)
        return found


def random_tree(calls: Calls, size: int) -> TokenTree:
    return TokenTree(np.sort(np.array([-1, *(calls.below(node) for node in range(1, size))], np.int32)))


def call_rows(calls: Calls) -> None:
    count = 1 + calls.below(9)
    size = 2 + calls.below(200)
    logits = torch.randn(count, size)
    probs = logits.softmax(1)
    other = torch.randn(count, size).softmax(1)
    width = 1 + calls.below(min(size, 5))
    uniforms = torch.rand(count, width, dtype=torch.float64)
    calls(rows.softmax_rows, logits, 0.7)
    calls(rows.largest, probs, width)
    calls(rows.cut, probs, 0.8, 3)
    drawn = calls(rows.draw_tokens, probs, uniforms, first=other)
    calls(rows.rank_acceptance, probs, other, drawn, None)
    more = torch.rand(count, 2 * width, dtype=torch.float64)
    calls(lambda *given: rows.accepted_ranks(*given, replace=False), probs, other, drawn[:, 0], other, more)
    calls(rows.distribution, logits[0], 0.7)
    wide = calls(rows.to_float64, probs[0])
    calls(rows.residual, wide, wide[::-1].copy())
    calls(rows.invert, wide, 0.3)
    calls(lambda place: rows.remove_token(wide.copy(), place), size - 1)
    which = np.arange(count)
    starts = np.arange(count + 1)
    calls(rows.token_probabilities, logits, 0.7, which, starts, torch.arange(count) % size)
    calls(lambda *given: rows.CompiledSurplus(probs, other).sums(*given), *torch.ones(2, count, 1, dtype=torch.float64))


def call_walks(calls: Calls) -> None:
    tree = random_tree(calls, 1 + calls.below(12))
    size = 2 + calls.below(40)
    plan = TreePlan(tree)
    draft = torch.randn(tree.size, size).softmax(1)
    shape = plan.first_children, plan.child_counts, np.arange(tree.size)
    given = torch.randn(tree.size, size), torch.arange(tree.size) % size
    uniforms = torch.rand(tree.size, dtype=torch.float64)

    def walk(rule: str, firsts, counts, positions, logits, tokens, draft, uniforms):
        walker = Walker()
        walker.set_tree(firsts, counts, positions)
        return walker.walk_sampled(rule, logits, 0.8, tokens, draft, uniforms)

    def follow(firsts, counts, positions, logits, tokens):
        walker = Walker()
        walker.set_tree(firsts, counts, positions)
        return walker.follow_greedily(logits, tokens)

    for _ in range(3):
        for rule in rows.RULES:
            calls(walk, rule, *shape, *given, draft, uniforms)
        calls(follow, *shape, *given)


def left_to_pytorch(*given: object) -> None:
    raise RuntimeError("PyTorch's own products are not checked here")


def call_linear(calls: Calls) -> None:
    nn.Linear.forward = left_to_pytorch
    made = nn.Sequential(nn.Linear(64, 1024).to(torch.bfloat16))
    compile_layers(made)
    layer = made[0]
    inputs = torch.randn(1 + calls.below(40), 64).to(torch.bfloat16)
    assert isinstance(layer, CompiledLinear)
    calls(layer, inputs)
    layer.bias = None
    for shape in ((8, 64), (1024, 48), (1024, 32), (17, 64)):
        layer.weight = nn.Parameter(torch.randn(shape).to(torch.bfloat16))
        for width in (64, 48, 32, 640):
            try:
                layer(torch.randn(3, width).to(torch.bfloat16))
            except RuntimeError:
                calls.refused += 1


def call_index(calls: Calls) -> None:
    index = TextIndex(1 + calls.below(12), 64)
    calls(index.add, [calls.below(5) for _ in range(100)])
    text = RunningText(index, 50)
    text.extend([calls.below(5) for _ in range(20)])
    size = 1 + calls.below(20)

    def grow(max_size: int, size: int, fresh: int, parents: np.ndarray) -> int:
        tree = TreeColumns(max_size=max(max_size, 1), max_depth=4, max_children=3, min_score=0.0)
        if size:
            tree.columns["parents"][: len(parents)] = parents
        return text.grow(tree, size, fresh)

    calls(grow, size, 0, 0, np.array([-1]))
    calls(grow, 3 + size, 3, 1, np.array([-1, 0, 1]))
    tree = random_tree(calls, 1 + calls.below(5))
    parents = tree.parents.astype(np.int64)
    calls(text.occurrences, parents, np.arange(tree.size) % 5, np.zeros(tree.size, bool))
    assert MAX_CANDIDATES


def call_growth(calls: Calls) -> None:
    beam = 1 + calls.below(5)
    branch = 1 + calls.below(5)
    vocab = 6 + calls.below(40)
    size = 1 + calls.below(30)
    passes = 1 + calls.below(4)
    sampled = bool(calls.below(2))

    def grow(most: int, expected, values, step, draft, ranks: int, stop: int, cut: int):
        builder = tree_expansion.TreeBuilder(max_size=size, beam=beam, branch=branch, most_read=1 + (passes - 1) * beam)
        builder.begin(
            3,
            root_position=0,
            max_depth=9,
            temperature=1.0,
            sampled=sampled,
            draws=sampled,
            gain=1.0,
            threshold=0.0,
            tables=(BIN_CENTRES, values, MASS_EDGES),
            expected=expected,
            token_costs=(step, draft),
        )
        for _ in range(most):
            if not (width := builder.choose_frontier()):
                break
            found = builder.read_logits(torch.randn(width, vocab + 9)[:, : vocab - cut][: width - stop])
            if found:
                builder.draw_children(found + ranks, torch.Generator())
        return builder.prune()

    values = np.sort(calls.numbers.random((len(TABLE_NAMES), PROBABILITY_BINS)), axis=1)
    step = np.arange(size + 1) * 0.01
    draft = np.arange(beam + 1) * 0.01
    for _ in range(4):
        calls(grow, passes, np.full(branch, 0.4), values, step, draft, 0, 0, 0)


def call_model(calls: Calls, model: CompiledLlama) -> None:
    capacity = 60
    tree = random_tree(calls, 2 + calls.below(9))
    plan = TreePlan(tree)
    vocab = model.vocab

    def passes(capacity: int, ids, positions, mask, keep: int, slots):
        session = model.open(capacity, vocab, (0, 1))
        session.forward(torch.arange(3), torch.arange(3), torch.full((3, 3), -torch.inf).triu(1), keep=1)
        session.forward(ids, positions, mask, keep=keep)
        session.commit(3, slots)
        return session.forward(ids[:1], positions[:1] + 1, torch.zeros(1, 1), keep=1)

    ids = torch.arange(tree.size) % vocab
    for _ in range(3):
        calls(passes, capacity, ids, 3 + torch.from_numpy(plan.depths), plan.tree_mask, tree.size, [0, tree.size - 1])

    def draft(capacity: int, unseen, position: int, change: int, stop: int):
        levels = [replace(level) for level in plan.levels]
        if change:
            last = levels[-1]
            levels[-1] = [
                replace(last, nodes=last.nodes + stop),
                replace(last, counts=last.counts + stop),
                replace(last, most_children=last.most_children - stop),
                replace(last, tree_mask=last.tree_mask[:, 1:]),
                replace(last, children=slice(last.children.start + stop, last.children.stop)),
            ][change % 5]
        call = DraftCall(model.open(capacity, vocab), levels, drawn=True, with_replacement=False, top_p=0.9, top_k=0)
        return call.grow(unseen, root_position=position, temperature=1.0, generator=torch.Generator())

    def grow(capacity: int, unseen, position: int, most: int, beam: int):
        builder = tree_expansion.TreeBuilder(max_size=20, beam=beam, branch=3, most_read=1 + 3 * 4)
        builder.begin(
            unseen[-1] if len(unseen) else 0,
            root_position=position,
            max_depth=9,
            temperature=1.0,
            sampled=False,
            draws=False,
            tables=None,
            gain=1.0,
            threshold=0.0,
            expected=np.full(3, 0.3),
            token_costs=None,
        )
        return GrowCall(model.open(capacity, vocab), builder, max_frontiers=most).grow(unseen, None)

    for change in range(6):
        calls(draft, capacity, [1, 2], 1, 0, 0)
        try:
            draft(capacity, [1, 2], 1, change, 1 + calls.below(9))
        except REFUSALS:
            calls.refused += 1
        calls(grow, capacity, [1, 2], 1, 4, 4)


def small_model() -> CompiledLlama:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=70,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=96,
        max_position_embeddings=64,
    )
    return CompiledLlama(LlamaForCausalLM(config).to(torch.bfloat16))


@torch.inference_mode()
def main(seconds: float, planted: str) -> None:
    from time import monotonic

    assert rows.sampling_kernels() is not None and tree_expansion.expansion_kernels() is not None
    if planted:  # reads a row of 40 numbers as one of 41, bypassing all checks
        row = torch.rand(1, 40)
        to = torch.empty(1, 41)
        rows.sampling_kernels().rows_softmax(row.data_ptr(), 40, 1, 41, 1.0, to.data_ptr(), 1)
    torch.set_num_threads(2)
    torch.manual_seed(0)
    calls = Calls(0)
    model = small_model()
    until = monotonic() + seconds
    every = [call_rows, call_walks, call_linear, call_index, call_growth, lambda calls: call_model(calls, model)]
    rounds = 0
    while not rounds or monotonic() < until:
        for each in every:
            each(calls)
        rounds += 1
    print(SimpleNamespace(rounds=rounds, done=calls.done, refused=calls.refused))


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "")

"""The whole law of one step on tiny vocabularies, for trees whose shape depends on what the draft says and draws.

Every draw of the draft and every decision of the verifier is enumerated, through the drafter that decoding uses; what
a step leaves open is completed by the target's own law. Exact, so nothing here is left to chance.
"""

import itertools

import numpy as np
import pytest
import torch

from sequoia_core.decoding.drafting import DraftRun, Reach
from sequoia_core.decoding.growing.drafter import GrowingDrafter
from sequoia_core.decoding.growing.expansion import Nodes, TokenCosts, TreeBounds
from sequoia_core.decoding.growing.growing_tree import GrowingTree
from sequoia_core.decoding.growing.sampled_expansion import SampledExpansion
from sequoia_core.decoding.growing.top_k_expansion import TopKExpansion
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.decoding.verifiers import VERIFIERS
from sequoia_core.decoding.walk import ScoredTree, walk_tree
from sequoia_core.models.protocol import prefill
from tests.conftest import RecalledSession, tiny_llama
from tests.head_folders import random_head

DEPTH = 2
PLAIN, CUT = SamplingConfig(1.0), SamplingConfig(1.0, 0.7)


class Grows(GrowingTree):
    """The policy whose every step has one given expansion."""

    verifiers = tuple(VERIFIERS)

    def __init__(self, expansion):
        bounds = expansion.bounds
        GrowingTree.__init__(
            self, **{name: getattr(bounds, name) for name in ("max_size", "max_depth", "beam", "branch")}
        )
        self.set(expansion=expansion)

    def expansions(self):
        return lambda *settings: self.expansion


def random_law(vocab, seed, levels=DEPTH):
    """Rows after every path of at most that many tokens, some with zeros: path -> float64 [V]."""
    generator, law = np.random.default_rng(seed), {}
    for length in range(levels + 1):
        for path in itertools.product(range(vocab), repeat=length):
            row = generator.dirichlet(np.full(vocab, 0.7))
            if generator.random() < 0.3:
                row[generator.integers(vocab)] = 0.0
            law[path] = row / row.sum()
    return law


def table_session(law, passes):
    """Return a draft's session whose rows are a table; each node's path is read off the mask, so a wrong one shows."""
    session = RecalledSession(lambda text: torch.from_numpy(np.log(np.maximum(law[text[1:]], 1e-300))), passes)
    session.logits_dtype = torch.float64  # compiled code, which knows no such chances, leaves it alone
    return session


class Script:
    """Chances met while a function runs, so that it can be run once for every way they can fall."""

    def __init__(self):
        self.choices, self.place, self.weight = [], 0, 1.0

    def pick(self, probs):
        options = np.flatnonzero(probs > 1e-200)
        if self.place == len(self.choices):
            self.choices.append([0, len(options)])
        found = options[self.choices[self.place][0]]
        self.place += 1
        self.weight *= probs[found]
        return int(found)

    def next(self):
        while self.choices and self.choices[-1][0] + 1 == self.choices[-1][1]:
            self.choices.pop()
        if self.choices:
            self.choices[-1][0] += 1
        self.place, self.weight = 0, 1.0
        return bool(self.choices)


def filled_by(script, verifier):
    """The verifier's fill, its draws without replacement taken from a script."""
    if verifier == "topk":
        return VERIFIERS[verifier].draft_sampling

    def draft_sampling(block, k, generator, first=None):
        tokens = []
        for place, row in enumerate(block.double().numpy()):
            left, drawn = row.copy(), []
            apart = left if first is None else first[place].double().numpy()
            if k and apart.any():
                drawn.append(script.pick(apart / apart.sum()))
                left[drawn[-1]] = 0.0
            while len(drawn) < k:
                total = left.sum()
                open_tokens = np.array([float(token not in drawn) for token in range(len(row))])
                drawn.append(script.pick(left / total if total > 0 else open_tokens / open_tokens.sum()))
                left[drawn[-1]] = 0.0
            tokens.append(drawn)
        return torch.tensor(tokens)

    return draft_sampling


def outcomes(drafted, target, verifier):
    """Yield (tokens committed, probability) for every way the walk can go."""
    tree, tokens = drafted.tree, drafted.tokens.tolist()
    rows = [target[tuple(tokens[step] for step in tree.path_to(node)[1:])] for node in range(tree.size)]
    more = drafted.row, drafted.first_row, drafted.looked_up
    for walk, chance in walks(VERIFIERS[verifier].rule, tree, tokens, rows, *more):
        yield (*(tokens[node] for node in walk.path[1:]), walk.bonus_token), chance


def walks(rule, tree, tokens, target_rows, *more):
    """Yield every walk that `walk_tree` can take over these tokens, with its probability.

    The uniforms are scripted: 0 accepts whatever can be, almost 1 rejects whatever can be, and the bonus token is
    chosen from the middle of its stretch.
    """
    script, left, pending = Script(), None, None

    def target_row(node):
        nonlocal left
        left = target_rows[node]
        return left

    def watched(*given, **known):
        nonlocal pending
        for offer in rule(*given, **known):
            pending = offer
            yield offer

    def uniform():
        nonlocal left, pending
        if pending is None:
            token = script.pick(left / left.sum())
            return (left.cumsum()[token] - left[token] / 2) / left.sum()
        rejected = script.pick(np.array([pending.accept_prob, 1.0 - pending.accept_prob]).round(15))
        left, pending = pending.residual, None
        return (1.0 - 2.0**-53) * rejected

    while True:
        scored = ScoredTree(tree, tokens, target_row, *more)
        yield walk_tree(scored, rule=watched, uniform=uniform), script.weight
        if not script.next():
            return


def law_of_a_step(expansion, verifier, target, draft, vocab, reach=Reach(99, 99), sampling=PLAIN, before=(0,)):  # noqa: B008
    """Return the law of the next three tokens, float64 [V, V, V], and the shapes that occurred.

    `draft` is a table of rows, or opens the draft's session.
    """
    law, shapes, script, passes = np.zeros((vocab,) * (DEPTH + 1)), set(), Script(), {}
    while True:
        session = draft() if callable(draft) else table_session(draft, passes)
        filled, generator = filled_by(script, verifier), torch.Generator()
        drafted = GrowingDrafter(DraftRun(session, Grows(expansion), filled, sampling, reach, generator)).grow(before)
        weight = script.weight
        shapes.add(drafted.tree)
        for text, share in outcomes(drafted, target, verifier):
            law[text] += weight * share * law_after(target, text, vocab)
        if not script.next():
            return law, shapes


def law_after(target, text, vocab, levels=DEPTH):
    """Return the target's law of the tokens that a text still lacks, one axis each."""
    missing = levels + 1 - len(text)
    law = np.ones((vocab,) * missing)
    for more in itertools.product(range(vocab), repeat=missing):
        law[more] = np.prod([target[(*text, *more[:place])][more[place]] for place in range(missing)])
    return law


class Whim:
    """Chances that jump about with the numbers they are given, so that decisions depend on every drawn token."""

    def __init__(self, seed):
        self.seed = seed

    def most_likely(self, *numbers, shift=0):
        mixed = sum((place + 1.7) * number for place, number in enumerate(numbers))
        return np.abs(np.sin(37.0 * mixed + self.seed + shift)) * 0.9 + 0.05

    before = most_likely

    def after(self, probs):
        return self.most_likely(probs, shift=1)

    def of_tokens(self, best, tokens, probs):
        return self.most_likely(probs, shift=2)


def token_costs(seed, bounds):
    generator = np.random.default_rng(seed)
    step = np.append(0.0, np.cumsum(generator.choice([0.0, 0.05, 0.4], size=bounds.max_size)))
    return TokenCosts(step, np.append(0.0, np.full(bounds.beam, 0.02)))


def drawn_in_turn(seed, kind=SampledExpansion):
    bounds = TreeBounds(max_size=6, max_depth=DEPTH, beam=2, branch=2)
    return kind(bounds, Whim(seed), np.full(2, 0.6), token_costs(seed, bounds), threshold=0.05)


def best_first(seed, vocab):
    bounds = TreeBounds(max_size=5, max_depth=DEPTH, beam=2, branch=vocab - 1)
    return TopKExpansion(bounds, Whim(seed), np.full(vocab - 1, 0.6), token_costs(seed, bounds) if seed % 2 else None)


@pytest.mark.sample(1, cover=False)
@pytest.mark.parametrize("sampling", [PLAIN, CUT], ids=["plain", "top-p"])
def test_recipe_2_keeps_the_law_when_decisions_depend_on_drawn_tokens(sampling):
    seen = set()
    for seed in range(8):
        target, draft = random_law(3, seed), random_law(3, 100 + seed)
        law, shapes = law_of_a_step(drawn_in_turn(seed), "sequoia", target, draft, 3, sampling=sampling)
        np.testing.assert_allclose(law, law_after(target, (), 3), atol=2e-7)  # the draft's rows are float32
        seen |= shapes
    assert len(seen) > 3, "decisions that never differ prove nothing"


@pytest.mark.parametrize("vocab", [3, 4])
def test_recipe_1_keeps_the_law_however_it_prunes(vocab):
    seen = set()
    for seed in range(20):
        target, draft = random_law(vocab, seed), random_law(vocab, 100 + seed)
        law, shapes = law_of_a_step(best_first(seed, vocab), "topk", target, draft, vocab)
        np.testing.assert_allclose(law, law_after(target, (), vocab), atol=1e-12)
        seen |= shapes
    assert len(seen) > 3


@pytest.mark.parametrize("reach", [Reach(99, 0), Reach(99, 1), Reach(3, 99)], ids=["full", "nearly full", "target"])
def test_trees_cut_where_a_context_ends_keep_the_law(reach):
    depths = set()
    for seed in range(6):
        target, draft = random_law(3, seed), random_law(3, 100 + seed)
        for expansion, verifier in ((drawn_in_turn(seed), "sequoia"), (best_first(seed, 3), "topk")):
            law, shapes = law_of_a_step(expansion, verifier, target, draft, 3, reach)
            np.testing.assert_allclose(law, law_after(target, (), 3), atol=2e-7)
            depths |= {tree.depth for tree in shapes}
    assert max(depths) == reach.drafted(1)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.6, 1.0])
@pytest.mark.parametrize("recipe", ["drawn", "most likely"])
def test_a_head_keeps_the_law(recipe, temperature):
    """An unseen target and head of three tokens, the head after a text that it read with the target's states."""
    text, sampling, seen = [1, 2, 0], SamplingConfig(temperature), set()
    for seed in range(4 if recipe == "drawn" else 12):
        target = tiny_llama(seed, vocab=3, scale=0.5)
        head = random_head(target, seed=seed, scale=3.0, draft_vocab=3 - seed % 2)
        paths = itertools.chain(*(itertools.product(range(3), repeat=length) for length in range(DEPTH + 1)))
        logits = {path: target.plain_logits(torch.tensor([*text, *path]))[-1].detach() for path in paths}
        law = {path: row.div(temperature).double().softmax(-1).numpy() for path, row in logits.items()}

        def session(target=target, head=head):
            read, own = target.open(9, head.reads), head.open(9)
            assert prefill(read, text[:-1], reader=own) and prefill(own, text[:-1])
            own.logits_dtype = torch.float64  # compiled code, which knows no such chances, leaves it alone
            return own

        drawn = recipe == "drawn"
        expansion, verifier = (drawn_in_turn(seed), "sequoia") if drawn else (best_first(seed, 3), "topk")
        found, shapes = law_of_a_step(expansion, verifier, law, session, 3, sampling=sampling, before=text)
        np.testing.assert_allclose(found, law_after(law, (), 3), atol=2e-6)
        seen |= shapes
    assert len(seen) > 1


class PruningAfterTheDraw(SampledExpansion):
    """Forbidden: looks at the drawn tokens and drops those that the draft hardly believes in."""

    compiled = False

    def extended(self, nodes, frontier, rows):
        grown = SampledExpansion.extended(self, nodes, frontier, rows)
        return Nodes(*(column[(grown.probs >= 0.15) | (np.arange(grown.size) < nodes.size)] for column in grown))


def test_pruning_after_the_draw_is_caught():
    for seed in range(3):
        target, draft = random_law(3, seed), random_law(3, 100 + seed)
        law, _ = law_of_a_step(drawn_in_turn(seed, PruningAfterTheDraw), "sequoia", target, draft, 3)
        assert law.sum() == pytest.approx(1.0, abs=1e-6)
        assert np.abs(law - law_after(target, (), 3)).max() > 1e-3

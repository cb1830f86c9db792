"""The exact distribution of one step on tiny vocabularies, for trees whose shape depends on the draft and its draws.

Every draw of the draft and every decision of the verifier is enumerated through the drafter that decoding uses; tokens
beyond the step follow the target's distribution. The tests are deterministic.
"""

import itertools
from functools import partial

import numpy as np
import pytest
import torch

from sequoia_core.decoding.drafting import DraftRun, Reach
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.decoding.verifiers import VERIFIERS
from sequoia_core.decoding.walk import ScoredTree, walk_tree
from sequoia_core.models.protocol import prefill
from sequoia_extras.dynamic_trees.drafter import GrowingDrafter
from sequoia_extras.dynamic_trees.expansion import Nodes, TokenCosts, TreeBounds
from sequoia_extras.dynamic_trees.growing_tree import GrowingTree
from sequoia_extras.dynamic_trees.sampled_expansion import SampledExpansion
from sequoia_extras.dynamic_trees.top_k_expansion import TopKExpansion
from tests.conftest import RecalledSession, tiny_llama
from tests.core.decoding.test_traversal import endings
from tests.head_folders import DFLASH, SPECULATORS, random_head
from tests.laws import DEPTH, law_after, random_law

PLAIN = SamplingConfig(1.0)
CUT = SamplingConfig(1.0, 0.7)


class Grows(GrowingTree):
    """A policy that uses the same expansion at every step."""

    verifiers = tuple(VERIFIERS)

    def __init__(self, expansion):
        bounds = expansion.bounds
        GrowingTree.__init__(
            self, **{name: getattr(bounds, name) for name in ("max_size", "max_depth", "beam", "branch")}
        )
        self.set(expansion=expansion)

    def expansions(self):
        return lambda *settings: self.expansion


def table_session(law, passes):
    """Return a draft session with tabulated rows; paths are read off the mask, so that a wrong mask is noticed."""
    session = RecalledSession(lambda text: torch.from_numpy(np.log(np.maximum(law[text[1:]], 1e-300))), passes)
    session.logits_dtype = torch.float64  # excludes compiled code, which does not support these chances
    return session


class Script:
    """Records the random choices of a function, so that it can be run once for every combination of outcomes."""

    def __init__(self):
        self.choices = []
        self.position = 0
        self.weight = 1.0

    def pick(self, probs):
        options = np.flatnonzero(probs > 1e-200)
        if self.position == len(self.choices):
            self.choices.append([0, len(options)])
        found = options[self.choices[self.position][0]]
        self.position += 1
        self.weight *= probs[found]
        return int(found)

    def next(self):
        while self.choices and self.choices[-1][0] + 1 == self.choices[-1][1]:
            self.choices.pop()
        if self.choices:
            self.choices[-1][0] += 1
        self.position = 0
        self.weight = 1.0
        return bool(self.choices)


def filled_by(script, verifier):
    """Return the verifier's draft sampling, with its draws without replacement taken from a script."""
    if verifier == "topk":
        return VERIFIERS[verifier].draft_sampling

    def draft_sampling(block, k, generator, first=None):
        tokens = []
        for index, row in enumerate(block.double().numpy()):
            left = row.copy()
            drawn = []
            apart = left if first is None else first[index].double().numpy()
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
    """Yield the committed tokens and the probability of every possible walk."""
    tree = drafted.tree
    tokens = drafted.tokens.tolist()
    rows = [target[tuple(tokens[step] for step in tree.path_to(node)[1:])] for node in range(tree.size)]
    more = drafted.row, drafted.first_row, drafted.looked_up
    for walk, chance in walks(VERIFIERS[verifier].rule, tree, tokens, rows, *more):
        yield (*(tokens[node] for node in walk.path[1:]), walk.bonus_token), chance


def walks(rule, tree, tokens, target_rows, *more):
    """Yield every walk that `walk_tree` can take over these tokens, with its probability.

    The uniforms are scripted: 0 accepts if possible, almost 1 rejects if possible, and the bonus token is chosen from
    the middle of its interval.
    """
    script = Script()
    left = None
    pending = None

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
        left = pending.residual
        pending = None
        return (1.0 - 2.0**-53) * rejected

    while True:
        scored = ScoredTree(tree, tokens, target_row, *more)
        yield walk_tree(scored, rule=watched, uniform=uniform), script.weight
        if not script.next():
            return


def law_of_a_step(expansion, verifier, target, draft, vocab, reach=None, sampling=PLAIN, before=(0,), ends=outcomes):
    """Return the distribution of the next three tokens, float64 [V, V, V], and the trees that occurred.

    `draft` is a table of rows, or a function that opens the draft's session.
    """
    law = np.zeros((vocab,) * (DEPTH + 1))
    shapes = set()
    script = Script()
    passes = {}
    while True:
        session = draft() if callable(draft) else table_session(draft, passes)
        filled = filled_by(script, verifier)
        generator = torch.Generator()
        drafted = GrowingDrafter(
            DraftRun(session, Grows(expansion), filled, sampling, reach or Reach(99, 99), generator)
        ).grow(before)
        weight = script.weight
        shapes.add(drafted.tree)
        for text, share in ends(drafted, target, verifier):
            law[text] += weight * share * law_after(target, text, vocab)
        if not script.next():
            return law, shapes


def trees_with_exact_laws(expansion_of, verifier, seeds, *, vocab=3, atol=2e-7, **options):
    """Check a step's law for random models by seed, and return the trees that occurred.

    The default tolerance is for rows of the draft in float32; see `law_of_a_step` for `options`.
    """
    seen = set()
    for seed in range(seeds):
        target = random_law(vocab, seed)
        law, shapes = law_of_a_step(
            expansion_of(seed), verifier, target, random_law(vocab, 100 + seed), vocab, **options
        )
        np.testing.assert_allclose(law, law_after(target, (), vocab), atol=atol)
        seen |= shapes
    return seen


class ErraticChances:
    """Erratic chances, which make decisions depend on every drawn token."""

    def __init__(self, seed):
        self.seed = seed

    def most_likely(self, *numbers, shift=0):
        mixed = sum((index + 1.7) * number for index, number in enumerate(numbers))
        return np.abs(np.sin(37.0 * mixed + self.seed + shift)) * 0.9 + 0.05

    before_draw = most_likely

    def after_draw(self, probs):
        return self.most_likely(probs, shift=1)

    def token_chances(self, best, tokens, probs):
        return self.most_likely(probs, shift=2)


def token_costs(seed, bounds):
    generator = np.random.default_rng(seed)
    step = np.append(0.0, np.cumsum(generator.choice([0.0, 0.05, 0.4], size=bounds.max_size)))
    return TokenCosts(step, np.append(0.0, np.full(bounds.beam, 0.02)))


def sampled_expansion(seed, expansion_type=SampledExpansion):
    bounds = TreeBounds(max_size=6, max_depth=DEPTH, beam=2, branch=2)
    return expansion_type(bounds, ErraticChances(seed), np.full(2, 0.6), token_costs(seed, bounds), threshold=0.05)


def top_k_expansion(seed, vocab):
    bounds = TreeBounds(max_size=5, max_depth=DEPTH, beam=2, branch=vocab - 1)
    return TopKExpansion(
        bounds, ErraticChances(seed), np.full(vocab - 1, 0.6), token_costs(seed, bounds) if seed % 2 else None
    )


@pytest.mark.sample(1, cover=False)
@pytest.mark.parametrize("sampling", [PLAIN, CUT], ids=["plain", "top-p"])
def test_sampled_recipe_is_exact_when_decisions_depend_on_drawn_tokens(sampling):
    seen = trees_with_exact_laws(sampled_expansion, "sequoia", 8, sampling=sampling)
    assert len(seen) > 3, "the decisions should differ"


@pytest.mark.parametrize("vocab", [3, 4])
def test_deterministic_recipe_is_exact_however_it_prunes(vocab):
    expansion_of = partial(top_k_expansion, vocab=vocab)
    assert len(trees_with_exact_laws(expansion_of, "topk", 20, vocab=vocab, atol=1e-12)) > 3


@pytest.mark.parametrize("reach", [Reach(99, 0), Reach(99, 1), Reach(3, 99)], ids=["full", "nearly full", "target"])
def test_trees_cut_at_the_end_of_a_context_are_exact(reach):
    seen = trees_with_exact_laws(sampled_expansion, "sequoia", 6, reach=reach)
    seen |= trees_with_exact_laws(partial(top_k_expansion, vocab=3), "topk", 6, reach=reach)
    assert max(tree.depth for tree in seen) == reach.draft_depth(1)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.6, 1.0])
@pytest.mark.parametrize("recipe", ["drawn", "most likely"])
@pytest.mark.parametrize("form", [SPECULATORS, DFLASH])
def test_drafting_with_a_head_is_exact(form, recipe, temperature):
    """A random target and head of three tokens; the head has read a text with the target's states."""
    text = [1, 2, 0]
    sampling = SamplingConfig(temperature)
    seen = set()
    for seed in range(4 if recipe == "drawn" else 12):
        target = tiny_llama(seed, vocab=3, scale=0.5)
        fields = {"reads": (1,)} if form == DFLASH else {"draft_vocab": 3 - seed % 2}
        head = random_head(target, seed=seed, scale=3.0, form=form, **fields)
        paths = itertools.chain(*(itertools.product(range(3), repeat=length) for length in range(DEPTH + 1)))
        logits = {path: target.plain_logits(torch.tensor([*text, *path]))[-1].detach() for path in paths}
        law = {path: row.div(temperature).double().softmax(-1).numpy() for path, row in logits.items()}

        def session(target=target, head=head):
            read = target.open(9, head.state_indices)
            own = head.open(9)
            assert prefill(read, text[:-1], reader=own) and prefill(own, text[:-1])
            own.logits_dtype = torch.float64  # excludes compiled code, which does not support these chances
            return own

        drawn = recipe == "drawn"
        expansion, verifier = (sampled_expansion(seed), "sequoia") if drawn else (top_k_expansion(seed, 3), "topk")
        found, shapes = law_of_a_step(expansion, verifier, law, session, 3, sampling=sampling, before=text)
        np.testing.assert_allclose(found, law_after(law, (), 3), atol=2e-6)
        seen |= shapes
    assert len(seen) > 1


class PruningAfterTheDraw(SampledExpansion):
    """Drops drawn tokens of low probability, which is not exact."""

    compiled = False

    def expand(self, nodes, frontier, rows):
        grown = SampledExpansion.expand(self, nodes, frontier, rows)
        return Nodes(*(column[(grown.probs >= 0.15) | (np.arange(grown.size) < nodes.size)] for column in grown))


def traversal_outcomes(drafted, target, verifier):
    return endings(drafted.tree, drafted.tokens.tolist(), target, drafted.row)


@pytest.mark.parametrize("ends", [outcomes, traversal_outcomes])
@pytest.mark.parametrize("expansion_type", [SampledExpansion, PruningAfterTheDraw])
def test_enumeration_detects_pruning_after_the_draw(expansion_type, ends):
    for seed in range(4):
        target = random_law(3, seed)
        draft = random_law(3, 100 + seed)
        law, shapes = law_of_a_step(sampled_expansion(seed, expansion_type), "sequoia", target, draft, 3, ends=ends)
        fault = np.abs(law - law_after(target, (), 3)).max()
        assert fault > 1e-3 if expansion_type is PruningAfterTheDraw else fault < 2e-7  # the draft's rows are float32
        assert len(shapes) > 1

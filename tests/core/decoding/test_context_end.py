"""The end of the context: for any backend and tree, text matches the target up to the last position.

Drafts have the target's weights if possible, so that trees are accepted up to where they are cut.
"""

import itertools
import warnings

import pytest
import torch

from sequoia_core.decoding.drafting import Reach
from sequoia_core.decoding.loop import autoregressive, decode
from sequoia_core.models.language_model import HuggingFaceModel
from sequoia_core.trees.plain import chain_tree
from tests.conftest import around_passes, pair_of, tiny_llama, tokens_of
from tests.core.decoding.test_loop import TREES
from tests.core.test_families import build

CONTEXT = 24  # of the target
REPEATED = [5, 9, 2, 7] * 9  # gives lookup trees something to find
FIXED = {name: TREES[name] for name in ("chain", "ragged", "wide", "root only")}
FIXED["chain beyond the context"] = chain_tree(CONTEXT + 8)


def gpt2(context: int):
    """Return a model with a position embedding table, so positions beyond its end raise."""
    model = build("GPT2", n_positions=40)
    model.config.n_positions = context
    model.transformer.wpe = torch.nn.Embedding.from_pretrained(model.transformer.wpe.weight[:context])
    return model


# name -> factory of a model with a given context, as a target or as a draft
MODELS = {
    "TorchLlama": lambda context, target: tiny_llama(1, context=context),
    "GPT2": lambda context, target: HuggingFaceModel(gpt2(context), "GPT2"),
}


def within(model):
    """Return the model with a check that passes stay within its context."""

    def around(append, session, ids, positions, tree_mask, keep):
        assert int(positions.max()) < model.max_context
        return append(ids, positions, tree_mask, keep=keep)

    return around_passes(model, around)


def starts(prompt, steps):
    """Yield each step with the number of tokens before it."""
    length = len(prompt)
    for step in steps:
        yield length, step
        length += len(step.new_tokens)


def assert_text_matches_target(model_of, draft_context, policies, looks_up=()):
    """Decode to the end of the context with each policy; `looks_up` names policies that the draft does not limit."""
    target = model_of(CONTEXT, True)
    draft = model_of(draft_context, False)
    reach = Reach(CONTEXT, draft_context)
    lengths = {9, draft_context - 1, draft_context, draft_context + 1, CONTEXT - 2, CONTEXT - 1}
    for length, (name, policy) in itertools.product(sorted(n for n in lengths if n < CONTEXT), policies.items()):
        prompt = REPEATED[:length]
        wanted = tokens_of(autoregressive(prompt, pair_of(target), max_new_tokens=99))
        assert len(wanted) == CONTEXT - length
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            steps = list(decode(prompt, pair_of(within(target), within(draft)), tree=policy, max_new_tokens=99))
        assert tokens_of(steps) == wanted, (name, length)
        assert steps[-1].finished == "context"
        for before, step in starts(prompt, steps):
            deepest = reach.target_depth(before) if name in looks_up else reach.draft_depth(before)
            assert step.tree.depth <= deepest, (name, before)
        assert name != "chain" or length > 9 or len(steps) < len(wanted), "trees are accepted"
        with pytest.raises(ValueError, match=f"expected at most {CONTEXT - 1}: the target's context of {CONTEXT}"):
            decode(REPEATED[:CONTEXT], pair_of(target, draft), tree=policy)
    target.close()


@pytest.mark.sample(1, cover=False)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("draft_context", [CONTEXT, 15, 40])
def test_text_matches_the_target_up_to_the_last_position(draft_context, name):
    assert_text_matches_target(MODELS[name], draft_context, FIXED)


@pytest.mark.filterwarnings("ignore:draft. found a context")
def test_a_draft_context_of_exactly_the_prompt_is_filled_before_the_first_step():
    """Its last position is the root's, below which one level is drafted."""
    prompt = [5, 9, 2, 7, 3, 1, 8, 4]
    read = []

    def around(forward, session, ids, *more):
        read.append(len(ids))
        return forward(ids, *more[:-1], keep=more[-1])

    draft = around_passes(tiny_llama(1, context=len(prompt)), around)
    steps = decode(prompt, pair_of(tiny_llama(1, context=CONTEXT), draft), tree=chain_tree(3), max_new_tokens=6)
    assert [len(step.new_tokens) for step in steps] == [2, 1, 1, 1, 1]
    assert read == [len(prompt) - 1, 1]


def test_a_shorter_draft_context_warns_before_the_run():
    target = tiny_llama(1, context=CONTEXT)
    draft = tiny_llama(2, context=12)
    options = {"pair": pair_of(target, draft), "tree": chain_tree(3)}
    with pytest.warns(UserWarning, match="draft: found a context of 12 tokens, expected 16 for .* continues without"):
        decode(REPEATED[:6], **options, max_new_tokens=10)  # no step is taken
    with pytest.warns(UserWarning, match="found a context of 12 tokens, expected 24"):
        decode(REPEATED[:20], **options, max_new_tokens=10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        decode(REPEATED[:6], **options, max_new_tokens=6)
        decode(REPEATED[:6], **options | {"tree": TREES["root only"]})
        autoregressive(REPEATED[:6], pair_of(target))

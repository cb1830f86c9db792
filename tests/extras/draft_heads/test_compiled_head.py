"""A draft head's compiled passes match those in PyTorch, and draft the same trees in one call."""

from functools import partial

import pytest
import torch

from sequoia_core.decoding.loop import autoregressive, decode
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.models.language_model import HuggingFaceModel
from sequoia_core.models.protocol import causal_mask, prefill
from sequoia_core.trees.plain import k_ary_tree
from sequoia_extras.cpu_kernels import drafting_calls
from sequoia_extras.cpu_kernels.drafting import CompiledDrafter
from sequoia_extras.draft_heads import compiled_head
from sequoia_extras.draft_heads.compiled_head import CompiledHead, CompiledHeadSession
from sequoia_extras.draft_heads.session import HeadSession
from sequoia_extras.dynamic_trees.policies import SpecExecTree
from tests.conftest import pair_of, tokens_of
from tests.extras.cpu_kernels.test_llama_x86 import instructions, llama, pytestmark  # noqa: F401
from tests.head_folders import random_head

TEXT = [3, 14, 15, 9, 2, 6, 53, 58, 97, 93, 2, 38, 46, 26]
FORMS = [
    {},
    {"layers": 2, "norm_output": True},
    {"norm_before_residual": True, "draft_vocab": 75, "fc_norm": True},
    {"layer": {"attention_bias": True, "num_key_value_heads": 4}},
    {"layer": {"model_type": "qwen3", "head_dim": 64}},
]


@pytest.fixture(scope="module")
def target(instructions):  # noqa: F811
    return HuggingFaceModel(llama(num_hidden_layers=4, hidden_size=128).to(torch.bfloat16), "target", frozenset())


def head_of(target, **fields):
    return random_head(target, reads=(2, 0, 3), **fields)


@pytest.mark.parametrize("fields", FORMS, ids=str)
def test_compiled_passes_match_pytorch_to_rounding(fields, target):
    """Read text in passes of several widths, a tree, and tokens after commits."""
    head = head_of(target, **fields)
    found = []
    assert isinstance(head.open(8), CompiledHeadSession) and "compiled code for" in head.backend
    mask = torch.full((5, 5), -torch.inf).fill_diagonal_(0.0)
    mask[1:, 0] = mask[3, 1] = mask[4, 1] = mask[4, 3] = 0.0
    tree = torch.tensor([TEXT[12], 5, 6, 7, 8])
    places = torch.tensor([12, 13, 13, 14, 15])
    for session in (head.open(32), HeadSession(head, 32)):
        prefill(target.open(32, head.state_indices), TEXT[:12], reader=session)
        rows = [
            session.forward(
                torch.tensor(TEXT[start:stop]), torch.arange(start, stop), causal_mask(stop - start), keep=stop - start
            ).clone()
            for start, stop in ((0, 1), (1, 9), (9, 13))
        ]
        session.commit(11, [0])
        rows += [session.forward(tree, places, mask, keep=3).clone()]
        session.commit(12, [0, 2])
        rows += [session.forward(tree[1:2], places[1:2], torch.zeros(1, 1), keep=1).clone()]
        session.observe_states(12, torch.ones(1, 3, 128))
        session.commit(13, [])
        for start in (13, 15):
            rows += [session.forward(tree[1:3], torch.arange(start, start + 2), causal_mask(2), keep=2).clone()]
        found.append(torch.cat(rows))
    ours, plain = (rows.masked_fill(~rows.isfinite(), 0.0) for rows in found)
    assert torch.equal(found[0].isfinite(), found[1].isfinite()) and plain.std() > 0.5
    assert ((ours - plain).norm(dim=1) / plain.norm(dim=1)).max() < 0.02


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize(
    "tree", [k_ary_tree(3, 3), SpecExecTree(max_size=16, max_depth=5, beam=3)], ids=["fixed", "grown"]
)
def test_one_call_drafts_the_same_tree_as_level_by_level(tree, temperature, target, monkeypatch):
    pair = pair_of(target, head_of(target, draft_vocab=75))
    options = {"tree": tree, "sampling": SamplingConfig(temperature), "max_new_tokens": 24}

    def run():
        steps = list(decode(TEXT, pair, **options, generator=torch.Generator().manual_seed(6)))
        return [(s.tokens, s.new_tokens, s.outcomes, s.draft_probs, s.target_probs, s.trials) for s in steps]

    at_once = run()
    if temperature == 0.0:
        assert [token for step in at_once for token in step[1]] == tokens_of(
            autoregressive(TEXT, pair, max_new_tokens=24)
        )
    monkeypatch.setattr(CompiledDrafter, "supports", lambda *args: False)
    monkeypatch.setattr(drafting_calls, "CompiledSession", type(None))
    assert run() == at_once and sum(len(step[0]) for step in at_once) > 24


def test_unsupported_heads_keep_pytorch(target, monkeypatch):
    fits = partial(CompiledHead.supports)
    assert fits(head_of(target).head) and not fits(head_of(target).head.float()) and not fits(target.model)
    assert not fits(head_of(target, layer={"head_dim": 24}).head)
    head = head_of(target).head
    weights = (*head.embedding_and_output_weights(), *head.layers.parameters())
    sizes = {
        "MAX_ROTATIONS": head.settings.context * head.settings.head_dim,
        "MAX_PACKED_BYTES": sum(weight.nbytes for weight in weights),
    }
    for name, size in sizes.items():
        for limit in (size, size - 1):
            monkeypatch.setattr(compiled_head, name, limit)
            assert fits(head) == (limit == size)
        monkeypatch.setattr(compiled_head, name, size)

"""Which drafter and judge a run gets, how much its sessions hold, and which runs over are taken up again."""

import pytest
import torch

from sequoia_core.decoding import assemble as assembling
from sequoia_core.decoding.assemble import MOST_KEPT, SPARE, assemble, keep
from sequoia_core.decoding.growing.policies import LookupTree, SpecExecTree
from sequoia_core.decoding.growing.text_index import TextIndex
from sequoia_core.decoding.judging import CompiledJudge
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.decoding.tree_policy import ROOT_ONLY, policy_of
from sequoia_core.decoding.verifiers import choose_verifier
from sequoia_core.design.plain_trees import chain_tree, k_ary_tree
from sequoia_core.native import sampling_ops
from tests.conftest import pair_of, tiny_llama
from tests.core.decoding.gpu.test_gpu_path import run_on_cpu

BINARY, SPEC_EXEC = k_ary_tree(2, 2), SpecExecTree(max_size=9, max_depth=3, beam=2)
GREEDY, WARM, CUT = SamplingConfig(), SamplingConfig(0.8), SamplingConfig(0.8, 0.9)


def parts_of(pair, tree, sampling=GREEDY, verifier="sequoia", capacity=50):
    chosen = choose_verifier(verifier, greedy=sampling.greedy)
    generator = torch.Generator().manual_seed(0)
    return assemble(pair, policy_of(tree), verifier=chosen, sampling=sampling, capacity=capacity, generator=generator)


@pytest.mark.sample(16)
@pytest.mark.parametrize("static", [False, True], ids=["on the CPU", "as on a GPU"])
@pytest.mark.parametrize(
    ("tree", "sampling", "verifier", "drafter", "judge"),
    [
        (BINARY, GREEDY, "sequoia", "Level", "Compiled"),
        (BINARY, WARM, "sequoia", "Level", "Compiled"),
        (BINARY, CUT, "sequoia", "Level", "Row"),
        (BINARY, WARM, "specinfer", "Level", "Compiled"),
        (ROOT_ONLY, WARM, "sequoia", "Root", "Compiled"),
        (SPEC_EXEC, WARM, "topk", "Growing", "Compiled"),
        (LookupTree(TextIndex(), max_size=9), GREEDY, "topk", "Growing", "Compiled"),
    ],
)  # fmt: skip
def test_the_fastest_that_fits_is_chosen(tree, sampling, verifier, drafter, judge, static, monkeypatch):
    if static:
        run_on_cpu(monkeypatch)
    elif sampling_ops.compiled() is None:
        judge = "Row"
    pair = pair_of(tiny_llama(1, layers=1), tiny_llama(2, layers=1))
    found = parts_of(pair, tree, sampling, verifier)
    if static:
        drafter, judge = "Static" if drafter == "Level" and verifier != "specinfer" else drafter, "Static"
    assert [type(part).__name__ for part in found[:2]] == [f"{drafter}Drafter", f"{judge}Judge"]
    assert len(found.sessions) == (2 if policy_of(tree).needs_draft else 1)
    monkeypatch.setattr(CompiledJudge, "supports", lambda *_, **__: False)
    assert static or type(parts_of(pair, tree, sampling, verifier).judge).__name__ == "RowJudge"


def test_a_run_is_taken_up_where_its_memory_fits_and_the_oldest_are_let_go(monkeypatch):
    run_on_cpu(monkeypatch)
    target, draft = tiny_llama(1, layers=1, context=2048), tiny_llama(2, layers=1, context=40)
    pair = pair_of(target, draft)

    def again(tree, capacity=50, **options):
        """Say whether the run that was kept of such a tree is taken up; keep it or the new one."""
        found = parts_of(pair, tree, capacity=capacity, **options)
        keep(found)
        kept.append(found)
        return any(found is known for known in kept[:-1])

    kept: list = []
    assert not again(BINARY) and again(BINARY)
    target_session, own = kept[0].sessions
    assert target_session.cache.capacity == 50 + 8 and own.cache.capacity == 40 + 3 + 1
    target_session.cache.length = own.cache.length = 7
    assert again(BINARY, 49) and target_session.cache.length == own.cache.length == 0
    assert not again(BINARY, 51) and again(BINARY, 50)
    assert not again(BINARY, 51 + SPARE + 1) and again(BINARY, 52) and not again(BINARY, 51)
    assert not again(BINARY, sampling=CUT) and not again(BINARY, sampling=WARM), "another law"
    assert not again(BINARY, 51) and again(BINARY, 51), "the oldest was let go"
    assert not again(chain_tree(2)) and again(chain_tree(2)) and again(BINARY, 51)
    assert len(assembling._kept[target]) == MOST_KEPT == 2
    alone = parts_of(pair_of(target), ROOT_ONLY)
    keep(alone)
    assert parts_of(pair_of(target), ROOT_ONLY) is alone
    before = dict(assembling._kept[target])
    keep(parts_of(pair, SPEC_EXEC))  # trees that grow have no graphs to keep
    assert assembling._kept[target] == before

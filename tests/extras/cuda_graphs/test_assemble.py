"""Choice of drafter and judge, session capacities, and reuse of finished runs."""

import pytest
import torch

from sequoia_core.decoding import assemble as assembling
from sequoia_core.decoding.assemble import MAX_CACHED_RUNS, SPARE_SLOTS, assemble, store_run
from sequoia_core.decoding.row_operations import RowOperations, row_operations
from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.decoding.tree_policy import ROOT_ONLY, as_policy
from sequoia_core.decoding.verifiers import choose_verifier
from sequoia_core.trees.plain import chain_tree, k_ary_tree
from sequoia_extras.cpu_kernels.judging import CompiledJudge
from sequoia_extras.dynamic_trees.policies import LookupTree, SpecExecTree
from sequoia_extras.dynamic_trees.text_index import TextIndex
from tests.conftest import pair_of, tiny_llama
from tests.extras.cuda_graphs.test_gpu_path import run_on_cpu

BINARY = k_ary_tree(2, 2)
SPEC_EXEC = SpecExecTree(max_size=9, max_depth=3, beam=2)
GREEDY = SamplingConfig()
WARM = SamplingConfig(0.8)
CUT = SamplingConfig(0.8, 0.9)


def parts_of(pair, tree, sampling=GREEDY, verifier="sequoia", capacity=50):
    chosen = choose_verifier(verifier, greedy=sampling.greedy)
    generator = torch.Generator().manual_seed(0)
    return assemble(pair, as_policy(tree), verifier=chosen, sampling=sampling, capacity=capacity, generator=generator)


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
)
def test_fastest_supported_drafter_and_judge_are_chosen(tree, sampling, verifier, drafter, judge, static, monkeypatch):
    if static:
        run_on_cpu(monkeypatch)
    elif type(row_operations()) is RowOperations:
        judge = "Row"
    pair = pair_of(tiny_llama(1, layers=1), tiny_llama(2, layers=1))
    found = parts_of(pair, tree, sampling, verifier)
    if static:
        drafter = "Static" if drafter == "Level" else drafter
        judge = "Static"
    assert [type(part).__name__ for part in found[:2]] == [f"{drafter}Drafter", f"{judge}Judge"]
    assert len(found.sessions) == (2 if as_policy(tree).needs_draft else 1)
    monkeypatch.setattr(CompiledJudge, "supports", lambda *_, **__: False)
    assert static or type(parts_of(pair, tree, sampling, verifier).judge).__name__ == "RowJudge"


def test_runs_are_reused_if_memory_fits_and_the_oldest_are_evicted(monkeypatch):
    run_on_cpu(monkeypatch)
    target = tiny_llama(1, layers=1, context=2048)
    draft = tiny_llama(2, layers=1, context=40)
    pair = pair_of(target, draft)

    def again(tree, capacity=50, **options):
        """Return whether a stored run is reused for such a tree, and store the run."""
        found = parts_of(pair, tree, capacity=capacity, **options)
        store_run(found)
        runs.append(found)
        return any(found is known for known in runs[:-1])

    runs: list = []
    assert not again(BINARY) and again(BINARY)
    target_session, own = runs[0].sessions
    assert target_session.cache.capacity == 50 + 8 and own.cache.capacity == 40 + 3 + 1
    target_session.cache.length = own.cache.length = 7
    assert again(BINARY, 49) and target_session.cache.length == own.cache.length == 0
    assert not again(BINARY, 51) and again(BINARY, 50)
    assert not again(BINARY, 51 + SPARE_SLOTS + 1) and again(BINARY, 52) and not again(BINARY, 51)
    assert not again(BINARY, sampling=CUT) and not again(BINARY, sampling=WARM), "another law"
    assert not again(BINARY, 51) and again(BINARY, 51), "the oldest was let go"
    assert not again(chain_tree(2)) and again(chain_tree(2)) and again(BINARY, 51)
    assert len(assembling._caches[target]._runs) == MAX_CACHED_RUNS == 2
    alone = parts_of(pair_of(target), ROOT_ONLY)
    store_run(alone)
    assert parts_of(pair_of(target), ROOT_ONLY) is alone
    before = dict(assembling._caches[target]._runs)
    store_run(parts_of(pair, SPEC_EXEC))  # dynamic trees have no graphs to store
    assert assembling._caches[target]._runs == before

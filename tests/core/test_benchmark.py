import numpy as np

from sequoia_core.acceptance import AcceptanceVector
from sequoia_core.benchmark import bench, best_chain, plan_tree, race
from sequoia_core.construction import chain_tree, k_ary_tree
from sequoia_core.hardware import HardwareProfile
from sequoia_core.models import ModelPair
from sequoia_core.planning import predicted_speedup
from sequoia_core.sampling import SamplingConfig

METHODS = ("autoregressive", "hf_generate", "hf_assisted", "chain", "sequoia")
VECTOR = AcceptanceVector(np.array([0.6, 0.2, 0.1]))
PROFILE = HardwareProfile(sizes=[1, 8, 32], verify_sec=[0.010, 0.012, 0.020], draft_sec=0.0008)


def test_best_chain_beats_its_neighbours():
    chain = best_chain(VECTOR, PROFILE)
    best = predicted_speedup(chain, VECTOR, PROFILE)
    for length in (chain.depth - 1, chain.depth + 1):
        assert predicted_speedup(chain_tree(length), VECTOR, PROFILE) <= best


def test_planned_tree_beats_the_best_chain():
    tree = plan_tree(VECTOR, PROFILE)
    assert predicted_speedup(tree, VECTOR, PROFILE) >= predicted_speedup(best_chain(VECTOR, PROFILE), VECTOR, PROFILE)


def test_all_methods_write_the_same_greedy_text(tiny_target, tiny_draft):
    pair = ModelPair(tiny_target, tiny_draft, tokenizer=None)
    trees = {"chain": chain_tree(2), "tree": k_ary_tree(2, 2)}
    lanes = race(pair, [[1, 2, 3], [4, 5]], trees=trees, sampling=SamplingConfig(), max_new_tokens=20)
    assert set(lanes) == {"autoregressive", "hf_generate", "hf_assisted", "chain", "tree"}
    for lane in lanes.values():
        assert lane.outputs == lanes["autoregressive"].outputs and lane.tokens == [20, 20]
    assert lanes["hf_generate"].steps == lanes["autoregressive"].steps == [20, 20]


def test_sampled_methods_write_equally_much(tiny_target, tiny_draft):
    pair = ModelPair(tiny_target, tiny_draft, tokenizer=None)
    lanes = race(pair, [[1, 2, 3]], trees={"tree": k_ary_tree(2, 2)}, sampling=SamplingConfig(0.8), max_new_tokens=16)
    assert all(lane.tokens == [16] for lane in lanes.values())


def test_bench_record_is_complete(tiny_target, tiny_draft):
    pair = ModelPair(tiny_target, tiny_draft, tokenizer=None)
    told = []
    result = bench(
        pair,
        [[1, 2, 3], [4, 5], [6]],
        sampling=SamplingConfig(),
        max_new_tokens=10,
        progress=lambda f, m: told.append(f),
    )
    assert result["settings"]["prompts"] == 2 and told[-1] == 1.0 and len(result["repeated_4grams"]) == 2
    assert result["measured_speedup"] > 0 and result["predicted_speedup"] >= 1.0
    assert result["not_looping"]["prompts"] + result["looping"]["prompts"] == 2 and result["peak_memory_bytes"] > 2**20
    measured = [result[kind]["over_autoregressive"] for kind in ("not_looping", "looping") if result[kind]["prompts"]]
    assert all(kind["autoregressive"] == 1.0 and set(kind) == set(METHODS) for kind in measured)

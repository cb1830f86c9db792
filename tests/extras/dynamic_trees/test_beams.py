"""Beams for engines that grow trees themselves: against brute force, closed forms, the optimal tree and runs."""

import numpy as np
import pytest

from sequoia_core.acceptance.matrix import AcceptanceMatrix
from sequoia_core.acceptance.vector import AcceptanceVector
from sequoia_core.decoding.loop import decode
from sequoia_core.files.model_names import ASSETS
from sequoia_core.trees.optimal import expected_tokens, optimal_tree
from sequoia_core.trees.plain import chain_tree
from sequoia_core.trees.replay import replay
from sequoia_extras.dynamic_trees.beams import BeamSearch, best_beams, candidates
from sequoia_extras.dynamic_trees.engine_settings import plan_beams, settings_text
from sequoia_extras.dynamic_trees.expansion import DraftChances, TreeBounds
from sequoia_extras.dynamic_trees.policies import BeamTree
from sequoia_extras.dynamic_trees.recipes import grow_on_rows
from sequoia_extras.dynamic_trees.top_k_expansion import LevelExpansion
from tests.conftest import linear_profile

CHEAP = linear_profile(0.002, draft_sec=0.02)
DEMO = AcceptanceVector.load(ASSETS / "acceptance" / "demo-t0.json")
HEAD = AcceptanceVector.load(ASSETS / "acceptance" / "demo-head-t0.json")


def eagle2(rows, width, depth, size):
    """Return (depth, score) of the best nodes of a beam whose i-th node of a level has the distribution `rows[.][i]`.

    All children of the beam are candidates, and only the best `width` of a level are read.
    """
    beam, found = [1.0], [(0, 1.0)]
    for level in range(depth):
        scores = [score * p for score, row in zip(beam, rows[level], strict=False) for p in row[:width]]
        found += [(level + 1, score) for score in scores]
        beam = sorted(scores, reverse=True)[:width]
    return sorted(found, key=lambda node: -node[1])[:size]


@pytest.mark.parametrize(("width", "depth", "size"), [(1, 3, 4), (2, 3, 7), (3, 4, 12), (4, 2, 21)])
def test_a_beam_keeps_what_the_engines_keep(width, depth, size):
    generator = np.random.default_rng(1)
    rows = np.sort(generator.dirichlet(np.ones(6), size=(depth, width)), axis=-1)[..., ::-1]
    bounds = TreeBounds(max_size=candidates(width, depth), max_depth=depth, beam=width, branch=width)
    nodes, widths = grow_on_rows(LevelExpansion(bounds, DraftChances()), bounds, rows, generator)
    assert widths == [1] + [width] * (depth - 1)
    best = nodes.best(size)
    wanted = eagle2(rows, width, depth, size)
    assert best.depths.tolist() == [node[0] for node in wanted]
    assert best.scores == pytest.approx([node[1] for node in wanted])


@pytest.mark.parametrize("vector", [DEMO, HEAD], ids=["pair", "head"])
def test_a_beam_of_width_one_yields_what_a_chain_yields_on_the_texts(vector):
    tokens = BeamSearch(vector, CHEAP, trees=8).tokens(1)
    for depth in (1, 3, 8):
        assert tokens[depth, depth + 1] == pytest.approx(replay(chain_tree(depth), vector).tokens_per_step, rel=0.002)


def test_without_a_calibration_the_optimal_tree_is_the_bound():
    by_depth = AcceptanceMatrix(np.array([[0.6, 0.2, 0.1], [0.5, 0.2, 0.05], [0.3, 0.2, 0.1]]))
    vector = AcceptanceVector(by_depth.probs[0], by_depth=by_depth)
    search = BeamSearch(vector, CHEAP)
    tokens = search.tokens(3)
    assert np.flatnonzero(search.speeds(3, tokens).any(axis=1)).tolist() == [1, 2, 3]  # no deeper than measured
    for depth, size in ((1, 4), (2, 6), (3, 9), (4, 14)):
        best = expected_tokens(optimal_tree(vector, size=size, depth=depth), vector)
        assert 0.97 * best < tokens[depth, size] <= best + 1e-9
    assert tokens[1, 4] == pytest.approx(1.9) and tokens[2, 3] == pytest.approx(1.9)


@pytest.mark.slow
@pytest.mark.parametrize("vector", [DEMO, HEAD], ids=["pair", "head"])
@pytest.mark.parametrize("slope", [0.002, 0.1])
def test_the_best_beam_is_within_two_percent_of_an_exhaustive_search(vector, slope):
    profile = linear_profile(slope, draft_sec=0.02)
    best = best_beams(vector, profile)[0]
    other = BeamSearch(vector, profile, trees=200, seed=1)
    speeds = {width: other.speeds(width, other.tokens(width)) for width in range(1, 9)}
    assert speeds[best.width][best.depth, best.size] > 0.98 * max(table.max() for table in speeds.values())


def test_settings_obey_the_rules_of_every_engine():
    plan = plan_beams(DEMO, CHEAP)
    steps, top_k, tokens = plan["engines"]["SGLang"].values()
    assert top_k > 1 and tokens == plan["beams"][0]["size"] <= candidates(top_k, steps)
    tensorrt = plan["engines"]["TensorRT-LLM"]
    assert tensorrt["max_draft_len"] <= tensorrt["max_total_draft_tokens"] <= top_k * steps
    openvino = plan["engines"]["OpenVINO GenAI"]
    assert openvino == {"num_assistant_tokens": tokens - 1, "branching_factor": top_k, "tree_depth": steps}
    assert f"--speculative-eagle-topk {top_k} --" in settings_text(plan)
    speeds = [beam["speedup"]["value"] for beam in plan["beams"]]
    assert len({beam["width"] for beam in plan["beams"]}) == 3 and speeds == sorted(speeds, reverse=True)


def test_a_chain_needs_no_tree_settings_and_a_useless_draft_no_settings():
    chain = plan_beams(AcceptanceVector([0.7]), CHEAP)
    depth = chain["beams"][0]["depth"]
    assert list(chain["engines"]["SGLang"].values()) == [depth, 1, depth + 1]
    assert chain["engines"]["TensorRT-LLM"] == {"max_draft_len": depth}
    useless = plan_beams(AcceptanceVector([0.01]), linear_profile(1.0, draft_sec=1.0))
    assert useless["engines"] == {} and "None is faster" in settings_text(useless)


@pytest.mark.slow
@pytest.mark.parametrize(("vector", "draft"), [(DEMO, "draft"), (HEAD, "head")])
def test_predicted_tokens_lie_within_the_interval_of_a_run(vector, draft):
    from sequoia_core.acceptance.bootstrap import ratio_estimate
    from sequoia_core.files.prompt_files import load_prompts
    from sequoia_core.models.loading import load_pair

    pair = load_pair(ASSETS / "demo" / "target", ASSETS / "demo" / draft).ignore_eos()
    beam = best_beams(vector, CHEAP)[0]
    assert beam.width > 1
    tree = BeamTree(max_size=beam.size, max_depth=beam.depth, beam=beam.width, branch=beam.width)
    texts = load_prompts(ASSETS / "prompts" / "prompts.jsonl")[::15][:16]
    runs = [list(decode(pair.tokenizer.encode(text), pair, tree=tree, max_new_tokens=96)) for text in texts]
    tokens = np.array([sum(len(step.new_tokens) + step.cut_by_length for step in run) for run in runs])
    measured = ratio_estimate(tokens, np.array([len(run) for run in runs]))
    assert measured.low <= beam.prediction.tokens_per_step.value <= measured.high

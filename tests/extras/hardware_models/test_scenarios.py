import json

import pytest

from scripts.make_scenarios import MADE, SCENARIOS
from sequoia_core.acceptance.vector import AcceptanceVector
from sequoia_core.planning.prediction import predict
from sequoia_core.planning.profile import HardwareProfile
from sequoia_core.trees.optimal import optimal_tree
from sequoia_extras.hardware_models.scenarios import ASSETS, Scenario, list_scenarios

ERROR_PERCENT = {  # of the predicted speedup, as documented in docs/planning.md
    "llama2-7b-a100": -4, "llama2-13b-a100": -4, "vicuna-33b-a100": 8, "llama3-70b-l40-offloaded": 18,
    "llama2-70b-l40-offloaded": 16, "llama2-70b-4bit-rtx-4090": 18, "llama2-70b-4bit-rtx-3090": 15,
}  # fmt: skip


@pytest.fixture(scope="module")
def shipped():
    return {scenario.name: scenario for scenario in list_scenarios()}


def loaded(scenario: Scenario) -> tuple[AcceptanceVector, HardwareProfile]:
    return AcceptanceVector.load(ASSETS / scenario.acceptance), HardwareProfile.load(ASSETS / scenario.profile)


def test_the_script_reproduces_the_shipped_scenarios(shipped):
    used = {path for scenario in shipped.values() for path in (scenario.acceptance, scenario.profile)}
    for name, make in MADE.items():
        kept = json.loads((SCENARIOS / name).read_bytes())
        made = json.loads(make().to_bytes())
        assert f"scenarios/{name}" in used and _alike(kept, made)
    modelled = {scenario.profile for scenario in shipped.values() if scenario.times == "modelled"}
    assert modelled <= {f"scenarios/{name}" for name in MADE}


def _alike(kept, made) -> bool:
    """Compare JSON values, with numbers to one part in a million, because the last bits depend on the processor."""
    if isinstance(kept, dict) and isinstance(made, dict):
        return kept.keys() == made.keys() and all(_alike(kept[key], made[key]) for key in kept)
    if isinstance(kept, list) and isinstance(made, list):
        return len(kept) == len(made) and all(map(_alike, kept, made))
    return kept == (pytest.approx(made) if isinstance(made, float) else made)


def test_published_speedups_are_predicted_within_the_documented_errors(shipped):
    assert {name for name, scenario in shipped.items() if scenario.reported} == set(ERROR_PERCENT)
    for name, percent in ERROR_PERCENT.items():
        scenario = shipped[name]
        vector, profile = loaded(scenario)
        for reported in scenario.reported:
            tree = optimal_tree(vector, size=reported.size, depth=reported.depth)
            found = predict(tree, vector, profile)
            speedup, off = reported.distance(found.speedup.value, found.tokens_per_step.value)
            assert speedup == pytest.approx((1 + off) * reported.speedup) and 100 * off == pytest.approx(
                percent, abs=0.6
            )

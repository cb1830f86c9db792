import importlib.util
import json
from pathlib import Path

import pytest

from sequoia_core.design.acceptance import AcceptanceVector
from sequoia_core.design.optimal_trees import expected_tokens, optimal_tree
from sequoia_core.design.plain_trees import independent_chains
from sequoia_core.design.planning import best_shape, speedup_surface
from sequoia_core.design.prediction import predicted_speedup
from sequoia_core.design.profile import HardwareProfile
from sequoia_core.design.scenarios import ASSETS, list_scenarios, load_scenario

NAMES = ["demo-pair", "demo-pair-disk", "llama2-7b-a100", "llama3-70b-l40-offloaded", "no-matrix-unit"]


@pytest.fixture(scope="module")
def recipe():
    spec = importlib.util.spec_from_file_location("recipe", ASSETS.parent / "scripts" / "make_scenarios.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def shipped():
    return {scenario.name: scenario for scenario in list_scenarios()}


def test_the_shipped_scenarios_load_in_their_order(shipped):
    assert list(shipped) == NAMES
    for scenario in shipped.values():
        vector, profile = scenario.load()
        assert len(vector) > 1 and profile.max_size >= 128
        assert bool(profile.meta.get("modelled")) == (scenario.times == "modelled")
        assert (scenario.vector == "fitted") == ("fitted, not measured" in vector.meta["source"])


def test_the_recipe_makes_what_is_shipped(recipe, shipped):
    for row in recipe.TABLE:
        scenario = shipped[row["name"]]
        assert (scenario.title, scenario.sentence) == (row["title"], row["sentence"])
        if "make" in row:
            made, kept = row["make"](), HardwareProfile.load(scenario.profile)
            assert kept.verify_sec == pytest.approx(made.verify_sec)
            assert _alike(kept.meta, made.meta)
            assert kept.draft_width_sec == pytest.approx(made.draft_width_sec)
    kept = AcceptanceVector.load(shipped["llama2-7b-a100"].acceptance)
    assert kept.probs == pytest.approx(recipe.fitted_vector().probs)


def _alike(kept, made) -> bool:
    """Whether two values of JSON are the same, numbers to a part in a million: the last bits are the processor's."""
    if isinstance(kept, dict) and isinstance(made, dict):
        return kept.keys() == made.keys() and all(_alike(kept[key], made[key]) for key in kept)
    if isinstance(kept, list) and isinstance(made, list):
        return len(kept) == len(made) and all(map(_alike, kept, made))
    return kept == (pytest.approx(made) if isinstance(made, float) else made)


def test_the_fitted_vector_yields_what_the_paper_reports(shipped):
    vector, profile = shipped["llama2-7b-a100"].load()
    tree = optimal_tree(vector, size=128, depth=9)
    assert expected_tokens(tree, vector) == pytest.approx(5.08, abs=1e-6)
    assert expected_tokens(independent_chains(5, 8), vector) == pytest.approx(3.96, abs=1e-6)
    assert predicted_speedup(tree, vector, profile) == pytest.approx(4.04, rel=0.04)  # the paper's; 3.90 here


def test_each_scenario_has_another_tree(shipped):
    shapes = {}
    for name, scenario in shipped.items():
        vector, profile = scenario.load()
        shapes[name] = best_shape(speedup_surface(vector, profile, max_size=min(profile.max_size, 512), max_depth=18))
    assert shapes["no-matrix-unit"].size <= 8 and shapes["llama2-7b-a100"].size > 64
    assert shapes["llama3-70b-l40-offloaded"].size > 400


@pytest.fixture
def assets(tmp_path):
    """A folder of assets with a vector, a profile and, outside of it, a secret."""
    root = tmp_path / "assets"
    root.mkdir()
    (root / "v.json").write_bytes((ASSETS / "acceptance" / "demo-t0.json").read_bytes())
    (root / "p.json").write_bytes((ASSETS / "scenarios" / "profiles" / "demo-avx512.json").read_bytes())
    (tmp_path / "secret.json").write_bytes((root / "p.json").read_bytes())
    (root / "link.json").symlink_to(tmp_path / "secret.json")
    return root


def written(assets: Path, **changes) -> Path:
    fields = {
        "format": "sequoia-scenario", "version": 1, "order": 1, "title": "T", "sentence": "S.", "acceptance": "v.json",
        "profile": "p.json", "vector": "measured", "times": "modelled",
    } | changes  # fmt: skip
    path = assets / "scenario.json"
    path.write_text(json.dumps({key: value for key, value in fields.items() if value is not None}))
    return path


def test_a_scenario_of_ones_own(assets):
    scenario = load_scenario(written(assets), assets=assets)
    assert scenario.name == "scenario" and scenario.load()[1].meta["modelled"]
    with pytest.raises(ValueError, match="scenario: times: found a profile that was modelled, expected measured"):
        load_scenario(written(assets, times="measured"), assets=assets).load()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"profile": "../secret.json"}, "profile: found '../secret.json', expected a path inside the assets"),
        ({"profile": "/etc/passwd"}, "profile: found '/etc/passwd', expected a path inside"),
        ({"profile": "link.json"}, "profile: found 'link.json', expected a path inside"),
        ({"acceptance": "..\\secret.json"}, "acceptance: found .*expected a path inside"),
        ({"acceptance": "v.json\0"}, "acceptance: found .*expected a path inside"),
        ({"acceptance": "none.json"}, "acceptance: found no file 'none.json'"),
        ({"acceptance": "."}, "acceptance: found no file"),
        ({"vector": "guessed"}, "vector: found 'guessed', expected one of measured, published, fitted"),
        ({"times": "guessed"}, "times: found 'guessed', expected one of measured, modelled"),
        ({"format": "sequoia-tree"}, "format"),
        ({"version": 2}, "version"),
        ({"title": ""}, "title"),
        ({"sentence": None}, "sentence: found nothing"),
        ({"sentence": "x" * 601}, "sentence"),
        ({"command": "rm"}, "command"),
        ({"order": "1"}, "order"),
    ],
)
def test_scenarios_that_are_refused(changes, message, assets):
    with pytest.raises(ValueError, match=rf"scenario\.json: {message}") as error:
        load_scenario(written(assets, **changes), assets=assets)
    assert "\n" not in str(error.value)

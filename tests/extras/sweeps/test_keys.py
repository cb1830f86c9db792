"""A row's key depends exactly on what the row depends on; keys of existing rows are stable."""

import shutil
from dataclasses import replace

import pytest

from sequoia_core.files.model_names import ASSETS
from sequoia_core.models.prompting import Prompting
from sequoia_extras.sweeps import jobs as sweep_jobs
from sequoia_extras.sweeps.content import PairHashes, content_hash
from sequoia_extras.sweeps.jobs import all_jobs
from sequoia_extras.sweeps.plan import Domain, PairSection, PlanFile, PromptSection, SweepPlan, read_plan
from sequoia_extras.sweeps.results import read_rows
from tests.sweep_plans import DEMO

PAIR = PairSection(
    name="a pair", target="/target", draft="/draft", drafters=("model", "lookup", "both"), dtype="float32"
)
PLAN = SweepPlan(
    PlanFile(
        pairs=[PAIR],
        prompts=[PromptSection(domain="code", file="/prompts")],
        temperatures=[0.6],
        max_size=8,
        profile=True,
        race=True,
    ),
    (Domain("code", ("one", "two")),),
    (PairHashes("target", "draft", None),),
)
TEXTS = {"model", "lookup", "both", "race"}
ALL = TEXTS | {"profile"}


def with_settings(**changes):
    return replace(PLAN, settings=PLAN.settings.model_copy(update=changes))


def with_pair(**changes):
    return with_settings(pairs=[PAIR.model_copy(update=changes)])


def with_domain(**changes):
    return replace(PLAN, domains=(PLAN.domains[0]._replace(**changes),))


def with_hashes(**changes):
    return replace(PLAN, pair_hashes=(PLAN.pair_hashes[0]._replace(**changes),))


def keys_of(plan: SweepPlan) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for job in all_jobs(plan):
        found.setdefault(job.kind, set()).update(job.keys)
    return found


@pytest.mark.sample(20, cover=False)
@pytest.mark.parametrize(
    "plan, changed",
    [
        (with_domain(prompting=Prompting(True)), TEXTS),
        (with_domain(prompting=Prompting(arguments={"thinking": True})), TEXTS),
        (with_domain(texts=("three", "four")), TEXTS),
        (with_hashes(tokenizer="other"), ALL),
        (with_hashes(draft="other"), ALL - {"lookup"}),
        (with_pair(dtype="bfloat16"), ALL),
        (with_pair(offload="disk"), ALL),
        (with_pair(device="cpu"), ALL),
        (with_settings(threads=2), ALL),
        (with_settings(seed=1), {"model", "lookup", "both"}),
        (with_settings(width=8), {"model", "both"}),
        (with_settings(max_size=(16,)), {"lookup", "both"}),
        (with_settings(top_p=[0.9]), TEXTS),
        (with_pair(name="another name", target="/elsewhere/target", draft="/elsewhere/draft"), set()),
        (with_settings(prompts_per_job=1), set()),
    ],
)
def test_a_setting_changes_the_keys_of_dependent_rows(plan, changed):
    before = keys_of(PLAN)
    after = keys_of(plan)
    assert set(before) == ALL
    assert {kind for kind in ALL if not before[kind] & after[kind]} == changed
    assert all(before[kind] == after[kind] for kind in ALL - changed)


def test_a_new_measurement_version_changes_all_keys(monkeypatch):
    before = keys_of(PLAN)
    monkeypatch.setattr(sweep_jobs, "MEASURE_VERSION", sweep_jobs.MEASURE_VERSION + 1)
    after = keys_of(PLAN)
    assert not any(before[kind] & after[kind] for kind in ALL)


def test_only_lookup_and_both_are_decoded_at_each_size():
    found = [(job.kind, job.common["max_size"]) for job in all_jobs(with_settings(max_size=(4, 16, 8)))]
    assert found == [
        *(("lookup", size) for size in (4, 16, 8)),
        ("model", 16),
        *(("both", size) for size in (4, 16, 8)),
        ("profile", 16),
        ("race", 16),
    ]
    keys = keys_of(with_settings(max_size=(4, 16, 8)))
    assert keys_of(PLAN)["lookup"] < keys["lookup"] and len(keys["both"]) == 6


def test_pairs_share_lookup_rows():
    other = PAIR.model_copy(update={"name": "other", "draft": "/other", "drafters": ("model", "lookup")})
    plan = replace(
        with_settings(pairs=[PAIR, other]), pair_hashes=(PLAN.pair_hashes[0], PairHashes("target", "o", None))
    )
    kinds = [job.kind for job in all_jobs(plan)]
    assert (kinds.count("model"), kinds.count("lookup"), kinds.count("both")) == (2, 1, 1)


def test_content_hashes_identify_models(tmp_path):
    shutil.copytree(DEMO / "draft", tmp_path / "draft")
    assert content_hash(tmp_path / "draft") == content_hash(DEMO / "draft") != content_hash(DEMO / "target")
    weights = next((tmp_path / "draft").glob("*.safetensors"))
    data = bytearray(weights.read_bytes())
    data[-5] ^= 1
    weights.write_bytes(data)
    assert content_hash(tmp_path / "draft") != content_hash(DEMO / "draft")


def test_the_shipped_rows_have_the_keys_of_the_shipped_plan():
    folder = ASSETS / "sweeps" / "demo"
    rows = read_rows(folder)
    plan = read_plan(folder / "plan.toml")
    (dtype,) = set(rows["dtype"])  # another machine may choose another
    pairs = [pair.model_copy(update={"dtype": dtype}) for pair in plan.settings.pairs]
    plan = replace(plan, settings=plan.settings.model_copy(update={"pairs": pairs}))
    assert set(rows["key"]) <= set().union(*keys_of(plan).values())

"""Calibrations: what tables recover, what they say of other prompts, and what is refused when read."""

import json
from dataclasses import replace

import numpy as np
import pytest

from sequoia_core.design.acceptance import AcceptanceVector
from sequoia_core.design.calibration import BEFORE, CENTRES, ROWS_PER_PROMPT, TABLES, Calibration, ChanceTables, Sample
from tests.conftest import calibration_of


def bent(prompts=8, positions=400, seed=0, power=2.0):
    """A draft that overrates itself: a child of probability q is accepted with chance q ** power, at every rank."""
    generator, samples = np.random.default_rng(seed), []
    for _ in range(prompts):
        probs = -np.sort(-generator.dirichlet([0.4] * 6, size=positions), axis=1)
        samples.append(Sample(probs, probs**power, probs, probs, probs**power))
    return Calibration.of_samples(samples, temperature=0.6)


def test_tables_recover_the_chance_behind_the_probability():
    tables = bent().tables()
    probs = np.array([[0.9, 0.08, 0.01], [0.5, 0.4, 0.05]])
    np.testing.assert_allclose(tables.most_likely(probs), probs**2, atol=0.03)
    np.testing.assert_allclose(tables.after(probs), probs**2, atol=0.06)  # bins are coarse up there
    left = 1.0 - (np.cumsum(probs, axis=1) - probs)
    before = tables.before(np.maximum(left, 0.0), probs)
    np.testing.assert_allclose(before[:, 0], probs[:, 0] ** 2, atol=0.06)
    assert ((tables.values >= 0) & (tables.values <= 1)).all()
    steps = np.diff(tables.values, axis=1)
    assert ((steps >= -1e-12).all(axis=1) | (steps <= 1e-12).all(axis=1)).all()
    assert (steps[:3] >= -1e-12).all()
    probs = np.linspace(0.05, 0.95, 400)[:, None]  # chances of drawn tokens may fall with their probability
    falling = Calibration.of_samples([Sample(probs, probs, probs, probs, 1.0 - probs)], temperature=1.0)
    assert falling.tables().after(np.array([[0.1]]))[0, 0] > 0.8 > 0.3 > falling.tables().after(np.array([[0.9]]))[0, 0]
    rows = falling.rows[:, 0]  # of the whole text
    np.testing.assert_allclose(rows, np.linspace(0.05, 0.95, ROWS_PER_PROMPT), atol=0.005)
    np.testing.assert_allclose(rows[[0, -1]], [0.05, 0.95], atol=1e-4)


def test_each_rank_reads_its_own_table_and_the_mass_left_decides_which():
    tables = ChanceTables(np.repeat(np.arange(len(TABLES))[:, None] / 16, len(CENTRES), axis=1))
    probs = np.full((2, 4), 0.2)
    assert (16 * tables.most_likely(probs)).tolist() == [[0, 1, 2, 2]] * 2
    assert (16 * tables.after(probs)).tolist() == [[3, 4, 5, 5]] * 2
    left = np.array([[1.0, 0.1, 0.1, 0.1], [1.0, 0.5, 0.5, 0.2], [1.0, 0.9, 0.8, 0.8]])
    found = 16 * tables.before(left, np.full(left.shape, 0.3)) - BEFORE.start
    assert found.tolist() == [[0, 1, 4, 4], [0, 2, 5, 4], [0, 3, 6, 6]]


def test_children_are_counted_by_the_mass_left_before_their_own_draw():
    drawn = np.array([[0.5, 0.4, 0.05], [0.1, 0.2, 0.6], [0.3, 0.1, 0.5]])  # left: 1, .5, .1; 1, .9, .7; 1, .7, .6
    best = -np.sort(-drawn, axis=1)
    counts = Calibration.of_samples([Sample(best, best, drawn, drawn, drawn)], temperature=1.0).counts.sum(axis=(0, 2))
    assert dict(zip(TABLES, counts.tolist(), strict=True)) == dict.fromkeys(TABLES[:6], 3) | {
        "next, rank 1": 3,
        "next, rank 2, little left": 0, "next, rank 2, some left": 2, "next, rank 2, most left": 1,
        "next, rank 3+, little left": 1, "next, rank 3+, some left": 2, "next, rank 3+, most left": 0,
    }  # fmt: skip


def test_prompts_can_be_joined_and_files_keep_everything(tmp_path):
    first, second = bent(prompts=2, seed=1), bent(prompts=3, seed=2)
    both = Calibration.joined([first, second])
    assert len(both.positions) == 5 and both.counts.sum() == first.counts.sum() + second.counts.sum()
    vector = AcceptanceVector(both.expected("drawn"), calibration=both)
    vector.save(tmp_path / "v.json")
    read = AcceptanceVector.load(tmp_path / "v.json")
    stored = json.loads(vector.to_bytes())
    assert isinstance(stored["calibration"], str)
    plain_text = json.dumps(stored | {"calibration": both.to_json()}).encode()  # as older files have it
    assert AcceptanceVector.loads(plain_text, "v.json") == vector
    assert read == vector and read.calibration == both and read.calibration != first
    assert AcceptanceVector(both.expected("drawn")) != vector


@pytest.mark.sample(7)
@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("counts", [[1, 2], [3]], "different lengths in counts"),
        ("positions", [0, 0], "2 prompts"),
        ("rows", [[0.2, 0.5, 0.1, 0.1]], "a row that rises"),
        ("rows", [[0.9, 0.5, 0.1, 0.1]], "sums to more than 1"),
        ("counts", np.zeros((2, 13, 24), int).tolist(), "more accepted than"),
        ("temperature", "hot", "temperature: found 'hot'"),
        ("edges", [0.1], "other edges"),
    ],
)
def test_files_that_are_wrong_are_refused(field, value, message):
    fields = calibration_of(0.6).to_json() | {field: value}
    data = json.dumps({"format": "sequoia-acceptance", "version": 2, "probs": [0.5], "calibration": fields})
    with pytest.raises(ValueError, match=f"v.json: calibration: .*{message}"):
        AcceptanceVector.loads(data.encode(), "v.json")


def test_rounding_may_leave_a_thousandth_more_accepted_than_there_were():
    known = calibration_of(0.6)
    replace(known, accepted=known.counts + 1e-3)
    with pytest.raises(ValueError, match="more accepted than"):
        replace(known, accepted=known.counts + 2e-3)

"""Calibrations: fitted tables, joining, files, and refusal of invalid ones."""

import json
from dataclasses import replace

import numpy as np
import pytest

from sequoia_core.acceptance.calibration import (
    BEFORE,
    BIN_CENTRES,
    ROWS_PER_PROMPT,
    TABLE_NAMES,
    Calibration,
    ChanceTables,
    Sample,
)
from sequoia_core.acceptance.vector import AcceptanceVector
from tests.conftest import calibration_of


def bent(prompts=8, positions=400, seed=0, power=2.0):
    """Return the calibration of an overconfident draft: probability q is accepted with chance q ** power."""
    generator, samples = np.random.default_rng(seed), []
    for _ in range(prompts):
        probs = -np.sort(-generator.dirichlet([0.4] * 6, size=positions), axis=1)
        samples.append(Sample(probs, probs**power, probs, probs, probs**power))
    return Calibration.from_samples(samples, temperature=0.6)


def test_tables_recover_the_acceptance_probability():
    tables = bent().tables()
    probs = np.array([[0.9, 0.08, 0.01], [0.5, 0.4, 0.05]])
    np.testing.assert_allclose(tables.most_likely(probs), probs**2, atol=0.03)
    np.testing.assert_allclose(tables.after_draw(probs), probs**2, atol=0.06)  # bins are coarse at high probabilities
    left = 1.0 - (np.cumsum(probs, axis=1) - probs)
    before = tables.before_draw(np.maximum(left, 0.0), probs)
    np.testing.assert_allclose(before[:, 0], probs[:, 0] ** 2, atol=0.06)
    assert ((tables.values >= 0) & (tables.values <= 1)).all()
    steps = np.diff(tables.values, axis=1)
    assert ((steps >= -1e-12).all(axis=1) | (steps <= 1e-12).all(axis=1)).all()
    assert (steps[:3] >= -1e-12).all()
    probs = np.linspace(0.05, 0.95, 400)[:, None]  # chances of drawn tokens may fall with their probability
    falling = Calibration.from_samples([Sample(probs, probs, probs, probs, 1.0 - probs)], temperature=1.0)
    assert (
        falling.tables().after_draw(np.array([[0.1]]))[0, 0]
        > 0.8
        > 0.3
        > falling.tables().after_draw(np.array([[0.9]]))[0, 0]
    )
    np.testing.assert_allclose(falling.rows[:, 0], np.linspace(0.05, 0.95, ROWS_PER_PROMPT), atol=0.005)


def test_tables_are_selected_by_rank_and_remaining_mass():
    tables = ChanceTables(np.repeat(np.arange(len(TABLE_NAMES))[:, None] / 16, len(BIN_CENTRES), axis=1))
    probs = np.full((2, 4), 0.2)
    assert (16 * tables.most_likely(probs)).tolist() == [[0, 1, 2, 2]] * 2
    assert (16 * tables.after_draw(probs)).tolist() == [[3, 4, 5, 5]] * 2
    left = np.array([[1.0, 0.1, 0.1, 0.1], [1.0, 0.5, 0.5, 0.2], [1.0, 0.9, 0.8, 0.8]])
    found = 16 * tables.before_draw(left, np.full(left.shape, 0.3)) - BEFORE.start
    assert found.tolist() == [[0, 1, 4, 4], [0, 2, 5, 4], [0, 3, 6, 6]]


def test_children_are_counted_by_the_mass_left_before_their_draw():
    drawn = np.array([[0.5, 0.4, 0.05], [0.1, 0.2, 0.6], [0.3, 0.1, 0.5]])  # left: 1, .5, .1; 1, .9, .7; 1, .7, .6
    best = -np.sort(-drawn, axis=1)
    counts = Calibration.from_samples([Sample(best, best, drawn, drawn, drawn)], temperature=1.0).counts.sum(
        axis=(0, 2)
    )
    assert dict(zip(TABLE_NAMES, counts.tolist(), strict=True)) == dict.fromkeys(TABLE_NAMES[:6], 3) | {
        "next, rank 1": 3,
        "next, rank 2, little left": 0, "next, rank 2, some left": 2, "next, rank 2, most left": 1,
        "next, rank 3+, little left": 1, "next, rank 3+, some left": 2, "next, rank 3+, most left": 0,
    }  # fmt: skip


def test_calibrations_can_be_joined_and_saved(tmp_path):
    first, second = bent(prompts=2, seed=1), bent(prompts=3, seed=2)
    both = Calibration.joined([first, second])
    assert len(both.positions) == 5 and both.counts.sum() == first.counts.sum() + second.counts.sum()
    vector = AcceptanceVector(both.expected("drawn"), calibration=both)
    vector.save(tmp_path / "v.json")
    read = AcceptanceVector.load(tmp_path / "v.json")
    stored = json.loads(vector.to_bytes())
    assert isinstance(stored["calibration"], str)
    plain_text = json.dumps(stored | {"calibration": both.to_json()}).encode()  # format of older files
    assert AcceptanceVector.loads(plain_text, "v.json") == vector
    assert read == vector and read.calibration == both and read.calibration != first
    assert AcceptanceVector(both.expected("drawn")) != vector


@pytest.mark.sample(6)
@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("counts", [[1, 2], [3]], "different lengths in counts"),
        ("positions", [0, 0], "2 prompts"),
        ("rows", [[0.2, 0.5, 0.1, 0.1]], "a row that increases"),
        ("counts", np.zeros((2, 13, 24), int).tolist(), "more accepted children than counted"),
        ("temperature", "hot", "temperature: found 'hot'"),
        ("edges", [0.1], "different bin edges"),
    ],
)
def test_invalid_calibrations_are_refused(field, value, message):
    fields = calibration_of(0.6).to_json() | {field: value}
    data = json.dumps({"format": "sequoia-acceptance", "version": 2, "probs": [0.5], "calibration": fields})
    with pytest.raises(ValueError, match=f"v.json: calibration: .*{message}"):
        AcceptanceVector.loads(data.encode(), "v.json")


def test_accepted_sums_may_exceed_counts_by_rounding():
    known = calibration_of(0.6)
    replace(known, accepted=known.counts + 1e-3)
    with pytest.raises(ValueError, match="more accepted children than"):
        replace(known, accepted=known.counts + 2e-3)

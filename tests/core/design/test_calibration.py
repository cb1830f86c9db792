"""Calibrations: what tables recover, what they say of other prompts, and what is refused when read."""

import json

import numpy as np
import pytest

from sequoia_core.design.acceptance import AcceptanceVector
from sequoia_core.design.calibration import BEFORE, CENTRES, KINDS, TABLES, Calibration, Sample
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


def test_chances_of_drawn_tokens_may_fall_with_their_probability():
    probs = np.linspace(0.05, 0.95, 400)[:, None]
    sample = Sample(probs, probs, probs, probs, 1.0 - probs)
    tables = Calibration.of_samples([sample], temperature=1.0).tables()
    assert tables.after(np.array([[0.1]]))[0, 0] > 0.8 > 0.3 > tables.after(np.array([[0.9]]))[0, 0]


def test_the_mass_left_decides_which_table_speaks():
    left = np.array([[1.0, 0.1, 0.1, 0.1], [1.0, 0.5, 0.5, 0.2], [1.0, 0.9, 0.8, 0.8]])
    values = np.zeros((len(TABLES), len(CENTRES)))
    values[BEFORE] = np.arange(7)[:, None] / 8  # exact, and chances
    from sequoia_core.design.calibration import ChanceTables

    found = ChanceTables(values).before(left, np.full(left.shape, 0.3))
    assert (8 * found).tolist() == [[0, 1, 4, 4], [0, 2, 5, 4], [0, 3, 6, 6]]


def test_tables_beat_the_plain_vector_where_the_probability_tells_and_not_where_it_does_not():
    telling = bent()
    for kind in KINDS:
        gain = telling.held_out_gain(kind)
        assert gain.low > 0.05
    generator = np.random.default_rng(1)
    samples = []
    for _ in range(8):
        probs = -np.sort(-generator.dirichlet([0.4] * 6, size=400), axis=1)
        constant = np.tile([0.6, 0.1, 0.02, 0.02, 0.02, 0.02], (400, 1))
        samples.append(Sample(probs, constant, probs, probs, constant))
    silent = Calibration.of_samples(samples, temperature=0.6)
    for kind in KINDS:
        assert abs(silent.held_out_gain(kind).value) < 0.02
    assert calibration_of(0.6, prompts=1).held_out_gain("drawn") is None


def test_reliability_compares_the_held_out_half_with_the_fit():
    for table in TABLES[:6]:
        found = bent(prompts=20).reliability(table)
        assert found.children.sum() == 10 * 400 * (4 if "3+" in table else 1)
        often = found.children > 200
        assert often.any() and (found.low <= found.observed).all() and (found.observed <= found.high).all()
        np.testing.assert_allclose(found.predicted[often], found.observed[often], atol=0.03)


def test_prompts_can_be_joined_and_files_keep_everything(tmp_path):
    first, second = bent(prompts=2, seed=1), bent(prompts=3, seed=2)
    both = Calibration.joined([first, second])
    assert len(both.positions) == 5 and both.counts.sum() == first.counts.sum() + second.counts.sum()
    vector = AcceptanceVector(both.expected("drawn"), calibration=both)
    vector.save(tmp_path / "v.json")
    read = AcceptanceVector.load(tmp_path / "v.json")
    assert read == vector and read.calibration == both and read.calibration != first
    np.testing.assert_array_equal(read.calibration.tables().values, both.tables().values)
    plain = AcceptanceVector(both.expected("drawn"))
    assert plain != vector and "calibration" not in json.loads(plain.to_bytes())


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("counts", [[1, 2], [3]], "different lengths in counts"),
        ("counts", [[[1.5]]], "counts of float64"),
        ("accepted", "x", "accepted of"),
        ("positions", [0, 0], "2 prompts"),
        ("positions", [5], "shape"),
        ("positions", [-1, 4], "below 0"),
        ("rows", [[0.2, 0.5, 0.1, 0.1]], "a row that rises"),
        ("rows", [[0.9, 0.5, 0.1, 0.1]], "sums to more than 1"),
        ("rows", [], "rows of shape"),
        ("temperature", "hot", "temperature 'hot'"),
        ("temperature", -1.0, "temperature -1"),
        ("edges", [0.1], "other edges"),
        ("more", 1, "found .*more"),
    ],
)
def test_files_that_are_wrong_are_refused(field, value, message):
    fields = calibration_of(0.6).to_json() | {field: value}
    data = json.dumps({"format": "sequoia-acceptance", "version": 2, "probs": [0.5], "calibration": fields})
    with pytest.raises(ValueError, match=f"v.json: calibration: .*{message}"):
        AcceptanceVector.loads(data.encode(), "v.json")


def test_more_accepted_than_seen_is_refused():
    known = calibration_of(0.6)
    with pytest.raises(ValueError, match="more accepted than"):
        Calibration(known.counts, known.accepted + 1.0, known.positions, known.accepted_by_rank, known.rows)

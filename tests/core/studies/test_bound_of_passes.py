"""The bound beside a profile: below nothing that a machine can do, and left out where sizes are unknown."""

import numpy as np

from sequoia_core.design.profile import HardwareProfile
from sequoia_core.studies.bound_of_passes import with_bound


def test_the_bound_is_noted_for_every_size_and_survives_the_file(tiny_target):
    profile = HardwareProfile(sizes=[1, 4, 64], verify_sec=[1.0, 1.1, 2.0], draft_sec=0.1, dtype="float32", context=32)
    found = with_bound(profile, tiny_target)
    bound = np.array(found.meta["bound_sec"])
    assert bound.shape == (3,) and (bound > 0).all() and (np.diff(bound) >= 0).all() and bound[0] < 1e-3
    again = HardwareProfile.loads(found.to_bytes(), "p.json")
    assert again.meta["bound_device"]["bytes_per_sec"] > 1e8 and again.meta["bound_sec"] == found.meta["bound_sec"]


def test_a_family_without_known_sizes_has_no_bound(tiny_target, monkeypatch):
    profile = HardwareProfile(sizes=[1, 4], verify_sec=[1.0, 1.1], draft_sec=0.1, dtype="float32")
    settings = tiny_target.model.config.to_dict() | {"model_type": "gpt2"}
    monkeypatch.setattr(type(tiny_target.model.config), "to_dict", lambda self: settings)
    assert with_bound(profile, tiny_target) is profile

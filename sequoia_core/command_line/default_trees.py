"""Choose the trees for `generate` when the user specifies none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..acceptance.conditions import SEQUOIA, Conditions, verifier_measured_for
from ..acceptance.vector import AcceptanceVector
from ..files.model_names import ASSETS, shipped_files
from ..trees.tree import TokenTree

if TYPE_CHECKING:
    from ..decoding.sampling import SamplingConfig
    from ..decoding.tree_policy import TreePolicy
    from ..models.language_model import ModelPair
    from ..planning.profile import HardwareProfile


def shipped_measurements(pair: ModelPair, folder: str) -> Iterator[Path]:
    """Yield the shipped files that mention the pair's target; the others are not parsed, because parsing is slow."""
    from ..models.protocol import dtype_name

    name = json.dumps(pair.target.name).encode()
    paths = shipped_files(ASSETS / folder, dtype_name(pair.target)).values()
    return (path for path in paths if name in path.read_bytes())


def trees_without_draft(
    pair: ModelPair, sampling: SamplingConfig, profile: HardwareProfile | None
) -> tuple[TokenTree | TreePolicy, str]:
    """Return trees that need no draft, and a description; if dynamic_trees is not installed, return the root alone."""
    from ..decoding.tree_kinds import TREE_KINDS, find_target_profile
    from ..decoding.tree_policy import ROOT_ONLY
    from ..models.protocol import dtype_name
    from ..planning.profile import HardwareProfile

    kind = next((kind for kind in TREE_KINDS.values() if not kind.drafted), None)
    if kind is None:
        return ROOT_ONLY, "one token per pass: trees without a draft need the optional package dynamic_trees"
    target = pair.target
    given = profile or find_target_profile(
        map(HardwareProfile.load, shipped_measurements(pair, "profiles")),
        target=target.name,
        dtype=dtype_name(target),
        offload=target.offload,
    )
    policy = kind.make(profile=given).for_run(target, sampling.temperature)
    costs = "costs from a profile"
    if not policy.profile:
        costs = "no profile with node costs"
    elif not given:
        times, meta = policy.profile.verify_sec, policy.profile.meta
        costs = (
            f"costs from passes on this machine: {1e3 * times[0]:.3g} ms for one token, {1e3 * times[-1]:.3g} ms for "
            f"{policy.profile.max_size} (timed {meta['timed']}; to measure again, delete {meta['kept_in']})"
        )
    return policy, f"{kind.words}, at most {policy.max_size} nodes, {costs}"


def default_tree(
    pair: ModelPair,
    sampling: SamplingConfig,
    verifier: str | None,
    vector: AcceptanceVector | None,
    profile: HardwareProfile | None,
    prompted: dict[str, Any],
) -> tuple[TokenTree, str]:
    """Return a tree and a description of its origin: planned as in the app or, without measurements, a chain.

    Args:
        vector: the user's vector, used regardless of its conditions; None selects a shipped one measured under the
            same conditions.
        profile: the user's profile, used regardless of its conditions; None selects the pair's shipped profile that
            best matches this machine.
        prompted: how the prompt was built; the description mentions differences from the vector.
    """
    from ..models.device import describe_device
    from ..models.installation import installation_id
    from ..models.processor import instructions_in_use
    from ..models.protocol import dtype_name
    from ..planning.plan import plan_tree
    from ..planning.profile import HardwareProfile
    from ..trees.plain import DEFAULT_CHAIN_LENGTH, chain_tree

    target = pair.target
    assert pair.draft is not None
    names: dict[str, Any] = {"target": target.name, "draft": pair.draft.name}
    wanted = Conditions(
        **names,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        verifier=verifier_measured_for(verifier or SEQUOIA),
        top_k=sampling.top_k,
    )
    pair_differences: Any = partial(
        HardwareProfile.differences, **names, dtype=dtype_name(target), offload=target.offload
    )
    differences = partial(
        pair_differences,
        device=describe_device(target.device),
        instructions=instructions_in_use() if target.device.type == "cpu" else None,
        installation=installation_id(),
    )
    if vector is None:
        vectors = map(AcceptanceVector.load, shipped_measurements(pair, "acceptance"))
        vector = next((shipped for shipped in vectors if not shipped.differences(wanted)), None)
    if profile is None:
        profiles = map(HardwareProfile.load, shipped_measurements(pair, "profiles"))
        fitting = [shipped for shipped in profiles if not pair_differences(shipped, device=shipped.device)]
        profile = min(fitting, key=lambda shipped: len(differences(shipped)), default=None)
    if vector is None or profile is None:
        missing = [name for name, found in (("acceptance vector", vector), ("profile", profile)) if found is None]
        origin = f"a chain of {DEFAULT_CHAIN_LENGTH}, not planned: no {' and no '.join(missing)} for these settings"
        return chain_tree(DEFAULT_CHAIN_LENGTH), origin
    mismatches = [*vector.differences(wanted), *_prompt_differences(vector, prompted), *differences(profile)]
    made_for = "this pair, these settings and this machine"
    if mismatches:
        made_for = f"different conditions: {'; '.join(mismatches)}"
    return plan_tree(vector, profile), f"planned for {made_for}"


def _prompt_differences(vector: AcceptanceVector, prompted: dict[str, Any]) -> list[str]:
    return [
        f"{name.replace('_', ' ')} {vector.meta[name] or 'none'}, not {value or 'none'}"
        for name, value in prompted.items()
        if vector.meta.get(name, value) != value
    ]

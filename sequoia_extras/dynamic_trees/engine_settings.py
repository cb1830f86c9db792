"""A beam in the words of engines that grow trees themselves: SGLang, TensorRT-LLM, OpenVINO GenAI and transformers."""

from typing import Any

from sequoia_core.acceptance.vector import AcceptanceVector
from sequoia_core.command_line.formatting import format_interval
from sequoia_core.planning.plan import plan_tree
from sequoia_core.planning.prediction import Prediction, predict
from sequoia_core.planning.profile import HardwareProfile

from .beams import Beam, best_beams

SHOWN_BEAMS = 3
NOTES = {
    "SGLang": (
        "The root counts as a draft token. A top-k above 1 disables the overlap scheduler (Spec V2) in releases before "
        "June 2026 (sgl-project/sglang#26997)."
    ),
    "TensorRT-LLM": (
        "The root is not counted. Not for sliding-window attention or MLA; on Blackwell only in releases with "
        "NVIDIA/TensorRT-LLM#12958."
    ),
    "OpenVINO GenAI": "The root is not counted. Trees need an EAGLE-3 head and do_sample=False.",
    "transformers": "It drafts only chains.",
}


def plan_beams(acceptance: AcceptanceVector, profile: HardwareProfile) -> dict[str, Any]:
    """Return the best beams, the best static tree and each engine's settings, as JSON values.

    There are no settings if no beam is faster than no draft.
    """
    beams = best_beams(acceptance, profile)
    tree = plan_tree(acceptance, profile)
    # The first field is the width, which orders beams.
    return {
        "beams": [{"width": beam.width} | _tree_json(*beam[1:]) for beam in beams[:SHOWN_BEAMS]],
        "static_tree": _tree_json(tree.depth, tree.size, predict(tree, acceptance, profile)),
        "engines": _engines(beams[0], min(beams).depth) if beams[0].prediction.speedup.value > 1 else {},
    }


def _tree_json(depth: int, size: int, prediction: Prediction) -> dict[str, Any]:
    estimates = {name: getattr(prediction, name).to_json() for name in ("tokens_per_step", "speedup")}
    return {"depth": depth, "size": size} | estimates


def _engines(beam: Beam, chain: int) -> dict[str, dict[str, Any]]:
    """Return each engine's settings; `chain` is the best number of tokens for engines that draft only chains."""
    width, depth, size, _ = beam
    tensorrt: dict[str, Any] = {"max_draft_len": depth}
    openvino = {"num_assistant_tokens": size - 1}
    if width > 1:
        # TensorRT-LLM rejects more than `width` draft tokens per level.
        tokens = min(size - 1, width * depth)
        tensorrt |= {"use_dynamic_tree": True, "dynamic_tree_max_topK": width, "max_total_draft_tokens": tokens}
        openvino |= {"branching_factor": width, "tree_depth": depth}
    return {
        "SGLang": {
            "--speculative-num-steps": depth,
            "--speculative-eagle-topk": width,
            "--speculative-num-draft-tokens": size,
        },
        "TensorRT-LLM": tensorrt,
        "OpenVINO GenAI": openvino,
        "transformers": {"num_assistant_tokens": chain, "num_assistant_tokens_schedule": "constant"},
    }


def settings_text(plan: dict[str, Any]) -> str:
    """Return the result of `plan_beams` as lines to read and copy."""
    lines = ["# Fastest trees that an engine grows itself (sizes include the root):"]
    named = [(f"width {beam['width']}", beam) for beam in plan["beams"]]
    for name, tree in [*named, ("the best static tree, for comparison", plan["static_tree"])]:
        tokens = format_interval(**tree["tokens_per_step"])
        speedup = format_interval(**tree["speedup"], unit="×")
        lines.append(f"# {name}: depth {tree['depth']}, size {tree['size']}, {tokens} tokens per step, {speedup}")
    if not plan["engines"]:
        lines.append("# None is faster than no draft.")
    for engine, settings in plan["engines"].items():
        equals, comma = "  " if engine == "SGLang" else ("=", "\n")
        texts = [f"{name}{equals}{value!r}" for name, value in settings.items()]
        lines += [f"\n# {engine}: {NOTES[engine]}", comma.join(texts)]
    return "\n".join(lines)

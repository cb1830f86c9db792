"""Compare the rules by which engines accept drafted tokens, by tokens per step, temperature and top-p.

    python benchmarks/engine_rules.py                                       # the demo pair
    python benchmarks/engine_rules.py --target FOLDER --draft FILE.gguf     # another pair

"match" is the rule of engines that draft greedily, sample from the target and accept equal tokens; a token is accepted
with probability P at Q's most likely token. Accepting such a draft with probability p, as vLLM describes it, is the
same. "match sampled" draws the draft's tokens, so the probability is the sum of P · Q. "rejection" accepts a drawn
token with probability min(1, p / q), which gives the sum of min(P, Q).
All rules are evaluated on the same text, written by the target at each temperature. Chains are replayed along it, and
intervals of ratios are paired by prompt. Prints a table, then one JSON line.
Shapes: N = positions, V = vocabulary size, R = rules; P = target row, Q = draft row.
"""

import json
import threading
from collections.abc import Mapping, Sequence
from itertools import product

import sequoia_core.models.short_spins  # noqa: F401  before torch, whose threads read their settings once

# isort: split
import numpy as np
import torch

from benchmarks.common import ROOT, Options
from sequoia_core import SamplingConfig, load_pair
from sequoia_core.acceptance.bootstrap import ratio_estimate
from sequoia_core.acceptance.vector import AcceptanceVector
from sequoia_core.files.prompt_files import load_prompts
from sequoia_core.measuring.measure_acceptance import pair_settings, vector_from_prompts
from sequoia_core.measuring.prompt_loop import Report, measure_each, tokens_within_context
from sequoia_core.measuring.ranks_along_text import TextRows, ask_on_text
from sequoia_core.models.language_model import ModelPair
from sequoia_core.models.processor import processor_name
from sequoia_core.models.prompting import Prompting, encode_prompt
from sequoia_core.trees.plain import chain_tree
from sequoia_core.trees.replay import replay
from sequoia_extras.servers.chain_acceptance import MATCH, REJECTION

# The last rule also applies top-p to Q before drawing from it.
RULES = (MATCH, "match sampled", REJECTION, "rejection, draft cut")


def rule_acceptance(target: torch.Tensor, draft: torch.Tensor) -> torch.Tensor:
    """Return the probability that a drafted token is accepted under each of the first three rules, float64 [N, 3].

    Args:
        target, draft: float [N, V], rows P and Q.
    """
    likeliest = target.gather(1, draft.argmax(1, keepdim=True))[:, 0]
    sums = (target * draft).sum(1), torch.minimum(target, draft).sum(1)
    return torch.stack([likeliest, *sums], 1).double()


def accepted_given_token(
    target: torch.Tensor, draft: torch.Tensor, tokens: torch.Tensor, uniform: torch.Tensor
) -> torch.Tensor:
    """Draw whether the first three rules accepted the draft, given the committed token, bool [N, 3].

    The token follows P under every rule, so one text written by the target can be used for all rules. Under rejection,
    the token has probability p, of which min(p, q) comes from accepted drafts.

    Args:
        tokens: int64 [N], with positive probability under P.
        uniform: float64 [N], from 0 to 1.
    """
    p, q = (rows.gather(1, tokens[:, None])[:, 0].double() for rows in (target, draft))
    return torch.stack([draft.argmax(1) == tokens, uniform < q, uniform * p < q], 1)


def measure_rules(
    prompts: Sequence[Sequence[int]],
    pair: ModelPair,
    *,
    sampling: SamplingConfig,
    max_new_tokens: int = 128,
    seed: int = 0,
) -> dict[str, AcceptanceVector]:
    """Return a rank-1 vector for each rule, with its outcome at every position of the same text.

    Args:
        prompts: token ids, one list per prompt.
        sampling: the target's sampling settings, with a temperature above 0.
    """
    if sampling.greedy:
        raise ValueError("temperature: found 0, expected more, since at 0 all rules accept the most likely token")
    tokens_within_context(prompts, pair, max_new_tokens)
    cancel = threading.Event()

    def measure(number: int, report: Report) -> np.ndarray | None:
        parts = ask_on_text(
            prompts[number], pair, sampling=sampling, questions={"rules": _ask},
            max_new_tokens=max_new_tokens, seed=seed, number=number, cancel=cancel, report=report,
        )  # fmt: skip
        return None if parts is None else parts[0]["rules"]

    # Each prompt's result has shape [N, 2, R].
    found = list(measure_each(len(prompts), measure, progress=None, cancel=cancel))
    meta = pair_settings(pair) | {"temperature": sampling.temperature, "top_p": sampling.top_p}
    return {
        rule: vector_from_prompts(
            [part[:, 0, place].sum(keepdims=True) for part in found], [len(part) for part in found],
            meta=meta | {"rule": rule}, ranks=[part[:, 1, place].astype(np.int16) for part in found],
        )
        for place, rule in enumerate(RULES)
    }  # fmt: skip


def _ask(rows: TextRows) -> torch.Tensor:
    """Return the acceptance probability and its outcome under each rule, float64 [N, 2, R]."""
    target, draft, tokens, draws, first = rows
    sources = [draft, draft if first is None else first]
    uniform = torch.rand(len(tokens), dtype=torch.float64, device=draft.device, generator=draws)
    chances = torch.cat([rule_acceptance(target, row) for row in sources], 1)
    drawn = torch.cat([accepted_given_token(target, row, tokens, uniform) for row in sources], 1)
    return torch.stack([chances, drawn.double()], 1)[:, :, [0, 1, 2, 5]]


def result_row(found: Mapping[str, AcceptanceVector], lengths: list[int]) -> dict:
    """Return the acceptance by rule, the tokens per step at each length, and the gain of each rule over matching."""
    row: dict = {"acceptance": {rule: float(vector.probs[0]) for rule, vector in found.items()}}
    row["tokens_per_step"], row["over_match"] = {}, {}
    for k in lengths:
        replays = {rule: replay(chain_tree(k), vector) for rule, vector in found.items()}
        steps = {rule: each.steps.astype(np.float64) for rule, each in replays.items() if each is not None}
        row["tokens_per_step"][k] = {rule: each.tokens_per_step for rule, each in replays.items() if each is not None}
        row["over_match"][k] = {rule: ratio_estimate(steps[MATCH], each).to_json() for rule, each in steps.items()}
    return row


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument("--target")
    parser.add_argument("--draft")
    parser.add_argument("--prompts")
    parser.add_argument("--prompt-count", type=int, default=32)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--temperatures", default="0.3,0.6,0.8,1")
    parser.add_argument("--top-p", default="1,0.9")
    parser.add_argument("--lengths", default="1,2,4,8")
    args = parser.read(prompt_count=2, max_new_tokens=8, temperatures="0.6", top_p="0.9", lengths="1,2")
    temperatures, top_ps = ([float(each) for each in text.split(",")] for text in (args.temperatures, args.top_p))
    lengths = [int(each) for each in args.lengths.split(",")]
    pair = load_pair(args.target, args.draft)
    texts = load_prompts(args.prompts or ROOT / "assets" / "prompts" / "prompts.jsonl")[: args.prompt_count]
    prompts = [encode_prompt(pair, text, Prompting()) for text in texts]
    rows = []
    for temperature, top_p in product(temperatures, top_ps):
        found = measure_rules(
            prompts, pair, sampling=SamplingConfig(temperature, top_p=top_p), max_new_tokens=args.max_new_tokens
        )
        rows.append({"temperature": temperature, "top_p": top_p} | result_row(found, lengths))
        added = rows[-1]["over_match"][lengths[-1]][REJECTION]
        shown = "  ".join(f"{rule} {value:.3f}" for rule, value in rows[-1]["acceptance"].items())
        bounds = "" if added["low"] is None else f" [{added['low'] - 1:+.1%}, {added['high'] - 1:+.1%}]"
        print(f"T = {temperature:g}, top-p {top_p:g}: {shown}; rejection over match at k = {lengths[-1]}: "
              f"{added['value'] - 1:+.1%}{bounds}", flush=True)  # fmt: skip
    print(json.dumps({
        "benchmark": "engine_rules", "processor": processor_name(), "target": pair.target.name,
        "draft": pair.draft.name, "dtype": str(pair.target.dtype).removeprefix("torch."), "prompts": len(prompts),
        "max_new_tokens": args.max_new_tokens, "rows": rows,
    }))  # fmt: skip


if __name__ == "__main__":
    main()

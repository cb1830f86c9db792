"""How often the doctor's rules are set off by healthy drafts, and how often they find a planted fault.

    python benchmarks/doctor.py                    # all; minutes, on one core
    python benchmarks/doctor.py --readings 200     # quicker, less sure

Healthy drafts: the rate given the position before is the same everywhere (geometric), rises or falls gently; 30 to
10,000 drafts, K = 1 to 8, as fast as no speculation. Faults are planted in such drafts. Readings are drawn with a fixed
seed. Two tables, false alarms (the worst of all settings, and the mean) and power by the number of drafts; the last
line is all of it as JSON.
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path

import numpy as np

from sequoia_core.servers import rules as rules
from sequoia_core.servers.costs import ServerCosts, TimedSetting
from sequoia_core.servers.counts import RequestTotals, ServerCounts
from sequoia_core.servers.diagnosis import diagnose, present_speed

ROOT = Path(__file__).resolve().parent.parent
DRAFTS = (30, 100, 300, 1000, 10_000)
LENGTHS = (1, 2, 4, 8)
HEALTHY: Mapping[str, Callable[[int], np.ndarray]] = {  # K -> rates given the position before, float64 [K]
    "geometric .4": lambda k: np.full(k, 0.4),
    "geometric .6": lambda k: np.full(k, 0.6),
    "geometric .8": lambda k: np.full(k, 0.8),
    "rising .4 to .9": lambda k: np.linspace(0.4, 0.9, 8)[:k],
    "rising .6 to .9": lambda k: np.linspace(0.6, 0.9, 8)[:k],
    "falling .8 to .5": lambda k: np.linspace(0.8, 0.5, 8)[:k],
    "falling .7 to .45": lambda k: np.linspace(0.7, 0.45, 8)[:k],
}
FAULTS: Mapping[str, tuple[str, Sequence[float]]] = {  # name -> the verdict that is right, and planted rates
    "layer ids guessed: .036, .017": (rules.WIRED_WRONG, (0.036, 0.017, 0.0)),
    "nothing fits: .009": (rules.WIRED_WRONG, (0.009, 0.1, 0.1, 0.1)),
    "half broken: .12": (rules.WIRED_WRONG, (0.12, 0.3, 0.3, 0.3)),
    "from position 2 on .25": (rules.RUNS_OUT, (0.7, 0.25, 0.25, 0.25)),
    "a window after 3": (rules.RUNS_OUT, (0.7, 0.7, 0.7, 0.02, 0.02, 0.02, 0.02, 0.02)),
    "one layer again and again": (rules.TOO_LONG, (0.75, 0.45, 0.26, 0.16, 0.1)),
    "an update: .7 to .5": (rules.WORSE, (0.5, 0.5)),
    "long prompts: .8 to .22": (rules.LONGER, (0.8, 0.8)),
    "K is the limit: .97": (rules.LIMIT, (0.985, 0.985)),
    "costs too much: speed .65": (rules.COSTS, (0.7, 0.7, 0.7, 0.7)),
    "costs too much: speed .85": (rules.COSTS, (0.7, 0.7, 0.7, 0.7)),
}
BEFORE = (0.7, 0.7)  # what an earlier period had, for the update
LONG = (0.22, 0.22)
STEPS = 30  # of a request


def reading(rates: Sequence[float] | np.ndarray, drafts: int, rng: np.random.Generator) -> ServerCounts:
    """Draw what a server counts of independent drafts."""
    survival = np.concatenate([[1.0], np.cumprod(rates), [0.0]])
    ends = rng.multinomial(drafts, -np.diff(survival))
    positions = ends[::-1].cumsum()[::-1][1:]
    return ServerCounts(
        "vllm", "drawn", drafts, drafts * len(rates), int(positions.sum()), tuple(positions.tolist())
    )  # fmt: skip


def with_requests(
    rates: Sequence[float] | np.ndarray, long: Sequence[float] | np.ndarray, drafts: int, rng: np.random.Generator
) -> ServerCounts:
    """Draw requests with prompts of 100 to 20,000 tokens, whose drafts have other rates beyond 2,000."""
    prompts = 10 ** rng.uniform(2, 4.3, size=max(drafts // STEPS, 1))
    laws = [-np.diff(np.concatenate([[1.0], np.cumprod(each), [0.0]])) for each in (rates, long)]
    ends = rng.multinomial(STEPS, np.where(prompts[:, None] > 2000, laws[1], laws[0]))
    positions = ends.sum(axis=0)[::-1].cumsum()[::-1][1:]
    accepted = (ends @ np.arange(len(rates) + 1)).tolist()
    totals = tuple(RequestTotals(STEPS, each, int(prompt)) for each, prompt in zip(accepted, prompts, strict=True))
    steps = STEPS * len(totals)
    return ServerCounts(
        "vllm", "drawn", steps, steps * len(rates), sum(accepted), tuple(positions.tolist()), totals=totals
    )  # fmt: skip


def costs_at(speed: float, rates: Sequence[float] | np.ndarray) -> ServerCosts:
    """Return steps with which such drafts have this speed over none; longer drafts take a tenth more."""
    sec = (1 + float(np.cumprod(rates).sum())) / speed
    settings = [TimedSetting(0, 1.0), *(TimedSetting(len(rates) + more, sec * 1.1**more) for more in range(2))]
    return ServerCosts("drawn", None, tuple(settings))


def fired(rates: np.ndarray, drafts: int, rng: np.random.Generator) -> set[str]:
    """Return the rules that one healthy reading sets off, each asked alone."""
    counts, earlier = with_requests(rates, rates, drafts, rng), reading(rates, drafts, rng)
    found = (
        rules.never_drafted(counts), rules.wired_wrong(counts), rules.runs_out(counts), rules.too_long(counts),
        rules.falls_with_length(counts), rules.worse(counts, earlier), rules.degenerate(counts),
        rules.drafts_rarely(counts), rules.limited(counts),
        rules.too_slow(counts.tokens_per_step, present_speed(counts, (), costs_at(1.0, rates))[0]),
    )  # fmt: skip
    return {finding.verdict for finding in found if finding is not None}


def false_alarms(readings: int, drafts: Sequence[int] = DRAFTS, lengths: Sequence[int] = LENGTHS) -> dict[str, dict]:
    """Return for each rule the share of healthy readings that set it off: `worst` setting, which, and `mean`."""
    names = (
        rules.NEVER, rules.WIRED_WRONG, rules.RUNS_OUT, rules.TOO_LONG, rules.LONGER, rules.WORSE, rules.LOOPS,
        rules.RARELY, rules.LIMIT, rules.COSTS,
    )  # fmt: skip
    rng, shares = np.random.default_rng(0), {}
    for shape, rates in HEALTHY.items():
        for count in drafts:
            for longest in lengths:
                seen = [fired(rates(longest), count, rng) for _ in range(readings)]
                setting = f"{shape}, {count:,} drafts, K = {longest}"
                shares[setting] = {name: sum(name in each for each in seen) / readings for name in names}
    found = {}
    for name in names:
        worst = max(shares, key=lambda setting: shares[setting][name])
        mean = float(np.mean([each[name] for each in shares.values()]))
        found[name] = {"worst": shares[worst][name], "where": worst, "mean": mean}
    return found


def power(readings: int, drafts: Sequence[int] = DRAFTS) -> dict[str, dict]:
    """Return for each fault how often the verdict is right, and how often it cannot tell, by the number of drafts."""
    rng, found = np.random.default_rng(1), {}
    for name, (right, rates) in FAULTS.items():
        found[name] = {"right": right, "found": {}, "cannot_tell": {}}
        for count in drafts:
            verdicts = []
            for _ in range(readings):
                counts = with_requests(rates, LONG, count, rng) if right == rules.LONGER else reading(rates, count, rng)
                earlier = reading(BEFORE, count, rng) if right == rules.WORSE else None
                costs = costs_at(float(name.split()[-1]), rates) if right == rules.COSTS else None
                verdicts.append(diagnose(counts, earlier, costs=costs).verdict.verdict)
            found[name]["found"][count] = verdicts.count(right) / readings
            found[name]["cannot_tell"][count] = verdicts.count(rules.UNKNOWN) / readings
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--readings", type=int, default=1000, help="healthy ones drawn in each setting; of faults half as many"
    )
    args = parser.parse_args()
    alarms, found = false_alarms(args.readings), power(args.readings // 2)
    print(f"{'rule':<28}{'worst':>8}{'mean':>8}  where")
    for name, row in alarms.items():
        print(f"{name:<28}{row['worst']:>8.1%}{row['mean']:>8.2%}  {row['where'] if row['worst'] else ''}")
    print(f"\n{'found, of drafts':<32}" + "".join(f"{count:>8,}" for count in DRAFTS))
    for name, row in found.items():
        print(f"{name:<32}" + "".join(f"{share:>8.0%}" for share in row["found"].values()))
    result = {"readings": args.readings, "date": date.today().isoformat(), "false_alarms": alarms, "power": found}
    out = ROOT / "benchmarks" / "results" / f"doctor-{date.today().isoformat()}.json"
    out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()

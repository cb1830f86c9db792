"""Measure how often the doctor's rules fire on healthy drafts, and how often they detect a planted fault.

    python benchmarks/doctor.py                    # everything; takes minutes on one core
    python benchmarks/doctor.py --readings 200     # faster, but less precise

The conditional acceptance rate of healthy drafts is constant over positions (geometric) or rises or falls gently. There
are 30 to 10,000 drafts with K = 1 to 8, as fast as decoding without speculation. Faults are planted in such drafts.
Readings are drawn with a fixed seed. Prints two tables, false alarms (the worst setting and the mean) and power by
number of drafts; the last line contains both as JSON.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import date

import numpy as np

from benchmarks.common import Options, write_record
from sequoia_extras.servers import rules as rules
from sequoia_extras.servers.costs import ServerCosts, TimedSetting
from sequoia_extras.servers.counts import RequestTotals, ServerCounts
from sequoia_extras.servers.diagnosis import diagnose
from sequoia_extras.servers.evidence import Facts
from sequoia_extras.servers.speeds import find_speeds

DRAFTS = (30, 100, 300, 1000, 10_000)
LENGTHS = (1, 2, 4, 8)
# The functions map K to conditional acceptance rates, float64 [K].
HEALTHY: Mapping[str, Callable[[int], np.ndarray]] = {
    "geometric .4": lambda k: np.full(k, 0.4),
    "geometric .6": lambda k: np.full(k, 0.6),
    "geometric .8": lambda k: np.full(k, 0.8),
    "rising .4 to .9": lambda k: np.linspace(0.4, 0.9, 8)[:k],
    "rising .6 to .9": lambda k: np.linspace(0.6, 0.9, 8)[:k],
    "falling .8 to .5": lambda k: np.linspace(0.8, 0.5, 8)[:k],
    "falling .7 to .45": lambda k: np.linspace(0.7, 0.45, 8)[:k],
}
# Name -> correct verdict and planted rates.
FAULTS: Mapping[str, tuple[str, Sequence[float]]] = {
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
BEFORE = (0.7, 0.7)  # rates before the planted update
LONG = (0.22, 0.22)
STEPS = 30  # number of steps per request


def reading(rates: Sequence[float] | np.ndarray, drafts: int, rng: np.random.Generator) -> ServerCounts:
    """Draw a server's counts of independent drafts."""
    survival = np.concatenate([[1.0], np.cumprod(rates), [0.0]])
    ends = rng.multinomial(drafts, -np.diff(survival))
    positions = ends[::-1].cumsum()[::-1][1:]
    return ServerCounts(
        "vllm", "drawn", drafts, drafts * len(rates), int(positions.sum()), tuple(positions.tolist())
    )  # fmt: skip


def with_requests(
    rates: Sequence[float] | np.ndarray, long: Sequence[float] | np.ndarray, drafts: int, rng: np.random.Generator
) -> ServerCounts:
    """Draw requests with prompts of 100 to 20,000 tokens; those above 2,000 have the rates `long`."""
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
    """Return step times at which drafts with these rates give this speedup; a longer draft takes 10 % more time."""
    sec = (1 + float(np.cumprod(rates).sum())) / speed
    settings = [TimedSetting(0, 1.0), *(TimedSetting(len(rates) + more, sec * 1.1**more) for more in range(2))]
    return ServerCosts("drawn", None, tuple(settings))


def fired(rates: np.ndarray, drafts: int, rng: np.random.Generator) -> set[str]:
    """Return the rules that fire on one healthy reading, each evaluated alone."""
    facts = Facts(with_requests(rates, rates, drafts, rng), reading(rates, drafts, rng))
    found = (
        rules.never_drafted(facts), rules.wired_wrong(facts), rules.runs_out(facts), rules.too_long(facts),
        rules.falls_with_length(facts), rules.worse(facts), rules.degenerate(facts), rules.drafts_rarely(facts),
        rules.limited(facts), rules.too_slow(facts, find_speeds(facts.counts, costs=costs_at(1.0, rates)).present),
    )  # fmt: skip
    return {finding.verdict for finding in found if finding is not None}


def false_alarms(readings: int, drafts: Sequence[int] = DRAFTS, lengths: Sequence[int] = LENGTHS) -> dict[str, dict]:
    """Return the share of healthy readings on which each rule fires: the worst setting and the mean."""
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
    """Return how often the verdict on each fault is correct and how often it is undecided, by number of drafts."""
    rng, found = np.random.default_rng(1), {}
    for name, (right, rates) in FAULTS.items():
        found[name] = {"right": right, "found": {}, "cannot_tell": {}}
        for count in drafts:
            verdicts = []
            for _ in range(readings):
                counts = with_requests(rates, LONG, count, rng) if right == rules.LONGER else reading(rates, count, rng)
                earlier = reading(BEFORE, count, rng) if right == rules.WORSE else None
                costs = costs_at(float(name.split()[-1]), rates) if right == rules.COSTS else None
                verdicts.append(diagnose(counts, earlier, find_speeds(counts, costs=costs)).verdict.verdict)
            found[name]["found"][count] = verdicts.count(right) / readings
            found[name]["cannot_tell"][count] = verdicts.count(rules.UNKNOWN) / readings
    return found


def main() -> None:
    parser = Options(__doc__)
    parser.add_argument(
        "--readings", type=int, default=1000, help="number of healthy readings per setting; faults get half as many"
    )
    args = parser.read(readings=2)
    alarms, found = false_alarms(args.readings), power(args.readings // 2)
    print(f"{'rule':<28}{'worst':>8}{'mean':>8}  where")
    for name, row in alarms.items():
        print(f"{name:<28}{row['worst']:>8.1%}{row['mean']:>8.2%}  {row['where'] if row['worst'] else ''}")
    print(f"\n{'found, of drafts':<32}" + "".join(f"{count:>8,}" for count in DRAFTS))
    for name, row in found.items():
        print(f"{name:<32}" + "".join(f"{share:>8.0%}" for share in row["found"].values()))
    result = {"readings": args.readings, "date": date.today().isoformat(), "false_alarms": alarms, "power": found}
    write_record("doctor", result, args)
    print(json.dumps(result))


if __name__ == "__main__":
    main()

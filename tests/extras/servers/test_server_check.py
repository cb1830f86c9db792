"""A plan from three settings predicts the other draft lengths, on servers whose step times follow a line."""

import json

import numpy as np
import pytest

from benchmarks.server_check import Served, compare, server_command
from sequoia_extras.servers.counts import ServerCounts, ServerRequest

PLAIN_SEC, FIXED_SEC, TOKEN_SEC = 0.010, 0.004, 0.001
LENGTHS = (0, 1, 2, 3, 4, 6, 8)


def serve(right: np.ndarray, k: int, slowdown: float = 1) -> Served:
    """Answer a request with chains of k; `right` says whether the draft's guess of each token is right."""
    accepted, start = [], 0
    while start < len(right):
        taken = next((i for i in range(k) if start + i >= len(right) or not right[start + i]), k)
        accepted.append(taken)
        start += taken + 1
    seconds = len(accepted) * (PLAIN_SEC + (FIXED_SEC + k * TOKEN_SEC if k else 0)) * slowdown
    if not k:
        return Served(len(right), seconds, "text")
    request = ServerRequest(tuple(accepted), (k,) * len(accepted), len(right))
    positions = tuple(sum(taken >= position for taken in accepted) for position in range(1, k + 1))
    counted = len(accepted), k * len(accepted), sum(accepted), positions
    counts = ServerCounts("vllm", "records by step", *counted, requests=(request,), ordered=True)
    return Served(len(right), seconds, "text", counts)


@pytest.mark.parametrize("slowdown", [1.0, 1.5])
def test_three_settings_predict_the_others(slowdown):
    """At K = 4 the server is slower than the line by `slowdown`, which the plan does not see."""
    generator = np.random.default_rng(0)
    texts = [generator.random(200) < np.repeat(generator.choice([0.4, 0.9], 10), 20) for _ in range(12)]
    found = compare({k: [serve(right, k, slowdown if k == 4 else 1) for right in texts] for k in LENGTHS})
    assert [row["k"] for row in found["rows"]] == list(LENGTHS) and found["same_text"] == 1.0
    for row in found["rows"]:
        # tokens after an accepted draft were never guessed, and count as right
        assert row["error"] == pytest.approx(slowdown - 1 if row["k"] == 4 else 0, abs=0.02)
    assert found["median_abs_error"] < 0.02


def test_commands_turn_speculation_and_its_counters_on():
    assert " ".join(server_command("llama.cpp", "serve -t 8", "big", "small", 3)) == (
        "serve -t 8 --model big --metrics --spec-type draft-simple --model-draft small --spec-draft-n-max 3 "
        "--spec-draft-p-min 0"
    )
    plain = ["serve", "--model", "big", "--enable-per-request-metrics"]
    assert server_command("vllm", "serve", "big", None, 0) == plain
    *words, config = server_command("vllm", "serve", "big", "head", 2, method="eagle3")
    assert words == [*plain, "--per-request-spec-decode-metrics", "detailed", "--speculative-config"]
    assert json.loads(config) == {"method": "eagle3", "model": "head", "num_speculative_tokens": 2}

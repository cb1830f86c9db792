"""Servers of our own, over a law that is known: exact ones pass, each planted bias is found; foreign answers."""

import json
import math
from contextlib import contextmanager

import numpy as np
import pytest

from sequoia_core.command_line.main import main
from sequoia_core.servers.audit import Answer, Side, ask_side, audit, first_difference
from tests.core.planted import PROMPTS, V, law_of_the_draft, planted, rows_by, tables  # noqa: F401
from tests.served import body_of, reply, served

SAMPLING = {"temperature": 1.0, "top_p": 1.0}
BIAS = 0.2


def answering(answer, metrics=None):
    """Serve what `answer` makes of the body of a request."""

    def respond(handler):
        if handler.command == "GET":
            return reply(handler, metrics().encode()) if metrics else reply(handler, status=404)
        try:
            reply(handler, json.dumps(answer(body_of(handler))).encode())
        except ValueError as error:
            reply(handler, str(error).encode(), 400)

    return served(respond)


class Engine:
    """Answers by P, and behind the first token by the rows that a verifier leaves; a request may switch that off."""

    def __init__(self, verifier=None, *, seed=0, target=None, most=64):
        self.plain = tables()[0] if target is None else target
        self.drafted = rows_by(verifier) if verifier and target is None else self.plain
        self.drafts, self.speculates, self.most = 0, verifier is not None, most
        self.generator = np.random.default_rng(seed)

    def metrics(self):
        counts = {"drafts": self.drafts, "draft_tokens": 4 * self.drafts, "accepted_tokens": 0}
        return "".join(f"llamacpp:spec_decode_num_{name}_total {count}\n" for name, count in counts.items())

    def __call__(self, body):
        if body["n"] > self.most:
            raise ValueError(f"n must be at most {self.most}")
        drafts = self.speculates and body.get("speculative.n_max") != 0
        self.drafts += drafts * body["n"] * (body["max_tokens"] - 1)
        return {"choices": [self.choice(body, self.drafted if drafts else self.plain) for _ in range(body["n"])]}

    def choice(self, body, rows):
        text, content = [PROMPTS.index(body["prompt"])], []
        for place in range(body["max_tokens"]):
            row = self.plain[text[-1]] if place == 0 else rows[text[-1]]
            tops = [{"id": token, "logprob": math.log(max(chance, 1e-30))} for token, chance in enumerate(row)]
            text.append(int(row.argmax() if body["temperature"] == 0 else self.generator.choice(V, p=row)))
            content.append(tops[text[-1]] | {"top_logprobs": tops})
        return {"logprobs": {"content": content}}


@contextmanager
def pair_of(verifier, **options):
    speculating, plain = Engine(verifier, **options), Engine(seed=1)
    with answering(speculating, speculating.metrics) as one, answering(plain, plain.metrics) as other:
        yield Side(one), Side(other)


def audited(sides, temperature=1.0, bias=BIAS):
    return audit(sides, PROMPTS, sampling=SAMPLING | {"temperature": temperature}, length=24, variation=bias)


def test_a_planted_bias_is_found_on_a_server(planted):  # noqa: F811
    """One of those that tests/core/servers/test_same_law.py finds each."""
    with pair_of(planted(law_of_the_draft), most=20) as sides:  # llama.cpp has as many answers as slots
        found = audited(sides)
    assert found["lossless"] is False and found["p_value"] < 0.01 <= found["control_p_value"]
    assert found["requests"] == 2 * 2 * -(-495 // (2 * 16)) and found["power"] >= 0.9 and min(found["samples"]) >= 495


def test_the_same_server_without_its_draft():
    engine = Engine("specinfer")
    with answering(engine, engine.metrics) as address:
        found = audited((Side(address), Side(address, {"speculative.n_max": 0})), bias=0.3)
        assert found["lossless"] is True and found["drafts"] > 100
        with pytest.raises(ValueError, match=r"found \d+ drafts in a request that should have none \(sent {}\), exp"):
            audited((Side(address), Side(address)))


def test_what_tells_nothing_is_no_pass():
    with pair_of(None) as sides:
        assert audited(sides, bias=0.5)["verdict"] == "The server drafted nothing, so nothing was tested."
        assert audited(sides, 0.0)["lossless"] is None
    other = np.roll(tables()[0], 1, axis=0)
    with pair_of("specinfer", target=other) as sides:
        found = audited(sides)
    assert found["lossless"] is None and "already the first tokens" in found["verdict"]
    certain = np.eye(V)
    one, two = Engine("specinfer", target=certain), Engine(target=certain)
    with answering(one) as first, answering(two) as second:
        found = audited((Side(first), Side(second)), bias=0.5)
    assert found["lossless"] is None and "one answer only" in found["verdict"]


def test_greedy_answers_are_the_same_or_part_where_it_is_said():
    with pair_of("specinfer") as sides:
        assert audited(sides, 0.0)["lossless"] is True
    rows = tables()[0]
    for by, near in ((1e-4, True), (-2.0, False)):
        tied, other = rows.copy(), rows.copy()
        tied[:, 0], tied[:, 1] = 0.45, 0.45 * np.exp(-abs(by))
        other[:, 0], other[:, 1] = 0.45, 0.45 * np.exp(abs(by))
        one, two = Engine("specinfer", target=other), Engine(target=tied)
        with answering(one, one.metrics) as first, answering(two, two.metrics) as second:
            found = audited((Side(first), Side(second)), 0.0)
        parted = found["first_difference"]
        assert found["lossless"] is near and found["differences"] == 2
        assert (parted["position"], parted["tokens"]) == (1, [0, 1])
        assert found["gap"] == pytest.approx(abs(by), abs=1e-5)


def test_where_logits_are_not_told_no_difference_is_a_near_tie():
    plain = Answer((5, 6, 7), ({}, {6: -1.0, 8: -1.1}, {7: -0.1, 9: -4.0}))
    short = first_difference(Answer((5, 6), ()), plain)
    assert (short["tokens"], short["near_tie"], short["gap"]) == ([7, None], None, None)


LEGACY = {"tokens": ["token_id:5", "token_id:6"], "top_logprobs": [{"token_id:5": -0.1}, None]}


@pytest.mark.parametrize(
    ("choice", "tokens", "tops"),
    [
        ({"logprobs": LEGACY}, ("token_id:5", "token_id:6"), ({"token_id:5": -0.1}, {})),
        ({"token_ids": [5, 6], "logprobs": None}, (5, 6), ()),
        ({"logprobs": {"content": [{"token": "a", "logprob": -1, "top_logprobs": []}]}}, ("a",), ({},)),
    ],
)
def test_tokens_are_read_in_the_shapes_of_several_servers(choice, tokens, tops):
    with answering(lambda body: {"choices": [choice]}) as address:
        (found,) = ask_side(Side(address), "a", 2, SAMPLING, 1)
    assert (found.tokens, found.tops) == (tokens, tops)


def test_foreign_answers_are_one_line():
    with answering(lambda body: {"choices": [{"text": "abc"}]}) as address:
        with pytest.raises(ValueError, match="expected choices with token_ids or logprobs of tokens"):
            ask_side(Side(address), "a", 2, SAMPLING, 1)


def test_the_command_says_and_keeps_it(tmp_path, capsys):
    (tmp_path / "prompts.txt").write_text("a\nb\n")
    out, asked = tmp_path / "audit.json", ["--prompts", str(tmp_path / "prompts.txt"), "--bias", "0.4"]
    with pair_of("specinfer", seed=2) as (one, other):
        asked += ["--server", one.address, "--against", other.address, "--out", str(out)]
        assert main(["audit", *asked, "--json"]) == 0
        result = json.loads(capsys.readouterr().out)
        assert json.loads(out.read_text()) == result and result["lossless"] is True
        assert main(["audit", *asked, "--temperature", "0"]) == 0
    assert capsys.readouterr().out.startswith("Lossless: 2 of 2 answers of 128 tokens are the same")

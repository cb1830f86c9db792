"""Audits of test servers with a known distribution: exact ones pass, planted biases are detected."""

import json
import math
from contextlib import contextmanager

import numpy as np
import pytest

from sequoia_core.command_line.main import main
from sequoia_extras.servers.audit import audit, first_difference, repeats
from sequoia_extras.servers.completions import Answer, ask_side
from tests.planted import PROMPTS, V, law_of_the_draft, planted, rows_by, tables  # noqa: F401
from tests.served import body_of, reply, served

SAMPLING = {"temperature": 1.0, "top_p": 1.0}
BIAS = 0.2


def answering(answer, metrics=None):
    """Serve the result of `answer` for the body of each request."""

    def respond(handler):
        if handler.command == "GET":
            return reply(handler, metrics().encode()) if metrics else reply(handler, status=404)
        try:
            reply(handler, json.dumps(answer(body_of(handler))).encode())
        except ValueError as error:
            reply(handler, str(error).encode(), 400)

    return served(respond)


class Engine:
    """Answers from P, and after the first token from the rows of a verifier.

    Args:
        seed: returns the seed of the nth answer from the seed of its request.
        drafts_at: numbers of the requests that draft; None for all.
    """

    def __init__(self, verifier=None, *, seed=lambda seed, n: seed + n, target=None, most=64, drafts_at=None):
        self.plain = tables()[0] if target is None else target
        self.drafted = rows_by(verifier) if verifier and target is None else self.plain
        self.drafts, self.speculates, self.most = 0, verifier is not None, most
        self.seed, self.seeds, self.drafts_at = seed, [], drafts_at

    def metrics(self):
        counts = {"drafts": self.drafts, "draft_tokens": 4 * self.drafts, "accepted_tokens": 0}
        return "".join(f"llamacpp:spec_decode_num_{name}_total {count}\n" for name, count in counts.items())

    def __call__(self, body):
        if body["n"] > self.most:
            raise ValueError(f"n must be at most {self.most}")
        drafts = self.speculates and (self.drafts_at is None or len(self.seeds) in self.drafts_at)
        self.drafts += drafts * body["n"] * (body["max_tokens"] - 1)
        self.seeds.append(range(body["seed"], body["seed"] + body["n"]))
        return {"choices": [self.choice(body, drafts, self.seed(body["seed"], n)) for n in range(body["n"])]}

    def choice(self, body, drafts, seed):
        generator = np.random.default_rng(seed)
        rows = self.drafted if drafts else self.plain
        text, content = [PROMPTS.index(body["prompt"])], []
        for place in range(body["max_tokens"]):
            row = self.plain[text[-1]] if place == 0 else rows[text[-1]]
            tops = [{"id": token, "logprob": math.log(max(chance, 1e-30))} for token, chance in enumerate(row)]
            text.append(int(row.argmax() if body["temperature"] == 0 else generator.choice(V, p=row)))
            if drafts:
                generator.random()  # as the test of a drafted token
            content.append(tops[text[-1]] | {"top_logprobs": tops})
        return {"logprobs": {"content": content}}


@contextmanager
def pair_of(verifier, plain=None, **options):
    speculating, plain = Engine(verifier, **options), plain or Engine()
    with answering(speculating, speculating.metrics) as one, answering(plain, plain.metrics) as other:
        yield one, other


def audited(sides, temperature=1.0, bias=BIAS):
    return audit(sides, PROMPTS, sampling=SAMPLING | {"temperature": temperature}, length=24, variation=bias)


def test_a_planted_bias_is_detected_on_a_server(planted):  # noqa: F811
    """One of the biases that tests/extras/servers/test_two_samples.py detects."""
    with pair_of(planted(law_of_the_draft), most=20) as sides:  # llama.cpp has as many answers as slots
        found = audited(sides)
    assert found["lossless"] is False and found["p_value"] < 0.01 <= found["control_p_value"]
    assert found["requests"] == 2 * 2 * -(-495 // (2 * 16)) and found["power"] >= 0.9 and min(found["samples"]) >= 495


def test_a_server_cannot_be_audited_against_itself():
    engine = Engine("specinfer")
    with answering(engine, engine.metrics) as address:
        with pytest.raises(
            ValueError, match=r"found \d+ drafts in a request that should have none, expected no drafts"
        ):
            audited((address, address))
        other_name = address.replace("127.0.0.1", "localhost")
        with pytest.raises(ValueError, match=r"found \d+ drafts in a request that should have none"):
            audited((address, other_name))
    with answering(Engine("specinfer")) as address, pytest.raises(ValueError, match="found no draft counters"):
        audited((address, address.replace("127.0.0.1", "localhost")))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_single_unwanted_draft_is_detected(temperature):
    with pair_of("specinfer", Engine("specinfer", drafts_at={1})) as sides:
        with pytest.raises(ValueError, match="that should have none"):
            audited(sides, temperature)


@pytest.mark.sample(6, cover=False)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("reporting", [False, True], ids=["no metrics", "metrics of the plain server"])
def test_an_audit_does_not_pass_without_draft_counters(temperature, reporting):
    one, two = Engine("specinfer"), Engine()
    with answering(one) as first, answering(two, two.metrics if reporting else None) as second:
        found = audited((first, second), temperature, bias=0.3)
    silent = "the server does not report" if reporting else "neither server reports"
    assert found["lossless"] is None and found["drafts"] is None
    assert found["verdict"] == f"No difference found, but {silent} whether it drafted: start it with --metrics."


def test_a_falling_draft_counter_is_ignored():
    speculating, plain = Engine("specinfer"), Engine()

    def answer(body):
        speculating.drafts -= 1000 if len(speculating.seeds) == 2 else 0
        return speculating(body)

    speculating.drafts = 1_000_000
    with answering(answer, speculating.metrics) as one, answering(plain, plain.metrics) as other:
        found = audited((one, other), bias=0.3)
    assert found["drafts"] is None and "the server does not report whether it drafted" in found["verdict"]


def test_an_audit_does_not_pass_with_too_few_answers():
    engine = Engine("specinfer")

    def answer(body):
        return {"choices": engine(body)["choices"][: 64 if body["max_tokens"] == 1 else 2]}

    plain = Engine()
    with answering(answer, engine.metrics) as one, answering(plain, plain.metrics) as other:
        found = audited((one, other))
    assert found["lossless"] is None and found["power"] < 0.5
    assert "would be detected with a probability of only 0." in found["verdict"]


def test_an_audit_does_not_pass_without_evidence():
    with pair_of(None) as sides:
        assert audited(sides, bias=0.5)["verdict"] == "The server drafted nothing, so nothing was tested."
        assert audited(sides, 0.0)["lossless"] is None
    other = np.roll(tables()[0], 1, axis=0)
    with pair_of("specinfer", target=other) as sides:
        found = audited(sides)
    assert found["lossless"] is None and "even the first tokens" in found["verdict"]
    certain = np.eye(V)
    one, two = Engine("specinfer", target=certain), Engine(target=certain)
    with answering(one) as first, answering(two) as second:
        found = audited((first, second), bias=0.5)
    assert found["lossless"] is None and "only one likely answer" in found["verdict"]
    assert found["verdict"].endswith("The plain server does not report whether it drafted.")


EVERY_TIME, TOO_OFTEN = (
    "the server gives the same answer whenever a request",
    "answers to the same request are identical",
)
FAR = 1_000_003
SEEDS = {  # seed of the nth answer, most answers to a request, the bias, the verdict
    "one seed for all requests": (lambda seed, n: 42, 1, 0.4, EVERY_TIME),
    "one seed for the answers to a request": (lambda seed, n: seed, 64, 0.4, EVERY_TIME),
    "8 seeds": (lambda seed, n: seed + n % 8, 64, 0.2, TOO_OFTEN),
    "each seed twice": (lambda seed, n: (seed + n) // 2, 64, 0.2, TOO_OFTEN),
    "one seed for a third": (lambda seed, n: seed + min(n, 40), 64, 0.2, TOO_OFTEN),
}


@pytest.mark.sample(len(SEEDS), cover=False)
@pytest.mark.parametrize("name", SEEDS)
def test_repeated_seeds_give_no_verdict(name):
    seed, most, bias, reason = SEEDS[name]
    plain = Engine(seed=lambda own, n: seed(own, n) + FAR, most=most)
    with pair_of("specinfer", plain, seed=seed, most=most) as sides:
        found = audited(sides, bias=bias)
    assert found["lossless"] is None
    assert found["verdict"].startswith(f"Inconclusive: {reason}")


def test_repeated_answers_differ_from_a_prompt_with_few_answers():
    one, two = ("a", "b"), ("a", "c")
    assert repeats([(0, one, two), (1, one, one), (0, one, two), (1, one, one)])
    assert repeats([(0, one, one), (0, two, two)])
    assert not repeats([(0, one, two), (1, one, one)])  # nothing was asked twice
    assert not repeats([(0, one, one), (1, one, one), (0, one, one), (1, one, two)])
    assert not repeats([(0, one), (0, two), (0, one)])


def test_every_answer_has_a_unique_seed():
    speculating, plain = Engine("specinfer"), Engine()
    with answering(speculating, speculating.metrics) as one, answering(plain, plain.metrics) as other:
        audited((one, other), bias=0.3)
    seeds = [seed for asked in (*speculating.seeds[1:], *plain.seeds[1:]) for seed in asked]  # the first counts answers
    assert len(set(seeds)) == len(seeds) > 400


def test_greedy_differences_are_located():
    with pair_of("specinfer") as sides:
        assert audited(sides, 0.0)["lossless"] is True
    rows = tables()[0]
    for by, near in ((1e-4, None), (-2.0, False)):
        tied, other = rows.copy(), rows.copy()
        tied[:, 0], tied[:, 1] = 9, 9 * np.exp(-abs(by))
        other[:, 0], other[:, 1] = 9, 9 * np.exp(abs(by))
        tied, other = (each / each.sum(axis=1, keepdims=True) for each in (tied, other))
        one, two = Engine("specinfer", target=other), Engine(target=tied)
        with answering(one, one.metrics) as first, answering(two, two.metrics) as second:
            found = audited((first, second), 0.0)
        parted = found["first_difference"]
        assert found["lossless"] is near and found["differences"] == 2
        assert (parted["position"], parted["tokens"]) == (1, [0, 1])
        assert found["gap"] == pytest.approx(abs(by), abs=1e-5)


def greedy(length, ties=(), swapped=None):
    """Return an answer of the token 5, with 9 nearly as likely at `ties`, and 9 from the position `swapped` on."""
    content = []
    for position in range(1, length + 1):
        gap = 0.2 if position in ties else 3.0
        tops = [{"id": 5, "logprob": -0.5}, {"id": 9, "logprob": -0.5 - gap}]
        content.append(tops[swapped is not None and position >= swapped] | {"top_logprobs": tops})
    return {"choices": [{"logprobs": {"content": content}}]}


@pytest.mark.sample(8, cover=False)
@pytest.mark.parametrize(
    ("length", "ties", "parting", "prompts", "lossless", "words"),
    [
        (1, (), 0, 3, None, "only 0 tokens after the first"),
        (3, (), 0, 3, None, "only 6 tokens after the first"),
        (24, (), 0, 3, True, "3 of 3 answers"),
        (24, (1,), 2, 2, None, "only 0 tokens after the first"),
        (24, (9,), 2, 2, None, "2 diverge at a near tie (0 near ties agree)"),
        (24, (5, 9, 17), 5, 8, None, "5 diverge at a near tie"),
        (24, (9,), 3, 8, True, "5 of 8 answers"),
        (24, (5, 9, 17), 1, 1, None, "1 diverge at a near tie"),
    ],
)
def test_greedy_audits_count_only_tokens_that_a_draft_can_change(length, ties, parting, prompts, lossless, words):
    """Of the answers, the first `parting` part at the last near tie."""
    texts = [f"prompt {number}" for number in range(prompts)]
    engine, plain = Engine(), Engine()

    def speculating(body):
        engine.drafts += 1
        return greedy(length, ties, max(ties) if body["prompt"] in texts[:parting] else None)

    with (
        answering(speculating, engine.metrics) as one,
        answering(lambda body: greedy(length, ties), plain.metrics) as other,
    ):
        found = audit((one, other), texts, sampling={"temperature": 0}, length=24, variation=BIAS)
    assert found["lossless"] is lossless and words in found["verdict"]
    assert found["verdict"].startswith("Lossless: " if lossless else "Inconclusive: ")


@pytest.mark.sample(10, cover=False)
@pytest.mark.parametrize(
    ("plain", "token", "near", "gap"),
    [
        ({7: -1.0, 9: -1.2}, 9, True, 0.2),
        ({7: -1.0, 9: -1.3}, 9, False, 0.3),
        ({7: -1.1, 9: -1.0}, 9, True, -0.1),
        ({7: -0.05, 1: -4.0, 2: -5.0, 3: -6.0, 4: -7.0}, 9, False, 6.95),
        ({7: -1.0, 1: -1.1}, 9, None, None),  # 9 may be as near as 1
        ({7: -0.1}, 9, None, None),
        ({1: -0.1, 7: -3.0, 9: -5.0}, 9, None, None),  # the plain server is not greedy
        ({7: -0.1, 1: -9.0}, "the", None, None),
        ({7: -0.1, 1: -9.0}, None, None, None),
        ({}, 9, None, None),
    ],
)
def test_near_ties_are_judged_by_the_plain_server_only(plain, token, near, gap):
    accused = {7: -0.70, 9: -0.71, "the": -0.71}
    found = Answer((5,) if token is None else (5, token), ({}, accused)[: 1 + (token is not None)])
    parted = first_difference(found, Answer((5, 7), ({5: 0.0}, plain)))
    assert (parted["tokens"], parted["near_tie"]) == ([7, token], near)
    assert parted["gap"] == (gap if gap is None else pytest.approx(gap))
    assert ("at least 7," in parted["words"]) is (gap == 6.95)
    assert ("a near tie" in parted["words"], "more than rounding" in parted["words"]) == (near is True, near is False)


TWICE = [{"token": "a", "logprob": -1}, {"token": "a", "logprob": -3}]  # two tokens of one text
LEGACY = {"tokens": ["token_id:5", "token_id:6"], "top_logprobs": [{"token_id:5": -0.1}, None]}


@pytest.mark.parametrize(
    ("choice", "tokens", "tops"),
    [
        ({"logprobs": LEGACY}, ("token_id:5", "token_id:6"), ({"token_id:5": -0.1}, {})),
        ({"token_ids": [5, 6], "logprobs": None}, (5, 6), ()),
        ({"logprobs": {"content": [{"token": "a", "logprob": -1, "top_logprobs": TWICE}]}}, ("a",), ({"a": -1},)),
    ],
)
def test_answers_of_every_server_format_are_parsed(choice, tokens, tops):
    with answering(lambda body: {"choices": [choice]}) as address:
        (found,) = ask_side(address, "a", 2, SAMPLING, 1)
    assert (found.tokens, found.tops) == (tokens, tops)


def of_llama(**fields):
    return json.dumps({"choices": [{"logprobs": {"content": [{"id": 5, "logprob": -1, "top_logprobs": []} | fields]}}]})


def of_vllm(tokens='["a"]', tops='[{"a": -1}]'):
    return f'{{"choices": [{{"logprobs": {{"tokens": {tokens}, "top_logprobs": {tops}}}}}]}}'


CHOICES = "expected choices with token_ids or token logprobs"
LISTED = of_llama(top_logprobs=[{"id": 5, "logprob": 0.5}])


@pytest.mark.sample(14, cover=False)
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"choices": [{"text": "abc"}]}', CHOICES),
        (of_vllm(tokens='"ab"'), CHOICES),
        (of_vllm(tops='[["a", -1]]'), CHOICES),
        (LISTED, "found '0.5' as a log-probability, expected a number no greater than 0"),
        (LISTED.replace("0.5", "NaN"), "found NaN, expected finite numbers"),
        (of_llama(id=-1), "found -1 as a token, expected a token id or its text"),
        (of_vllm(tokens="[true]"), "found True as a token, expected"),
        (of_vllm(tops='[{"a": -1, "a": -2}]'), "found the key 'a' twice"),
        (of_vllm(tokens='["a", "b", "c"]', tops="[]"), "found 3 tokens with 0 lists"),
        (of_vllm(tokens='["a", "b"]'), "found 2 tokens with 1 lists of log-probabilities, expected at most 2 tokens"),
    ],
)
def test_malformed_answers_are_refused_in_one_line(content, message):
    with served(lambda handler: body_of(handler) and reply(handler, content.encode())) as address:
        with pytest.raises(ValueError, match=message) as refusal:
            ask_side(address, "a", 2, SAMPLING, 1)
    assert str(refusal.value).startswith(address) and "\n" not in str(refusal.value)


def test_the_audit_command_prints_and_saves_its_result(tmp_path, capsys):
    (tmp_path / "prompts.txt").write_text("a\nb\n")
    out, asked = tmp_path / "audit.json", ["--prompts", str(tmp_path / "prompts.txt"), "--bias", "0.4"]
    with pair_of("specinfer") as (one, other):
        asked += ["--server", one, "--against", other, "--out", str(out)]
        assert main(["audit", *asked, "--json"]) == 0
        result = json.loads(capsys.readouterr().out)
        assert json.loads(out.read_text()) == result and result["lossless"] is True
        assert main(["audit", *asked, "--temperature", "0"]) == 0
    assert capsys.readouterr().out.startswith("Lossless: 2 of 2 answers of up to 128 tokens are the same")

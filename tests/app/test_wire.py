"""Data sent to the browser: plain JSON, whole characters, literal text."""

import json
from dataclasses import replace

import numpy as np
import pytest

from sequoia_core.decoding.loop import DecodeStep
from sequoia_core.decoding.walk import Trial
from sequoia_core.trees.tree import TokenTree
from ui.runs.runs import explain_speedup, step_record, summarize
from ui.token_text import TokenText
from ui.token_tree import to_wire


def test_numpy_becomes_plain_json() -> None:
    value = {
        "scalars": [np.float32(0.5), np.int64(3), np.bool_(True), np.str_("x"), True, None, range(2)],
        "array": np.arange(6, dtype=np.int32).reshape(2, 3),
        "floats": np.array([1.0, np.nan, np.inf, -np.inf]),
        "nested": [(np.float64(0.25), {"deep": np.array(2.0)})],
    }
    wire = to_wire(value)
    assert json.loads(json.dumps(wire, allow_nan=False)) == {
        "scalars": [0.5, 3, True, "x", True, None, [0, 1]],
        "array": [[0, 1, 2], [3, 4, 5]],
        "floats": [1.0, None, None, None],
        "nested": [[0.25, {"deep": 2.0}]],
    }


@pytest.mark.parametrize("value", [{"a": object()}, np.array([1j])])
def test_other_types_are_refused(value: object) -> None:
    with pytest.raises(TypeError, match="expected"):
        to_wire(value)


def decode_bytes(ids: list[int]) -> str:
    return bytes(ids).decode("utf-8", errors="replace")


def make_step(new_tokens: list[int], **changes) -> DecodeStep:
    fields = dict(
        index=0,
        tree=TokenTree(np.array([-1, 0, 0])),
        tokens=tuple(b"abc"),
        outcomes=("accepted", "accepted", "not reached"),
        draft_probs=(1.0, 0.5, 0.2),
        target_probs=(1.0, float("nan"), 0.1),
        accepted_path=(0, 1),
        bonus_token=ord("!"),
        new_tokens=new_tokens,
        trials=(Trial(1, np.float64(0.25), np.float32(0.5), 0.5),),
        draft_sec=0.01,
        verify_sec=0.02,
        walk_sec=0.0,
        commit_sec=0.01,
    )
    return DecodeStep(**(fields | changes))


def test_step_record_is_wire_ready() -> None:
    record = step_record(make_step([98, 33]), TokenText(decode_bytes, [97]))
    wire = json.loads(json.dumps(to_wire(record), allow_nan=False))
    assert json.dumps(record, allow_nan=False)  # it is also written to files
    assert wire["tokens"] == ["a", "b", "c"] and wire["outcomes"] == "AAN"
    assert wire["pieces"] == ["b", "!"] and wire["bonus"] == "!" and wire["path"] == [0, 1]
    assert wire["target"] == [1.0, None, 0.1] and wire["trials"] == [[1, 0.25, 0.5, 0.5]]
    record = step_record(make_step([98], bonus_token=None, finished="eos"), TokenText(decode_bytes, [97]))
    assert record["bonus"] is None and record["pieces"] == ["b"]  # the run ends within the path


def test_pieces_add_up_to_the_text_across_split_characters() -> None:
    text = "né 🙂 <img src=x onerror=alert(1)> שלום $$\n\tend"
    ids = list(text.encode())
    tokens = TokenText(decode_bytes, [ord(">")])
    pieces = [piece for at in range(0, len(ids), 3) for piece in tokens.pieces(ids[at : at + 3])]
    assert "".join(pieces) == text and len(pieces) == len(ids)
    words = {1: "def", 2: " self", 3: " x"}
    stripped = TokenText(lambda ids: "".join(words[i] for i in ids).lstrip(), [1])  # a tokenizer that strips spaces
    assert [stripped.label(token) for token in (2, 3)] == [" self", " x"]


def make_run(count: int, pieces: int, seconds: float, **told) -> dict:
    step = {"pieces": ["x"] * pieces, "bonus": "x", "seconds": [seconds / 4, seconds / 2, seconds / 4, 0]}
    return {"baseline": None, "expected_tokens": None, "predicted_speedup": None, "steps": [step] * count} | told


def test_summaries_of_slow_and_empty_runs() -> None:
    told = {"baseline": {"tokens": 20, "seconds": 0.4}, "expected_tokens": 3.0, "predicted_speedup": 2.0}
    slow = summarize(make_run(10, 2, 0.08, **told))
    assert explain_speedup(slow) == (
        "The run fell short of the prediction: a step yielded 33% fewer tokens than expected (2.00 against 3.00) and "
        "took as long as 4.00 plain tokens (predicted 1.50), most of it verifying. Speculation is slower than plain "
        "decoding here."
    )
    surprising = summarize(make_run(10, 2, 0.08, **told | {"expected_tokens": 0.5}))
    assert "a step yielded 4.00× as many tokens as expected" in explain_speedup(surprising)
    unknown = summarize(make_run(10, 2, 0.08, **told | {"expected_tokens": None, "predicted_speedup": None}))
    assert "hence 0.50×; no speed was predicted" in explain_speedup(unknown)
    inside = summarize(make_run(10, 2, 0.08, **told, predicted_interval=[0.4, 3.0]))
    assert inside == replace(slow, predicted_interval=(0.4, 3.0)) and inside.outcome == "held"
    nothing = summarize(make_run(0, 0, 0.0))
    assert (nothing.tokens, nothing.tokens_per_step, nothing.speedup) == (0, None, None)
    assert explain_speedup(nothing) == "No steps were decoded."

"""Questions about both models' rows at every position of a text. N = positions, V = vocabulary, W = ranks."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from ..decoding.loop import autoregressive, decode
from ..decoding.rank_acceptance import RankRule, rank_acceptance_of_drawn
from ..decoding.record import TOKENS_ONLY
from ..decoding.sampling import (
    SamplingConfig,
    draft_probabilities,
    probabilities,
    sample_with_replacement,
    sample_without_replacement,
    take_most_likely,
)
from ..decoding.verifiers import Verifier
from ..design.optimal_trees import optimal_tree
from ..design.tree import TokenTree
from ..design.what_if import power_law
from ..models.language_model import ModelPair
from ..models.protocol import Session, causal_mask, prefill
from ..native.threads import use_free_cores
from .prompt_loop import Report

CHUNK = 128  # positions in one pass
ROW_NUMBERS = 2_097_152  # of rows asked about at once on CPU: larger arrays come as new pages from the system each time
SEED = 0  # of studies that leave none to choose
AT_ONE_DEPTH = ("calibration",)  # questions about a position at one depth alone: i mod L at position i
Answers = dict[str, np.ndarray]  # to each question, [N, ...]


class Rows(NamedTuple):
    """What both models say at some positions of a text.

    Attributes:
        target, draft: float32 [N, V].
        tokens: int64 [N], the text's.
        draws: the stream that all questions share.
        first: float32 [N, V], what first children are drawn from; None where it is the draft's rows.
    """

    target: torch.Tensor
    draft: torch.Tensor
    tokens: torch.Tensor
    draws: torch.Generator
    first: torch.Tensor | None

    def some(self, which: slice) -> "Rows":
        return Rows(
            self.target[which], self.draft[which], self.tokens[which], self.draws,
            None if self.first is None else self.first[which],
        )  # fmt: skip


Question = Callable[[Rows], torch.Tensor]  # answers with [N, ...]


def rank_questions(rules: Mapping[str, RankRule], width: int) -> dict[str, Question]:
    """Ask each rule how likely it accepts the child of each rank: answers are float64 [N, W]."""

    def question(rule: RankRule) -> Question:
        return lambda rows: rule(  # bounds know of no first rows
            rows.target, rows.draft, width, rows.draws, *([] if rows.first is None else [rows.first])
        )

    return {name: question(rule) for name, rule in rules.items()}


def outcome_question(verifier: Verifier, width: int, *, teacher_forced: bool, generator: torch.Generator) -> Question:
    """Ask which rank is accepted when the text is decoded with a tree, and whether the draft's likeliest token is.

    Answers are int64 [N, 2]: the rank, 0 for none; 1 where a greedy draft's token is what the target drew.

    Args:
        teacher_forced: the target did not write the text, so the question is about tokens that the target draws there.
        generator: a stream of its own, on the draft's device, so that other questions' answers stay the same.
    """

    def ask(rows: Rows) -> torch.Tensor:
        tokens = sample_with_replacement(rows.target, 1, generator)[:, 0] if teacher_forced else rows.tokens
        ranks = verifier.outcomes(rows.target, rows.draft, tokens, width, generator, rows.first)
        return torch.stack([ranks, (take_most_likely(rows.draft, 1)[:, 0] == tokens).long()], 1)

    return ask


def calibration_question(width: int, *, generator: torch.Generator) -> Question:
    """Ask how likely children of known draft probability are accepted; answers are `Sample` fields, [N, 5, W].

    The generator, on the draft's device, is not that of other questions, so that their answers stay the same.
    """

    def ask(rows: Rows) -> torch.Tensor:
        best = take_most_likely(rows.draft, width)
        drawn = sample_without_replacement(rows.draft, width, generator, rows.first)
        best_probs = rows.draft.gather(1, best)
        same = drawn[:, :, None] == best[:, None, :]
        before = same.long().cumsum(1) - same.long() > 0
        fields = (
            best_probs, rows.target.gather(1, best), rows.draft.gather(1, drawn),
            torch.where(before, 0.0, best_probs[:, None, :]).amax(2),
            rank_acceptance_of_drawn(rows.target, rows.draft, drawn, rows.first),
        )  # fmt: skip
        return torch.stack([field.double() for field in fields], 1)

    return ask


def prompt_generators(seed: int, number: int, device: torch.device | str = "cpu") -> tuple[torch.Generator, ...]:
    """Return four independent streams for one prompt: text (CPU); on `device` draws, outcomes and calibration."""
    text, *others = (int(word) for word in np.random.SeedSequence([seed, number]).generate_state(4, np.uint64))
    return torch.Generator().manual_seed(text), *(torch.Generator(device).manual_seed(word) for word in others)


def ranks_on_text(
    prompt: Sequence[int],
    pair: ModelPair,
    *,
    sampling: SamplingConfig,
    questions: Mapping[str, Question],
    max_new_tokens: int | None,
    seed: int,
    number: int,
    cancel: threading.Event,
    report: Report | None = None,
    depths: int = 1,
) -> list[Answers] | None:
    """Ask about every position of what the target writes after a prompt; None when cancelled.

    Args:
        questions: by name, asked in this order.
        max_new_tokens: None to ask about the prompt's own positions, in pieces that the models' context holds.
        seed, number: of the study and of the prompt in it; both give this prompt its own random stream.
        depths: as for `ranks_along`.
    """
    assert pair.draft is not None, "questions are about both models"
    text_generator, draws, *_ = prompt_generators(seed, number, pair.draft.device)
    if max_new_tokens is None:
        pieces = _pieces(prompt, pair.max_context)
    else:
        text = continuation(
            prompt, pair, sampling=sampling, max_new_tokens=max_new_tokens, generator=text_generator, report=report,
            cancel=cancel,
        )  # fmt: skip
        pieces = [(prompt, text)]
    parts = []
    for count, (before, after) in enumerate(pieces, start=1):
        answers = ranks_along(before, after, pair, sampling, questions, draws, cancel=cancel, depths=depths)
        if answers is None:
            return None
        parts.append(answers)
        if report is not None:
            report(count / len(pieces))
    return parts


def _pieces(text: Sequence[int], context: int) -> list[tuple[Sequence[int], Sequence[int]]]:
    """Cut a text into pieces that fit the context, each as (first token, the tokens after it)."""
    starts = range(0, len(text) - 1, context)  # a last piece of one token would have nothing to predict
    return [(text[start : start + 1], text[start + 1 : start + context]) for start in starts]


def continuation(
    prompt: Sequence[int],
    pair: ModelPair,
    *,
    sampling: SamplingConfig,
    max_new_tokens: int,
    generator: torch.Generator,
    report: Report | None = None,
    cancel: threading.Event,
) -> list[int]:
    """Return the tokens that the target writes after a prompt.

    A target whose layers stream takes as long for one token as for many, so it writes with a tree: at temperature 0 the
    same text, above that text of the same distribution (another one for the same seed). The text ends where the draft,
    which reads it afterwards, has no more room.
    """
    assert pair.draft is not None, "it reads the text afterwards"
    max_new_tokens = min(max_new_tokens, pair.draft.max_context - len(prompt))
    options: dict[str, Any]
    options = {"sampling": sampling, "max_new_tokens": max_new_tokens, "generator": generator, "cancel": cancel}
    if pair.target.offload is None:
        steps = autoregressive(prompt, pair, **options)
    else:
        steps = decode(prompt, pair, tree=writing_tree(pair.vocab_size), details=TOKENS_ONLY, **options)
    text: list[int] = []
    for step in steps:
        text.extend(step.new_tokens)
        if report is not None:
            report(len(text) / max_new_tokens)
    return text


@cache
def writing_tree(vocab_size: int) -> TokenTree:
    """Return the tree that a streamed target writes with before anything is known of its draft.

    It is best for a draft whose first guess is right six times in ten. On most machines computing 32 nodes takes no
    longer than the reading.
    """
    return optimal_tree(power_law(0.6, 1.0, ranks=min(32, vocab_size)), size=32)


@torch.inference_mode()
def ranks_along(
    prompt: Sequence[int],
    text: Sequence[int],
    pair: ModelPair,
    sampling: SamplingConfig,
    questions: Mapping[str, Question],
    generator: torch.Generator,
    *,
    cancel: threading.Event,
    depths: int = 1,
) -> Answers | None:
    """Return the answer to each question at every position of `text`: name -> array [N, ...]; None when cancelled.

    Questions are asked in order and get the generator, on the draft's device.

    Args:
        depths: L, above 1 for a draft head alone. Answers are then [N, L, ...]: first with the target's true states,
            then by chains of the head's own outputs that began one, two, … positions before, which what decoding drafts
            deeper is like; zeros where no chain began, and where a question is asked `AT_ONE_DEPTH`.
    """
    target, draft = pair.target, pair.draft
    assert draft is not None, "questions are about both models"
    parts: dict[str, list[torch.Tensor]] = {name: [] for name in questions}
    written = torch.tensor(text, dtype=torch.int64, device=draft.device).split(CHUNK)
    draft_sampling = SamplingConfig(temperature=1.0) if sampling.greedy else sampling
    ids, first, done = torch.tensor([*prompt, *text[:-1]], dtype=torch.int64), len(prompt) - 1, 0
    reader = draft.open(len(ids) + (depths - 1) * (CHUNK + depths))
    for target_logits, draft_logits, tokens in zip(
        _logits_along(ids, first, target.open(len(ids), draft.reads), reader, cancel),
        _logits_along(ids, first, reader, None, cancel, depths=depths),
        written,
        strict=False,
    ):
        if target_logits is None or draft_logits is None:
            return None
        some = max(1, ROW_NUMBERS // draft.vocab_size) if draft_logits[0].is_cpu else CHUNK
        for at in range(0, len(tokens), some):
            stop = min(at + some, len(tokens))
            target_rows = probabilities(target_logits[0][at:stop], sampling).to(draft.device)
            answers: dict[str, list[torch.Tensor | None]] = {name: [] for name in questions}  # by depth
            for depth, logits in enumerate(draft_logits):
                missing = len(tokens) - len(logits)  # of the text's first positions: no chain began before it
                begun = min(max(at, missing), stop)
                block = logits[begun - missing : stop - missing]
                draft_rows, first_rows = draft_probabilities(block, draft_sampling) if len(block) else (block, None)
                rows = Rows(target_rows[begun - at :], draft_rows, tokens[begun:stop], generator, first_rows)
                for name, ask in questions.items():
                    every = slice((depth - done - begun) % depths, None, depths)
                    which = every if name in AT_ONE_DEPTH else slice(None)
                    answer = None
                    if len(rows.tokens[which]):
                        found = ask(rows.some(which)).cpu()
                        answer = found.new_zeros(stop - at, *found.shape[1:])
                        answer[begun - at :][which] = found
                    answers[name].append(answer)
            for name, by_depth in answers.items():
                one = next(answer for answer in by_depth if answer is not None)
                whole = [torch.zeros_like(one) if answer is None else answer for answer in by_depth]
                parts[name].append(torch.stack(whole, 1) if depths > 1 else one)
        done += len(tokens)
    return {name: torch.cat(chunks).numpy() for name, chunks in parts.items()}


def _logits_along(
    ids: torch.Tensor,
    first: int,
    session: Session,
    reader: Session | None,
    cancel: threading.Event,
    *,
    depths: int = 1,
) -> Iterator[list[torch.Tensor] | None]:
    """Yield the logits after each token of a text from `first` on, one pass per chunk; None once cancelled.

    Args:
        reader: takes the states that the session keeps.
        depths: how many levels, of which those beyond the first are `_chained`.

    Yields:
        float [chunk, V], and for each deeper level [chunk, V], or less where no chain began before the text.
    """
    prefill(session, ids[:first], reader=reader, cancel=cancel)
    for start in range(first, len(ids), CHUNK):
        if cancel.is_set():
            yield None
            return
        stop = min(start + CHUNK, len(ids))
        places, mask = torch.arange(start, stop), causal_mask(stop - start)
        with use_free_cores():
            logits = session.forward(ids[start:stop], places, mask, keep=stop - start)
            if reader is not None and session.states is not None:
                reader.see(start, session.states)
        deeper = _chained(session, ids, max(first, start - depths + 1), start, depths) if depths > 1 else ()
        yield [logits, *deeper]


def _chained(session: Session, ids: torch.Tensor, begin: int, start: int, depths: int) -> Iterator[torch.Tensor]:
    """Yield what a head says by its own outputs after the tokens of a text from `start` on, for each deeper level.

    At each token from `begin` on a chain begins, which sees the text up to there and its own tokens; a level is one
    pass over all chains.
    """
    stop, bases = session.length, list[int]()
    session.commit(stop - 1, [0])  # what follows is drafted
    for depth in range(1, depths):
        begun, held = torch.arange(begin, max(begin, stop - depth)), session.length  # those whose next tokens are known
        own = torch.arange(len(begun))[:, None] + torch.tensor([*bases, held])  # slots of each chain
        seen = (torch.arange(held + len(begun)) <= begun[:, None]).scatter_(1, own, True)
        mask = torch.zeros(seen.shape).masked_fill_(~seen, -torch.inf)
        keep = stop - max(begin + depth, start)
        with use_free_cores():
            logits = session.forward(ids[begun + depth], begun + depth, mask, keep=keep) if keep > 0 else None
        yield torch.empty(0, 0) if logits is None else logits
        bases.append(held)
    session.commit(stop - 1, [0])

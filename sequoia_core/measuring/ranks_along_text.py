"""Compare two models' distributions at every position of a token sequence. N = positions, V = vocabulary, W = ranks.

A question is a function of both models' probability rows; its answers are one value or array per position.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from ..decoding.rank_acceptance import RankRule, rank_acceptance_given_draws
from ..decoding.sampling import (
    SamplingConfig,
    draft_probabilities,
    probabilities,
    sample_with_replacement,
    sample_without_replacement,
    take_most_likely,
)
from ..decoding.verifiers import Verifier
from ..models.language_model import ModelPair
from ..models.protocol import Session, causal_mask, prefill
from ..models.threads import use_free_cores
from .prompt_loop import Report
from .target_text import write_continuation

CHUNK = 128  # positions per pass
MAX_ROW_ELEMENTS = 2_097_152  # maximum number processed at once on a CPU; allocating larger arrays is slow
DEFAULT_SEED = 0  # seed of measurements that have no seed option
SINGLE_DEPTH_QUESTIONS = ("calibration",)  # questions asked at position i only for depth i mod L
Answers = dict[str, np.ndarray]  # question -> [N, ...]


class TextRows(NamedTuple):
    """Both models' distributions at some positions of a token sequence.

    Attributes:
        target, draft: next-token probabilities, float32 [N, V].
        tokens: actual next token ids, int64 [N].
        draws: random generator shared by all questions.
        first: draft distribution of first children, float32 [N, V]; None if it equals `draft`.
    """

    target: torch.Tensor
    draft: torch.Tensor
    tokens: torch.Tensor
    draws: torch.Generator
    first: torch.Tensor | None

    def select(self, rows: slice) -> "TextRows":
        first = None if self.first is None else self.first[rows]
        return TextRows(self.target[rows], self.draft[rows], self.tokens[rows], self.draws, first)


Question = Callable[[TextRows], torch.Tensor]  # returns [N, ...]


def rank_questions(rules: Mapping[str, RankRule], width: int) -> dict[str, Question]:
    """Return a question per rule, which asks for each rank's acceptance probability; answers are float64 [N, W]."""

    def question(rule: RankRule) -> Question:
        def ask(rows: TextRows) -> torch.Tensor:
            first = () if rows.first is None else (rows.first,)  # Only some rules accept this argument.
            return rule(rows.target, rows.draft, width, rows.draws, *first)

        return ask

    return {name: question(rule) for name, rule in rules.items()}


def outcome_question(verifier: Verifier, width: int, *, teacher_forced: bool, generator: torch.Generator) -> Question:
    """Return a question for the rank accepted in tree decoding, and whether the draft's top token is the target's.

    Answers are int64 [N, 2]: the rank, 0 if none is accepted; and 1 if a greedy draft would propose the target's
    token, else 0.

    Args:
        teacher_forced: whether the text is not the target's; the target's tokens are then sampled from `rows.target`.
        generator: separate generator on the draft's device, so that the answers to other questions do not change.
    """

    def ask(rows: TextRows) -> torch.Tensor:
        tokens = sample_with_replacement(rows.target, 1, generator)[:, 0] if teacher_forced else rows.tokens
        ranks = verifier.outcomes(rows.target, rows.draft, tokens, width, generator, rows.first)
        return torch.stack([ranks, (take_most_likely(rows.draft, 1)[:, 0] == tokens).long()], 1)

    return ask


def calibration_question(width: int, *, generator: torch.Generator) -> Question:
    """Return a question for children's acceptance by draft probability; answers are `Sample` fields, [N, 5, W].

    `generator` must be separate from the others, so that answers to other questions do not change, and must be on the
    draft's device.
    """

    def ask(rows: TextRows) -> torch.Tensor:
        best = take_most_likely(rows.draft, width)
        drawn = sample_without_replacement(rows.draft, width, generator, rows.first)
        best_probs = rows.draft.gather(1, best)
        same = drawn[:, :, None] == best[:, None, :]
        before = same.long().cumsum(1) - same.long() > 0
        fields = (
            best_probs,
            rows.target.gather(1, best),
            rows.draft.gather(1, drawn),
            torch.where(before, 0.0, best_probs[:, None, :]).amax(2),
            rank_acceptance_given_draws(rows.target, rows.draft, drawn, rows.first),
        )
        return torch.stack([field.double() for field in fields], 1)

    return ask


def prompt_generators(seed: int, number: int, device: torch.device | str = "cpu") -> tuple[torch.Generator, ...]:
    """Return a prompt's four independent generators: text (CPU), draws, outcomes and calibration (on `device`)."""
    text, *others = (int(word) for word in np.random.SeedSequence([seed, number]).generate_state(4, np.uint64))
    return torch.Generator().manual_seed(text), *(torch.Generator(device).manual_seed(word) for word in others)


def ask_on_text(
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
    """Answer questions about every position of the target's continuation of a prompt; None if cancelled.

    Args:
        questions: questions by name; they are asked in this order.
        max_new_tokens: length of the continuation; None asks about the prompt's own positions, split into pieces that
            fit the models' context.
        seed, number: the study's seed and the prompt's index, which determine the random generators.
        depths: see `ask_along_text`.
    """
    assert pair.draft is not None
    text_generator, draws, *_ = prompt_generators(seed, number, pair.draft.device)
    if max_new_tokens is None:
        pieces = _pieces(prompt, pair.max_context)
    else:
        text = write_continuation(
            prompt,
            pair,
            sampling=sampling,
            max_new_tokens=max_new_tokens,
            generator=text_generator,
            report=report,
            cancel=cancel,
        )
        pieces = [(prompt, text)]
    parts = []
    for count, (before, after) in enumerate(pieces, start=1):
        answers = ask_along_text(before, after, pair, sampling, questions, draws, cancel=cancel, depths=depths)
        if answers is None:
            return None
        parts.append(answers)
        if report is not None:
            report(count / len(pieces))
    return parts


def _pieces(text: Sequence[int], context: int) -> list[tuple[Sequence[int], Sequence[int]]]:
    """Split token ids into pieces that fit the context, each a pair (first token, remaining tokens)."""
    starts = range(0, len(text) - 1, context)  # A one-token piece at the end would contain nothing to predict.
    return [(text[start : start + 1], text[start + 1 : start + context]) for start in starts]


@torch.inference_mode()
def ask_along_text(
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
    """Answer questions at every position of `text`, token ids that continue `prompt`; None if cancelled.

    Args:
        questions: questions by name; they are asked in this order.
        generator: generator on the draft's device, shared by the questions.
        depths: number of levels L; above 1 only for a draft head. At the first level, the head reads the target's
            hidden states; at level k, its own outputs from k - 1 positions back, as in decoding.

    Returns:
        Answers by question, [N, ...] or, if L > 1, [N, L, ...]. They are zero where a level has no such chain, and
        at the levels at which a question in `SINGLE_DEPTH_QUESTIONS` is not asked.
    """
    target, draft = pair.target, pair.draft
    assert draft is not None
    ids = torch.tensor([*prompt, *text[:-1]], dtype=torch.int64)
    first = len(prompt) - 1
    reader = draft.open(len(ids) + (depths - 1) * (CHUNK + depths))
    target_session = target.open(len(ids), draft.state_indices)
    chunks = zip(
        _logits_along(ids, first, target_session, reader, cancel),
        _logits_along(ids, first, reader, None, cancel, depths=depths),
        torch.tensor(text, dtype=torch.int64, device=draft.device).split(CHUNK),
        strict=False,
    )
    parts: dict[str, list[torch.Tensor]] = {name: [] for name in questions}
    position = 0
    for target_logits, draft_logits, tokens in chunks:
        if target_logits is None or draft_logits is None:
            return None
        step = max(1, MAX_ROW_ELEMENTS // draft.vocab_size) if draft_logits[0].is_cpu else CHUNK
        for start in range(0, len(tokens), step):
            block = _Block(start, min(start + step, len(tokens)), position, tokens)
            rows = block.rows_by_depth(target_logits[0], draft_logits, sampling, generator)
            for name, answers in block.answer(questions, rows, len(draft_logits)).items():
                parts[name].append(torch.stack(answers, 1) if depths > 1 else answers[0])
        position += len(tokens)
    return {name: torch.cat(answers).numpy() for name, answers in parts.items()}


class _Block(NamedTuple):
    """Positions `start` to `stop` of a chunk that begins at index `position` of the text."""

    start: int
    stop: int
    position: int
    tokens: torch.Tensor

    def rows_by_depth(
        self,
        target_logits: torch.Tensor,
        draft_logits: list[torch.Tensor],
        sampling: SamplingConfig,
        generator: torch.Generator,
    ) -> Iterator[TextRows]:
        """Yield both models' rows for each depth; deeper levels may lack the first positions of the text."""
        draft_sampling = SamplingConfig(temperature=1.0) if sampling.greedy else sampling
        target = probabilities(target_logits[self.start : self.stop], sampling).to(self.tokens.device)
        for logits in draft_logits:
            missing = len(self.tokens) - len(logits)
            begin = min(max(self.start, missing), self.stop)
            logits = logits[begin - missing : self.stop - missing]
            draft, first = draft_probabilities(logits, draft_sampling) if len(logits) else (logits, None)
            tokens = self.tokens[begin : self.stop]
            yield TextRows(target[begin - self.start :], draft, tokens, generator, first)

    def answer(
        self, questions: Mapping[str, Question], rows: Iterable[TextRows], depths: int
    ) -> dict[str, list[torch.Tensor]]:
        """Return the answers to each question for each depth, with zeros at positions that were not asked about."""
        answers: dict[str, dict[int, torch.Tensor]] = {name: {} for name in questions}
        size = self.stop - self.start
        for depth, at_depth in enumerate(rows):
            begin = self.stop - len(at_depth.tokens)
            own_positions = slice((depth - self.position - begin) % depths, None, depths)
            for name, ask in questions.items():
                asked = own_positions if name in SINGLE_DEPTH_QUESTIONS else slice(None)
                selected = at_depth.select(asked)
                if len(selected.tokens):
                    found = ask(selected).cpu()
                    answers[name][depth] = found.new_zeros(size, *found.shape[1:])
                    answers[name][depth][begin - self.start :][asked] = found
        zeros = {name: torch.zeros_like(next(iter(by_depth.values()))) for name, by_depth in answers.items()}
        return {
            name: [by_depth.get(depth, zeros[name]) for depth in range(depths)] for name, by_depth in answers.items()
        }


def _logits_along(
    ids: torch.Tensor,
    first: int,
    session: Session,
    reader: Session | None,
    cancel: threading.Event,
    *,
    depths: int = 1,
) -> Iterator[list[torch.Tensor] | None]:
    """Run one pass per chunk over the tokens from index `first` onward, and yield the logits after each token.

    Args:
        reader: session that receives the hidden states of `session`; None if no session needs them.
        depths: number of levels; those below the first come from `_chained`.

    Yields:
        Per chunk, one tensor per level, float [chunk, V]; at the start of the text, deeper levels have fewer rows.
        None if cancelled.
    """
    prefill(session, ids[:first], reader=reader, cancel=cancel)
    for start in range(first, len(ids), CHUNK):
        if cancel.is_set():
            yield None
            return
        stop = min(start + CHUNK, len(ids))
        positions = torch.arange(start, stop)
        with use_free_cores():
            logits = session.forward(ids[start:stop], positions, causal_mask(stop - start), keep=stop - start)
            if reader is not None and session.states is not None:
                reader.observe_states(start, session.states)
        deeper = _chained(session, ids, max(first, start - depths + 1), start, depths) if depths > 1 else ()
        yield [logits, *deeper]


def _chained(session: Session, ids: torch.Tensor, begin: int, start: int, depths: int) -> Iterator[torch.Tensor]:
    """Yield, for each deeper level, the logits that a head predicts from its own outputs at positions from `start` on.

    A chain starts at each position from `begin` on, and attends to the text up to that position and to its own tokens.
    Each level is one pass over all chains.
    """
    stop = session.length
    level_starts: list[int] = []
    session.commit(stop - 1, [0])  # Commit the text; the tokens of the chains are then drafts.
    for depth in range(1, depths):
        chains = torch.arange(begin, max(begin, stop - depth))  # starts of the chains whose next token is known
        length = session.length
        slots = torch.arange(len(chains))[:, None] + torch.tensor([*level_starts, length])
        visible = (torch.arange(length + len(chains)) <= chains[:, None]).scatter_(1, slots, True)
        mask = torch.zeros(visible.shape).masked_fill_(~visible, -torch.inf)
        keep = stop - max(begin + depth, start)
        logits = torch.empty(0, 0)
        if keep > 0:
            with use_free_cores():
                logits = session.forward(ids[chains + depth], chains + depth, mask, keep=keep)
        yield logits
        level_starts.append(length)
    session.commit(stop - 1, [0])

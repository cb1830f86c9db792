"""What a sweep measures: the plan that a person writes as TOML, checked whole before anything runs.

A mistake is named with its line. tomllib keeps no lines of values, so they are looked for in the text.
"""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from ...decoding.sampling import SamplingConfig
from ...design.tree import MAX_SIZE
from ...files.model_names import NO_DRAFT, model_folder
from ...files.prompt_files import load_prompts
from ...files.safe_files import fault_words, read_bytes
from ...models.chat import encode_prompt
from ...models.loading import pair_facts

MODEL, LOOKUP, BOTH = DRAFTERS = ("model", "lookup", "both")
MOST_JOBS = 100_000  # before they are split into parts
SHOWN = 12  # mistakes named at once


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class PairSection(_Section):
    """A pair of a plan, with how it is loaded and who drafts.

    Attributes:
        name: shown in tables; unique within a plan.
        drafters: "model" measures the draft's acceptance, "lookup" decodes with trees from the text under way, "both"
            with trees that the draft and lookup propose for together.
    """

    name: Annotated[str, Field(min_length=1, max_length=80)]
    target: str | None = None
    draft: str | None = None
    drafters: tuple[Literal["model", "lookup", "both"], ...] = ("model",)
    dtype: str | None = None
    offload: Literal["disk", "host"] | None = None
    device: str | None = None
    tokenizer: str | None = None

    @field_validator("drafters", mode="before")
    @classmethod
    def _as_tuple(cls, value: Any) -> Any:
        return tuple(dict.fromkeys(value)) if isinstance(value, list) else value

    def options(self) -> dict[str, Any]:
        """Return what `load_pair` takes."""
        names = ("target", "draft", "device", "dtype", "offload", "tokenizer")
        return {name: getattr(self, name) for name in names}


class PromptSection(_Section):
    """A file of prompts, all of one kind of text.

    Attributes:
        count: only the first so many; None for all.
        chat: whether prompts go through the tokenizer's chat template; None where it has one.
    """

    domain: Annotated[str, Field(min_length=1, max_length=40)]
    file: str
    column: str | None = None
    count: Annotated[int, Field(ge=1)] | None = None
    chat: bool | None = None


class PlanFile(_Section):
    """A plan as it is written."""

    pairs: Annotated[list[PairSection], Field(min_length=1)]
    prompts: Annotated[list[PromptSection], Field(min_length=1)]
    temperatures: Annotated[list[float], Field(min_length=1)]
    top_p: Annotated[list[float], Field(min_length=1)] = [1.0]
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    new_tokens: Annotated[int, Field(ge=1)] = 128
    width: Annotated[int, Field(ge=1)] = 16
    max_size: Annotated[int, Field(ge=2, le=MAX_SIZE)] = 16
    prompts_per_job: Annotated[int, Field(ge=1)] = 8
    threads: Annotated[int, Field(ge=1)] = 1
    profile: bool = False
    race: bool = False


class PairHashes(NamedTuple):
    """Content hashes of a pair's files: "" for no draft, None where the tokenizer is the target's own."""

    target: str
    draft: str
    tokenizer: str | None


class Domain(NamedTuple):
    """The prompts of one kind of text."""

    name: str
    texts: tuple[str, ...]
    chat: bool | None


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked plan.

    Attributes:
        settings: as written, with paths resolved and the dtype that each pair loads in on this machine: another machine
            might choose another.
        domains: its prompts, read; the same text twice in one domain counts once.
        pair_hashes: of each pair.
    """

    settings: PlanFile
    domains: tuple[Domain, ...]
    pair_hashes: tuple[PairHashes, ...]

    @property
    def ways(self) -> list[tuple[float, float]]:
        """(temperature, top-p) of every setting; at temperature 0 top-p changes nothing and stands once."""
        found = [
            (temperature, top_p if temperature else 1.0)
            for temperature in self.settings.temperatures
            for top_p in self.settings.top_p
        ]
        return list(dict.fromkeys(found))


def read_plan(path: str | Path) -> Plan:
    """Read a plan, and check everything that can be checked before a weight is read.

    Paths of models and prompts are relative to the plan's folder.

    Raises:
        ValueError: naming each mistake with its line.
    """
    text = read_bytes(path).decode("utf-8", errors="replace")
    try:
        fields = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: found no readable TOML ({error}), expected a plan") from error
    try:
        settings = PlanFile.model_validate(fields)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)
        raise _mistakes(path, text, [(fault["loc"], fault_words(fault)) for fault in found]) from error
    settings = _resolved(settings, Path(path).parent)
    plan, faults = _checked(settings)
    if faults:
        raise _mistakes(path, text, faults)
    return plan


def content_hash(model: str | os.PathLike) -> str:
    """Return what tells a model's files from others, 16 hex digits; of a folder of the hub's cache its commit.

    Files are hashed whole up to 64 MiB, longer ones by their length and 64 pieces of 64 KiB: a sweep over models of
    hundreds of gigabytes must not read them to begin with.
    """
    place = Path(model)
    # Of the hub's cache: its name is the commit, whatever was downloaded of it so far.
    if place.parent.name == "snapshots" and re.fullmatch(r"[0-9a-f]{40}", place.name):
        return place.name[:16]
    found = hashlib.sha256()
    for file in _model_files(place):
        found.update(f"{file.name}:{file.stat().st_size}:".encode())
        with file.open("rb") as stream:
            if file.stat().st_size <= 64 << 20:
                found.update(stream.read())
                continue
            for piece in range(64):
                stream.seek(piece * (file.stat().st_size - (64 << 10)) // 63)
                found.update(stream.read(64 << 10))
    return found.hexdigest()[:16]


def _model_files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    kinds = (".json", ".safetensors", ".model", ".jinja", ".txt")
    return sorted(file for file in path.iterdir() if file.suffix in kinds and file.is_file())


Fault = tuple[tuple[int | str, ...], str]


def _resolved(settings: PlanFile, folder: Path) -> PlanFile:
    """Return the plan with paths that do not depend on where it is read."""

    def place(name: str | None) -> str | None:
        if name is None or name == NO_DRAFT:
            return name
        try:
            beside = folder / Path(name).expanduser()
            return str(beside.resolve()) if beside.exists() else name
        except (OSError, RuntimeError):  # a name too long for the system, or ~ of a user who has no home
            return name

    pairs = [
        pair.model_copy(update={key: place(getattr(pair, key)) for key in ("target", "draft", "tokenizer")})
        for pair in settings.pairs
    ]
    prompts = [part.model_copy(update={"file": place(part.file)}) for part in settings.prompts]
    return settings.model_copy(update={"pairs": pairs, "prompts": prompts})


def _checked(settings: PlanFile) -> tuple[Plan, list[Fault]]:
    """Return the plan, and its mistakes with where they are."""
    faults: list[Fault] = []
    ways = [("temperatures", value, 1.0) for value in settings.temperatures]
    for key, temperature, top_p in ways + [("top_p", 1.0, value) for value in settings.top_p]:
        try:
            SamplingConfig(temperature, top_p)
        except ValueError as error:
            faults.append(((key,), str(error)))
    domains: dict[str, Domain] = {}
    for number, part in enumerate(settings.prompts):
        try:
            texts = load_prompts(part.file, part.column)[: part.count]
        except ValueError as error:
            faults.append((("prompts", number, "file"), str(error)))
            continue
        if part.domain in domains:
            faults.append((("prompts", number, "domain"), f"found {part.domain!r} twice, expected each domain once"))
        domains[part.domain] = Domain(part.domain, tuple(dict.fromkeys(texts)), part.chat)
    names = [pair.name for pair in settings.pairs]
    pairs, hashes = [], []
    for number, pair in enumerate(settings.pairs):
        if names.index(pair.name) != number:
            faults.append((("pairs", number, "name"), f"found {pair.name!r} twice, expected each name once"))
        try:
            checked, found = _check_pair(pair, settings, domains.values())
        except ValueError as error:
            faults.append((("pairs", number), str(error)))
            continue
        pairs.append(checked)
        hashes.append(found)
    count = sum(len(pair.drafters) for pair in settings.pairs) * len(settings.temperatures) * len(settings.top_p)
    if count * len(domains) > MOST_JOBS:
        faults.append((("temperatures",), f"found {count * len(domains):,} settings, expected at most {MOST_JOBS:,}"))
    settings = settings.model_copy(update={"pairs": pairs})
    return Plan(settings, tuple(domains.values()), tuple(hashes)), faults


def _check_pair(pair: PairSection, settings: PlanFile, domains: Iterable[Domain]) -> tuple[PairSection, PairHashes]:
    """Return a pair with the dtype that it loads in here, and its models' content hashes.

    Raises:
        ValueError: for what loading, or reading the prompts, would refuse.
    """
    if not pair.drafters:
        raise ValueError("drafters: found none, expected some of model, lookup, both")
    if set(pair.drafters) == {LOOKUP} and not (settings.profile or settings.race):
        pair = pair.model_copy(update={"draft": NO_DRAFT})
    alone = pair.draft == NO_DRAFT
    if alone and (set(pair.drafters) != {LOOKUP} or settings.race):
        raise ValueError('draft: found none, expected a draft model, or drafters = ["lookup"] without a race')
    facts = pair_facts(**pair.options())
    if not alone and settings.width > facts.vocab_size:
        raise ValueError(f"width: found {settings.width}, expected at most the vocabulary of {facts.vocab_size}")
    room = facts.max_context - settings.new_tokens
    for domain in domains:
        for text in domain.texts:
            length = len(encode_prompt(facts.tokenizer, text, chat=domain.chat))
            if not 1 <= length <= room:
                raise ValueError(
                    f"{domain.name} prompt {text[:40]!r}: found {length} tokens, expected 1 to {room} (context "
                    f"{facts.max_context} less new_tokens {settings.new_tokens})"
                )
    try:
        target, draft = (None if place is None else content_hash(place) for place in facts.places)
        own = None if pair.tokenizer is None else content_hash(model_folder(pair.tokenizer) or pair.tokenizer)
    except OSError as error:
        raise ValueError(f"found model files that cannot be read ({error}), expected readable ones") from error
    assert target is not None, "a pair has a target"
    return pair.model_copy(update={"dtype": facts.dtype}), PairHashes(target, draft or "", own)


def _mistakes(path: str | Path, text: str, faults: Sequence[Fault]) -> ValueError:
    found = sorted((_line_of(text, place), words) for place, words in faults)
    shown = "; ".join(f"line {line}: {words}" for line, words in found[:SHOWN])
    more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return ValueError(f"{path}: {shown}{more}")


def _line_of(text: str, place: Sequence[int | str]) -> int:
    """Return the line of a key of a plan, of its table's head where the key is not there, or else the first."""
    names = [part for part in place if isinstance(part, str)]
    number = next((part for part in place if isinstance(part, int)), 0)
    tables = [name for name in names if name in ("pairs", "prompts")]
    inside, seen, head = None, -1, 1
    for line, words in enumerate(text.splitlines(), start=1):
        if found := re.match(r"\s*\[\[\s*(\w+)\s*\]\]", words):
            inside = found[1]
            seen += inside == tables[0] if tables else 0
            if tables and inside == tables[0] and seen == number:
                head = line
            continue
        here = inside == tables[0] and seen == number if tables else inside is None
        key = names[-1] if names else ""
        if here and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", words):
            return line
    return head

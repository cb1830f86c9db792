"""Sweep plans in TOML, which are checked completely before anything runs."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    ValidationInfo,
)

from sequoia_core.decoding.sampling import SamplingConfig
from sequoia_core.files.extras import has
from sequoia_core.files.file_types import decode_text
from sequoia_core.files.json_models import validation_message
from sequoia_core.files.model_names import MTP, NO_DRAFT
from sequoia_core.files.prompt_files import load_prompts
from sequoia_core.files.prompt_rows import Prompt, display_prompt
from sequoia_core.files.safe_files import read_bytes
from sequoia_core.models.default_dtype import default_dtype
from sequoia_core.models.loading import pair_facts
from sequoia_core.models.model_sources import claim
from sequoia_core.models.pair_spec import PairSpec
from sequoia_core.models.prompting import Prompting, encode_prompt
from sequoia_core.trees.tree import MAX_TREE_SIZE

from .content import PairHashes, pair_hashes

MODEL, LOOKUP, BOTH = DRAFTERS = ("model", "lookup", "both")
MAX_JOBS = 100_000  # maximum number of jobs before they are split by prompts
MAX_THREADS = 1024
MAX_PLAN_BYTES = 256 * 2**10
MAX_TABLES = 200  # maximum number of [[pairs]] or [[prompts]] tables
MAX_DOTS = 200  # maximum per line, because the TOML parser takes minutes for a key of 50,000 parts
MAX_SHOWN_FAULTS = 12
TREE_DEPTH = 16  # edges on a path of the trees of "lookup" and "both"
RACE_DEPTH = 32  # edges on a path of raced trees


def _as_tuple(value: Any) -> tuple:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _without_duplicates(values: tuple) -> tuple:
    return tuple(dict.fromkeys(values))


def _resolve_path(name: str, info: ValidationInfo) -> str:
    """Return the absolute path of a name in the plan's folder; a name that is not an existing path is unchanged."""
    if not info.context or name in (NO_DRAFT, MTP):
        return name
    try:
        path = info.context["folder"] / Path(name).expanduser()
        return str(path.resolve()) if path.exists() else name
    except (OSError, RuntimeError):  # the name is too long for the system, or ~ names a user without a home
        return name


def _unique(key: str) -> AfterValidator:
    def check(sections: list) -> list:
        names = [getattr(section, key) for section in sections]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"found the {key} {name!r} twice, expected each once")
        return sections

    return AfterValidator(check)


Temperature = Annotated[float, AfterValidator(lambda value: SamplingConfig(value).temperature)]
TopP = Annotated[float, AfterValidator(lambda value: SamplingConfig(1.0, value).top_p)]
File = Annotated[str, AfterValidator(_resolve_path)]
ONE_OR_MORE = (BeforeValidator(_as_tuple), AfterValidator(_without_duplicates), Field(min_length=1))


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class PairSection(_Section):
    """A pair in a plan: how it is loaded, and which drafters are measured."""

    name: Annotated[str, Field(min_length=1, max_length=80)]
    target: File | None = None
    draft: File | None = None
    drafters: Annotated[tuple[Literal["model", "lookup", "both"], ...], *ONE_OR_MORE] = ("model",)
    dtype: str | None = None
    offload: Literal["disk", "host"] | None = None
    device: str | None = None
    tokenizer: File | None = None

    @property
    def spec(self) -> PairSpec:
        return PairSpec(self.target, self.draft, self.device, self.dtype, self.offload, self.tokenizer)


class PromptSection(_Section):
    """A file with the prompts of one domain; if `count` is None, all of them are used."""

    domain: Annotated[str, Field(min_length=1, max_length=40)]
    file: File
    column: str | None = None
    count: Annotated[int, Field(ge=1)] | None = None
    chat: bool | None = None
    template_arguments: dict[str, JsonValue] = {}

    def read(self) -> Domain:
        """Read the prompts and remove duplicates."""
        texts = load_prompts(self.file, self.column, self.count)
        return Domain(self.domain, _without_duplicates(tuple(texts)), Prompting(self.chat, self.template_arguments))


class PlanFile(_Section):
    """The fields of a plan file; "lookup" and "both" are decoded with trees of each `max_size`."""

    pairs: Annotated[list[PairSection], Field(min_length=1, max_length=MAX_TABLES), _unique("name")]
    prompts: Annotated[list[PromptSection], Field(min_length=1, max_length=MAX_TABLES), _unique("domain")]
    temperatures: Annotated[list[Temperature], Field(min_length=1)]
    top_p: Annotated[list[TopP], Field(min_length=1)] = [1.0]
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    new_tokens: Annotated[int, Field(ge=1)] = 128
    width: Annotated[int, Field(ge=1)] = 16
    max_size: Annotated[tuple[Annotated[int, Field(ge=2, le=MAX_TREE_SIZE)], ...], *ONE_OR_MORE] = (4, 8, 16)
    prompts_per_job: Annotated[int, Field(ge=1)] = 8
    threads: Annotated[int, Field(ge=1, le=MAX_THREADS)] = 1
    profile: bool = False
    race: bool = False

    def tree_sizes(self, kind: str) -> tuple[int, ...]:
        """Return the tree sizes for jobs of a kind: all of them for "lookup" and "both", otherwise the largest."""
        return self.max_size if kind in (LOOKUP, BOTH) else (max(self.max_size),)

    @property
    def samplings(self) -> list[tuple[float, float]]:
        """The (temperature, top-p) settings; top-p has no effect at temperature 0, which appears once."""
        return list(dict.fromkeys((t, top_p if t else 1.0) for t in self.temperatures for top_p in self.top_p))


class Domain(NamedTuple):
    name: str
    texts: tuple[Prompt, ...]
    prompting: Prompting = Prompting()


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """A checked plan, with absolute paths, the dtype of each pair on this machine, and the prompts."""

    settings: PlanFile
    domains: tuple[Domain, ...]
    pair_hashes: tuple[PairHashes, ...]


def read_plan(path: str | Path, *, elsewhere: bool = False) -> SweepPlan:
    """Read a plan and check everything that can be checked without reading weights.

    Args:
        path: TOML file; paths of models and prompts in it are relative to its folder.
        elsewhere: whether the plan runs on other machines, and may name devices that this one lacks.
    """
    data = read_bytes(path, limit=MAX_PLAN_BYTES)
    try:
        return _check_plan(_parse_plan(decode_text(data, "a plan"), Path(path).parent), elsewhere)
    except RecursionError as error:
        raise ValueError(f"{path}: found lists or tables nested too deeply, expected a plan") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _parse_plan(text: str, folder: Path) -> PlanFile:
    for number, line in enumerate(text.split("\n"), start=1):
        if (dots := line.count(".")) > MAX_DOTS:
            raise ValueError(f"line {number}: found {dots:,} dots, expected at most {MAX_DOTS}")
    try:
        return PlanFile.model_validate(tomllib.loads(text), context={"folder": folder})
    except ValidationError as error:
        raise _joined_faults([_fault_message(fault) for fault in error.errors(include_url=False)]) from error
    except ValueError as error:  # raised by the TOML parser, including for integers with too many digits
        raise ValueError(f"found no readable TOML ({error}), expected a plan") from error


def _fault_message(fault: Mapping[str, Any]) -> str:
    if fault["type"] != "value_error":
        return validation_message(fault)
    return f"{'.'.join(map(str, fault['loc']))}: {fault['msg'].removeprefix('Value error, ')}"


def _joined_faults(faults: Sequence[str]) -> ValueError:
    message = "; ".join(faults[:MAX_SHOWN_FAULTS])
    hidden = len(faults) - MAX_SHOWN_FAULTS
    return ValueError(f"{message}; and {hidden} more" if hidden > 0 else message)


def _check_plan(settings: PlanFile, elsewhere: bool) -> SweepPlan:
    """Read a plan's prompts, inspect its models, and report all faults at once."""
    faults: list[str] = []
    domains: list[Domain] = []
    for number, section in enumerate(settings.prompts):
        try:
            domains.append(section.read())
        except ValueError as error:
            faults.append(f"prompts.{number}: {error}")
    pairs: list[PairSection] = []
    hashes: list[PairHashes] = []
    for number, pair in enumerate(settings.pairs):
        try:
            pairs.append(_check_pair(pair, settings, domains, elsewhere))
            hashes.append(pair_hashes(pair.target, pairs[-1].draft, pair.tokenizer))
        except ValueError as error:
            faults.append(f"pairs.{number}: {error}")
    count = len(settings.prompts) * len(settings.temperatures) * len(settings.top_p)
    count *= sum(len(settings.tree_sizes(kind)) for pair in settings.pairs for kind in pair.drafters)
    if count > MAX_JOBS:
        faults.append(f"temperatures: found {count:,} settings, expected at most {MAX_JOBS:,}")
    if faults:
        raise _joined_faults(faults)
    return SweepPlan(settings.model_copy(update={"pairs": pairs}), tuple(domains), tuple(hashes))


def _check_pair(pair: PairSection, settings: PlanFile, domains: Sequence[Domain], elsewhere: bool) -> PairSection:
    """Check a pair against the plan; return it with the dtype that it is loaded in on this machine."""
    drafters = set(pair.drafters)
    if drafters == {LOOKUP} and not (settings.profile or settings.race):
        pair = pair.model_copy(update={"draft": NO_DRAFT})
    without_draft = pair.draft == NO_DRAFT
    if without_draft and (drafters != {LOOKUP} or settings.race):
        raise ValueError('draft: found none, expected a draft model, or drafters = ["lookup"] without a race')
    if drafters != {MODEL} and not has("dynamic_trees"):
        raise ValueError('drafters: the optional package dynamic_trees is not installed, expected ["model"] alone')
    facts = pair_facts(_spec_without_device(pair.spec) if elsewhere else pair.spec)
    if not without_draft and settings.width > facts.vocab_size:
        raise ValueError(f"width: found {settings.width}, expected at most {facts.vocab_size}, the vocabulary size")
    depth = 0
    if settings.race:
        depth = RACE_DEPTH
    elif drafters != {MODEL}:
        depth = TREE_DEPTH
    context = min(facts.contexts)
    model = ("target", "draft")[facts.contexts.index(context)]
    needed = max(settings.new_tokens, depth + 1)
    reserved = f"new_tokens {needed}" if needed == settings.new_tokens else f"{needed} levels of trees"
    for domain in domains:
        if BOTH in drafters and len(domain.texts) < 2:
            raise ValueError(
                f'found one prompt in {domain.name!r}, expected at least two: "both" is calibrated on the others'
            )
        for text in domain.texts:
            length = len(encode_prompt(facts, text, domain.prompting))
            if not 1 <= length <= context - needed:
                raise ValueError(
                    f"{domain.name} prompt {display_prompt(text)[:40]!r}: found {length} tokens, expected 1 to "
                    f"{context - needed} (the {model}'s context of {context} minus {reserved})"
                )
    return pair.model_copy(update={"dtype": facts.dtype})


def _spec_without_device(spec: PairSpec) -> PairSpec:
    """Return a spec for inspecting a pair whose device this machine may lack."""
    dtype = spec.dtype
    if dtype is None and spec.device not in (None, "cpu") and claim(spec.sources[0]) is None:
        dtype = default_dtype(spec.target, gpu=True).dtype
    return replace(spec, device=None, offload=spec.offload and "disk", dtype=dtype)

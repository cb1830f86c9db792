"""The jobs of a sweep, and the keys of their rows, which depend only on pair, settings and prompt."""

import hashlib
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from ..files.gguf_header import is_gguf
from ..files.model_names import NO_DRAFT
from ..files.prompt_rows import Prompt
from ..models.prompting import Prompting
from .content import PairHashes
from .plan import BOTH, LOOKUP, MODEL, Domain, PairSection, Plan
from .results import cuts_first

PROFILE, RACE = TIMED = ("profile", "race")  # kinds of jobs that have a machine to themselves
MEASURE_VERSION = 1  # raised when a row of the same key would hold other numbers
CALIBRATION_PROMPTS = 4  # of the domain, by which "both" knows the draft's chances; never the one that is decoded
NAMES = ("pair", "target", "draft", "tokenizer_hash")  # columns that are in no key
# Columns that are in no key of a kind, which does not depend on them.
UNUSED = {
    MODEL: ("max_size",), LOOKUP: ("width",), BOTH: (), PROFILE: ("width", "max_size", "seed", "new_tokens"),
    RACE: ("width", "max_size", "seed"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Job:
    """A part of a sweep that one worker does at once; whole prompts at one setting.

    Attributes:
        kind: one of `DRAFTERS`, "profile" or "race".
        pair: as it is loaded: without its draft for a job of "lookup".
        keys: of its rows, one per prompt; a timed job has a single row.
        common: columns that all its rows have.
        calibrating: the domain's first prompts, one more than are used.
    """

    kind: str
    pair: PairSection
    keys: tuple[str, ...]
    prompts: tuple[Prompt, ...]
    common: dict[str, Any] = field(hash=False)
    prompting: Prompting = Prompting()
    calibrating: tuple[Prompt, ...] = ()

    @property
    def timed(self) -> bool:
        return self.kind in TIMED

    @property
    def words(self) -> str:
        parts = [self.pair.name, self.kind]
        if self.kind != PROFILE:
            parts += [self.common["domain"], f"T = {self.common['temperature']:g}"]
            parts += [f"top-p {self.common['top_p']:g}"] if self.common["top_p"] < 1 else []
            parts += [f"{self.common['max_size']} nodes"] if self.kind in (LOOKUP, BOTH) else []
        return ", ".join(parts)

    def failed(self, key: str, fault: str) -> dict[str, Any]:
        """Return the row of a prompt that could not be measured."""
        return self.common | {"key": key, "fault": fault}


def all_jobs(plan: Plan, there: Collection[str] = ()) -> Iterator[Job]:
    """Yield the jobs of a plan for rows whose keys are not there; a row that two pairs share comes once.

    They come pair by pair, timed ones last. Lookup comes first, with the target alone in memory, so that the pair is
    loaded only once for the others.
    """
    seen, settings = set(there), plan.settings
    pairs = list(zip(settings.pairs, plan.pair_hashes, strict=True))
    for pair, hashes in pairs:
        kinds = sorted(pair.drafters, key=lambda kind: kind != LOOKUP)
        sized = [(kind, size) for kind in kinds for size in settings.sizes_of(kind)]
        for (kind, size), domain, way in product(sized, plan.domains, settings.ways):
            job = _job(plan, kind, pair, hashes, way, domain, size)
            new = [(key, text) for key, text in zip(job.keys, job.prompts, strict=True) if key not in seen]
            for start in range(0, len(new), settings.prompts_per_job):
                keys, texts = zip(*new[start : start + settings.prompts_per_job], strict=True)
                yield replace(job, keys=keys, prompts=texts)
            seen.update(job.keys)
    (largest,) = settings.sizes_of(PROFILE)
    for pair, hashes in pairs:
        timed = []
        if settings.profile:
            timed.append(_job(plan, PROFILE, pair, hashes, (0.0, 1.0), Domain("", ("",)), largest))
        if settings.race:
            raced = product(plan.domains, settings.ways)
            timed += [_job(plan, RACE, pair, hashes, way, domain, largest) for domain, way in raced]
        yield from (job for job in timed if job.keys[0] not in seen)
        seen.update(job.keys[0] for job in timed)


def _job(
    plan: Plan, kind: str, pair: PairSection, hashes: PairHashes, way: tuple[float, float], domain: Domain, size: int
) -> Job:
    settings = plan.settings
    alone = kind == LOOKUP
    names = (replace(pair.spec, draft=NO_DRAFT) if alone else pair.spec).names
    common = {
        "kind": kind, "pair": pair.name, "target": names[0], "draft": names[1],
        "target_hash": hashes.target, "draft_hash": "" if alone else hashes.draft,
        "tokenizer_hash": hashes.tokenizer or "",
        "dtype": pair.dtype or "", "offload": pair.offload or "", "device": pair.device or "",
        "temperature": way[0], "top_p": way[1], "domain": domain.name, "seed": settings.seed,
        "new_tokens": settings.new_tokens, "width": settings.width, "max_size": size,
        "threads": settings.threads, "version": version_of(kind, *way),
    }  # fmt: skip
    calibrating = domain.texts[: CALIBRATION_PROMPTS + 1] if kind == BOTH else ()
    identity = {column: value for column, value in common.items() if column not in (*NAMES, *UNUSED[kind])}
    identity |= {
        "chat": domain.prompting.chat,
        "tokenizer": hashes.tokenizer,
        "calibrating": [digest(text) for text in calibrating],
    }
    if domain.prompting.arguments:
        identity["template_arguments"] = sorted(domain.prompting.arguments.items())
    if alone:
        own_dtype = {"dtype": None} if is_gguf(pair.target or "") else {}
        pair = pair.model_copy(update={"draft": NO_DRAFT} | own_dtype)
    texts = [digest(text) for text in domain.texts]
    keys = (digest([identity, texts]),) if kind in TIMED else tuple(digest([identity, text]) for text in texts)
    return Job(kind, pair, keys, domain.texts, common, domain.prompting, calibrating)


def version_of(kind: str, temperature: float, top_p: float) -> int:
    """Return the version of a measurement: one more where top-p cuts, since first children are drawn from cut rows."""
    return MEASURE_VERSION + cuts_first(kind, temperature, top_p)


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:32]

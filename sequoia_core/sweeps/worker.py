"""What a worker process does with a sweep's job: it loads the pair, measures prompt by prompt, and returns rows."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..files.faults import is_out_of_memory, is_panic
from ..files.model_names import DEMO_PAIR
from ..files.prompt_rows import Prompt, shown
from ..models.prompting import encode_prompt
from .content import PairHashes, files_of, pair_hashes
from .jobs import CALIBRATION_PROMPTS, PROFILE, RACE, Job, digest, version_of
from .plan import BOTH, LOOKUP, MODEL, TREE_DEPTH

if TYPE_CHECKING:
    from ..decoding.sampling import SamplingConfig
    from ..design.acceptance import AcceptanceVector
    from ..design.calibration import Calibration
    from ..models.language_model import ModelPair

_one_at_a_time = threading.Lock()  # a worker with several threads: models, and PyTorch's threads, are the process's


@dataclass(frozen=True, slots=True)
class Done:
    """The rows of a job, those of prompts that failed with their fault; the worker's host and process, and its seconds.

    A fault of one prompt leaves the others.
    """

    rows: list[dict[str, Any]]
    worker: str
    seconds: float

    @property
    def faults(self) -> dict[str, str]:
        """Key -> why a prompt could not be measured."""
        return {row["key"]: row["fault"] for row in self.rows if "fault" in row}


def run_job(job: Job) -> Done:
    """Do a job in this process; faults of pairs and prompts are part of the result."""
    with _one_at_a_time:
        started, worker = time.perf_counter(), f"{socket.gethostname()}:{os.getpid()}"
        try:
            rows = [row | {"worker": worker} for row in _rows(job)]
        except BaseException as error:  # a pair that does not load
            rows = [job.failed(key, _words(error)) for key in job.keys]
        return Done(rows, worker, time.perf_counter() - started)


def _rows(job: Job) -> Iterator[dict[str, Any]]:
    version = version_of(job.kind, job.common["temperature"], job.common["top_p"])
    if job.common["version"] != version:
        raise ValueError(
            f"found version {version} of the measurement on this worker, expected {job.common['version']}: "
            "install the same version everywhere"
        )
    loaded = _loaded(job)
    prompted = job.prompting.record(loaded.pair.tokenizer)
    prompted["template_arguments"] = json.dumps(prompted["template_arguments"], sort_keys=True)
    measure = {MODEL: _measured, LOOKUP: _decoded, BOTH: _decoded, PROFILE: _profiled, RACE: _raced}[job.kind]
    for key, text in zip(job.keys, job.prompts, strict=not job.timed):
        begun = time.perf_counter()
        prompt = {} if job.timed else {"prompt": shown(text)[:200], "prompt_hash": digest(text)}
        try:
            columns = measure(job, loaded, text)
        except BaseException as error:
            yield job.failed(key, _words(error)) | prompt
            continue
        prompt |= {} if job.kind == PROFILE else prompted
        yield job.common | prompt | columns | {"key": key, "seconds": time.perf_counter() - begun}


def _words(error: BaseException) -> str:
    """Return what to record of a fault, also of a library's; what ends programs is raised."""
    if not (isinstance(error, Exception) or is_panic(error)):
        raise error
    words = "out of memory" if is_out_of_memory(error) else f"{error}" or type(error).__name__
    return words.encode(errors="replace").decode()


@dataclass(slots=True)
class _Loaded:
    """The pair in this worker's memory, and the calibrations that were measured on it by prompt and setting."""

    pair: ModelPair
    calibrations: dict[tuple, Calibration] = field(default_factory=dict)


_held: dict[tuple, _Loaded] = {}  # one pair in memory per worker, by how it was loaded and the hashes of its files


def _loaded(job: Job) -> _Loaded:
    """Return a job's pair, loaded unless it was the last job's, which is freed before."""
    import torch
    from transformers.utils import logging

    from ..models.loading import load

    hashes = tuple(job.common[f"{part}_hash"] for part in PairHashes._fields)
    held = (job.pair, job.common["threads"], *hashes)
    if held in _held:
        return _held[held]
    while _held:
        _close(_held.popitem()[1].pair)
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    torch.set_num_threads(job.common["threads"])
    pair = load(job.pair.spec)
    names = {"target": job.pair.target, "draft": job.pair.draft, "tokenizer": job.pair.tokenizer}
    for (part, name), found, wanted in zip(names.items(), pair_hashes(**names), hashes, strict=True):
        if (found or "") != wanted:
            _close(pair)
            files = files_of(str(DEMO_PAIR / part) if name is None else name)
            raise ValueError(
                f"{part}: found other files at {files} than when the plan was read, expected the same models everywhere"
            )
    _held[held] = _Loaded(pair)
    return _held[held]


def _close(pair: ModelPair) -> None:
    for model in pair.models:
        model.close()


def _seed(job: Job, text: Prompt) -> int:
    return int(digest([job.common["seed"], text])[:12], 16)


def _measured(job: Job, loaded: _Loaded, text: Prompt) -> dict[str, Any]:
    vector = _vector(loaded.pair, text, job)
    assert vector.calibration is not None
    held = vector if vector.by_depth is None else vector.by_depth  # of a head level after level
    assert held.prompt_sums is not None and held.prompt_ranks is not None
    sums, ranks = held.prompt_sums[0], held.prompt_ranks[0]
    return {
        "positions": int(vector.trials or 0), "sums": sums.ravel().tolist(), "ranks": ranks.ravel().tolist(),
        "calibration": json.dumps(vector.calibration.to_json()),
    } | _dtype(loaded.pair)  # fmt: skip


def _dtype(pair: ModelPair) -> dict[str, str]:
    from ..models.protocol import dtype_name

    return {"dtype_used": dtype_name(pair.target), "passes_by": pair.target.backend}


def _vector(pair: ModelPair, text: Prompt, job: Job) -> AcceptanceVector:
    from ..studies.measure_acceptance import measure_acceptance

    return measure_acceptance(
        [encode_prompt(pair, text, job.prompting)], pair, sampling=_sampling(job), width=job.common["width"],
        max_new_tokens=job.common["new_tokens"], seed=_seed(job, text),
    )  # fmt: skip


def _sampling(job: Job) -> SamplingConfig:
    from ..decoding.sampling import SamplingConfig

    return SamplingConfig(job.common["temperature"], job.common["top_p"])


def _calibration(job: Job, loaded: _Loaded, text: Prompt) -> Calibration:
    """Return the calibration on the domain's first prompts without this one; each is measured once."""
    from ..design.calibration import Calibration

    others = [other for other in job.calibrating if other != text][:CALIBRATION_PROMPTS]
    assert others, "a plan has two prompts of each domain where there is a job of both"
    setting = (job.prompting, *(job.common[key] for key in ("temperature", "top_p", "new_tokens", "width", "seed")))
    for other in others:
        if (other, *setting) not in loaded.calibrations:
            vector = _vector(loaded.pair, other, job)
            assert vector.calibration is not None
            loaded.calibrations[other, *setting] = vector.calibration
    return Calibration.joined([loaded.calibrations[other, *setting] for other in others])


def _decoded(job: Job, loaded: _Loaded, text: Prompt) -> dict[str, Any]:
    """Return what each step of a real decode drafted and committed, with lookup trees or hybrid ones."""
    from ..decoding.growing.policies import HybridTree, LookupTree
    from ..decoding.growing.text_index import TextIndex
    from ..studies.race import own_method

    size = job.common["max_size"]
    tree: HybridTree | LookupTree = LookupTree(TextIndex(), max_size=size, max_depth=TREE_DEPTH)
    if job.kind == BOTH:
        chances = _calibration(job, loaded, text)
        tree = HybridTree(TextIndex(), max_size=size, max_depth=TREE_DEPTH, profile=None, calibration=chances)
    decode = own_method(loaded.pair, tree, _sampling(job), seed=_seed(job, text))
    ids = encode_prompt(loaded.pair, text, job.prompting)
    done = decode(ids, job.common["new_tokens"], 0, lambda share: None)
    assert done is not None, "nothing cancels it"
    return {
        "tokens": len(done.output), "steps": done.passes, "nodes": [step.tree.size for step in done.steps],
        "draft_widths": [list(step.draft_widths) for step in done.steps],
    } | _dtype(loaded.pair)  # fmt: skip


def _profiled(job: Job, loaded: _Loaded, text: Prompt) -> dict[str, Any]:
    from ..studies.measure_profile import measure_profile

    profile = measure_profile(loaded.pair)
    return {"result": json.dumps(profile.to_json())} | _dtype(loaded.pair)


def _raced(job: Job, loaded: _Loaded, text: Prompt) -> dict[str, Any]:
    from ..studies.bench import bench

    ids = [encode_prompt(loaded.pair, each, job.prompting) for each in job.prompts]
    raced = bench(loaded.pair, ids, sampling=_sampling(job), max_new_tokens=job.common["new_tokens"])
    return {"result": json.dumps(raced.record)} | _dtype(loaded.pair)

"""Fixtures shared by all tests: the demo pair, and tiny random models that need no weights."""

from __future__ import annotations

import pytest
import torch

from sequoia_core.decoding.loop import FILLS
from sequoia_core.decoding.sampling import SamplingConfig, probabilities
from sequoia_core.models import vocabulary_rows as rows
from sequoia_core.models.loading import load_pair
from sequoia_core.models.transformers_model import HuggingFaceModel

torch.set_num_threads(1)  # tiny models lose more to waiting threads than they gain


def tiny_llama(
    seed: int, *, vocab: int = 64, layers: int = 2, context: int = 256, scale: float = 4.0
) -> HuggingFaceModel:
    """Return a random Llama; `scale` sharpens its logits so that argmax is far from a tie."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab, hidden_size=32, num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=64, max_position_embeddings=context, eos_token_id=None, bos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        model.lm_head.weight.mul_(scale * 10)
    return HuggingFaceModel(model, name=f"tiny-{seed}")


class DraftsAtOnce(HuggingFaceModel):
    """Drafts a whole tree when asked once, as compiled models do, by forwards of its own: so that walks are compiled
    on every machine with a compiler, not only where those models run.
    """

    def plan_draft(self, levels, *, fill):
        return _Plan(self, levels, next(function for function, name in FILLS.items() if name == fill))


class _Plan:
    def __init__(self, model, levels, fill) -> None:
        self.model, self.levels, self.fill = model, levels, fill

    def grow(self, unseen, cache, *, place, limit, temperature, generator):
        size = self.levels[-1].children.stop
        tokens, chances, drafted = torch.empty(size, dtype=torch.int64), torch.ones(size), []
        tokens[0] = unseen[-1]
        for depth, level in enumerate(self.levels):
            if depth == 0:
                ids, positions = torch.tensor(unseen), torch.arange(place + 1 - len(unseen), place + 1)
                tail = torch.full((len(ids), len(ids)), -torch.inf).triu(1)
            else:
                ids, tail = tokens[torch.from_numpy(level.nodes)], level.tail
                positions = torch.full((len(ids),), min(place + depth, limit - 1))
            logits = self.model.forward(ids, positions, cache=cache, tail=tail, keep=len(level.nodes))
            probs = probabilities(logits, SamplingConfig(temperature))
            tokens[level.children] = self.fill(probs, level.widest, generator).take(level.places)
            chances[level.children] = probs[level.rows, tokens[level.children]]
            drafted.append(probs)
        return tokens, chances, torch.cat(drafted)


@pytest.fixture(scope="session")
def tiny_target() -> HuggingFaceModel:
    return tiny_llama(1)


@pytest.fixture(scope="session")
def tiny_draft() -> HuggingFaceModel:
    return tiny_llama(2, layers=1)


@pytest.fixture(scope="session")
def demo_pair():
    return load_pair(device="cpu")


@pytest.fixture(params=["compiled rows", "plain rows"])
def each_rows(request, monkeypatch) -> None:
    """Run a test twice: with the rows of a vocabulary by compiled code, and by PyTorch and NumPy as without a compiler.

    For whole files: `pytestmark = pytest.mark.usefixtures("each_rows")`.
    """
    if request.param == "plain rows":
        monkeypatch.setattr(rows, "compiled", lambda: None)
    elif rows.compiled() is None:
        pytest.skip("rows.c cannot be built here")

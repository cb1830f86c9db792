"""The options that several commands share, and the application that the commands join."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated

import typer

from ..models.pair_spec import PairSpec

app = typer.Typer(add_completion=False, no_args_is_help=False, help="Sequoia: token trees for speculative decoding.")

READ = {"exists": True, "dir_okay": False}  # of files that are read: typer refuses others before a command begins

Acceptance = Annotated[
    Path, typer.Option("--acceptance", help="Acceptance vector (JSON, CSV, .npy, .safetensors, .pt).", **READ)
]
Entries = Annotated[
    str | None,
    typer.Option(
        "--entries",
        help="What a vector's entries are: ranks, padded (a 0 first), rest-first, rest-last (the chance that none is "
        "accepted) or padded-rest-last. Default: what the numbers show.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on stdout.")]
Out = Annotated[Path | None, typer.Option("--out", help="File to write.")]
Prompts = Annotated[Path | None, typer.Option("--prompts", help="JSONL, CSV, parquet, or plain text lines.", **READ)]
Column = Annotated[str | None, typer.Option("--column", help="Column of the prompts; default: by its usual names.")]
Chat = Annotated[
    bool | None,
    typer.Option("--chat/--raw", help="Use the tokenizer's chat template, or not; default: where it has one."),
]
TemplateArguments = Annotated[
    list[str] | None,
    typer.Option("--template-arg", help="name=value for the chat template, such as enable_thinking=false; repeatable."),
]
PROMPT_COUNT = typer.Option("--prompt-count", help="Use only the first this many prompts.", min=1)
Seed = Annotated[int, typer.Option("--seed", help="Equal seeds draw equally.", min=0, max=2**64 - 1)]
Temperature = Annotated[float, typer.Option("--temperature", help="0 takes the most likely token.")]
TopP = Annotated[float, typer.Option("--top-p", help="Nucleus mass, above 0 and at most 1.")]
VERIFIER = typer.Option(
    "--verifier", help="sequoia, specinfer, topk; generate has traversal too. Default: the tree's own."
)
MaxNewTokens = Annotated[int, typer.Option("--max-new-tokens", help="Tokens to generate per prompt.", min=1)]
PAIR_HELP = {  # by the fields of `PairSpec`
    "target": "Target model: local folder, hub id or GGUF file. Default: demo pair.",
    "draft": "Draft: local folder, hub id, GGUF file, or none. Default: demo pair.",
    "device": "Such as cpu or cuda; auto: the target over all GPUs. Default: CUDA where there is one.",
    "dtype": "float32, bfloat16 or float16.",
    "offload": "disk or host: stream the target's layers from there; default: all in memory.",
    "tokenizer": "Folder or hub id whose tokenizer is used; default: the target's own.",
}


def takes_pair(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of a pair in place of its parameter `spec`, which gets what they say."""
    kind = inspect.Parameter.KEYWORD_ONLY
    options = [
        inspect.Parameter(
            name, kind, default=None, annotation=Annotated[str | None, typer.Option(f"--{name}", help=words)]
        )
        for name, words in PAIR_HELP.items()
    ]
    given = inspect.signature(command, eval_str=True)
    shown = [each.replace(kind=kind) for each in given.parameters.values()]
    place = [each.name for each in shown].index("spec")
    shown[place : place + 1] = options

    @wraps(command)
    def run(**values: object) -> None:
        spec = PairSpec(**{name: values.pop(name) for name in PAIR_HELP})  # type: ignore[arg-type]
        command(spec=spec, **values)

    run.__signature__ = given.replace(parameters=shown)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in shown}
    return run

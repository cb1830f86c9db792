"""The options that several commands share, and the application that the commands join."""

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated

import typer

from ..models.pair_spec import PairSpec
from ..models.prompting import Prompting, parsed_arguments

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
PROMPT_COUNT = typer.Option("--prompt-count", help="Use only the first this many prompts.", min=1)
Seed = Annotated[int, typer.Option("--seed", help="Equal seeds draw equally.", min=0, max=2**64 - 1)]
Temperature = Annotated[float, typer.Option("--temperature", help="0 takes the most likely token.")]
TopP = Annotated[float, typer.Option("--top-p", help="Nucleus mass, above 0 and at most 1.")]
Rule = Annotated[
    str | None,
    typer.Option("--rule", help="How the server accepts, for a vector: match (default of all engines) or rejection."),
]
VERIFIER = typer.Option(
    "--verifier", help="sequoia, specinfer, topk; generate has traversal too. Default: the tree's own."
)
MaxNewTokens = Annotated[int, typer.Option("--max-new-tokens", help="Tokens to generate per prompt.", min=1)]
PAIR_HELP = {  # by the fields of `PairSpec`
    "target": "Target model: local folder, hub id or GGUF file. Default: demo pair.",
    "draft": "Draft: local folder (also of an EAGLE-3 head), hub id, GGUF file, mtp, or none. Default: demo pair.",
    "device": "Such as cpu or cuda; auto: the target over all GPUs. Default: CUDA where there is one.",
    "dtype": "float32, bfloat16 or float16.",
    "offload": "disk or host: stream the target's layers from there; default: all in memory.",
    "tokenizer": "Folder or hub id whose tokenizer is used; default: the target's own.",
}
CHAT = "Use the tokenizer's chat template, or not; default: where it has one."
TEMPLATE_ARGUMENTS = "name=value for the chat template, such as enable_thinking=false; repeatable."


def _prompting(chat: bool | None, template_arguments: list[str] | None) -> Prompting:
    return Prompting(chat, parsed_arguments(template_arguments or ()))


# parameter of a command -> what makes its value, of which options
GROUPS: dict[str, tuple[Callable[..., object], dict[str, object]]] = {
    "spec": (
        PairSpec,
        {name: Annotated[str | None, typer.Option(f"--{name}", help=words)] for name, words in PAIR_HELP.items()},
    ),
    "prompting": (
        _prompting,
        {
            "chat": Annotated[bool | None, typer.Option("--chat/--raw", help=CHAT)],
            "template_arguments": Annotated[list[str] | None, typer.Option("--template-arg", help=TEMPLATE_ARGUMENTS)],
        },
    ),
}


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `GROUPS` in place of its parameters of those names."""
    kind = inspect.Parameter.KEYWORD_ONLY
    signature, shown = inspect.signature(command, eval_str=True), []
    for name, own in signature.parameters.items():
        _, options = GROUPS.get(name, (None, {}))
        shown += [inspect.Parameter(each, kind, default=None, annotation=what) for each, what in options.items()]
        shown += [] if options else [own.replace(kind=kind)]

    @wraps(command)
    def run(**values: object) -> None:
        for name, (make, options) in GROUPS.items():
            if name in signature.parameters:
                values[name] = make(*[values.pop(each) for each in options])
        command(**values)

    run.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in shown}
    return run

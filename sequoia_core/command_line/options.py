"""The Typer application, and options shared by several commands."""

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from ..models.pair_spec import PairSpec
from ..models.prompting import Prompting, parse_template_arguments

app = typer.Typer(add_completion=False, no_args_is_help=False, help="Sequoia: token trees for speculative decoding.")

EXISTING_FILE: Any = {
    "exists": True,
    "dir_okay": False,
}  # Typer then rejects missing files and folders before the command runs.


def existing_file(option: str, help: str) -> Any:
    return typer.Option(option, help=help, **EXISTING_FILE)


Acceptance = Annotated[Path, existing_file("--acceptance", "Acceptance vector (JSON, CSV, .npy, .safetensors, .pt).")]
Entries = Annotated[
    str | None,
    typer.Option(
        "--entries",
        help="Layout of the vector: ranks, padded (starts with 0), rest-first or rest-last (includes the probability "
        "that none is accepted) or padded-rest-last. Default: detected.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print a single JSON object to stdout.")]
Out = Annotated[Path | None, typer.Option("--out", help="File to write.")]
Prompts = Annotated[
    Path | None, existing_file("--prompts", "Prompt file: JSONL, CSV, Parquet, or plain text with one prompt per line.")
]
Column = Annotated[
    str | None, typer.Option("--column", help="Column that contains the prompts. Default: detected by name.")
]
PROMPT_COUNT = typer.Option("--prompt-count", help="Number of prompts to use, counted from the first.", min=1)
Seed = Annotated[
    int, typer.Option("--seed", help="Random seed; the same seed gives the same results.", min=0, max=2**64 - 1)
]
Temperature = Annotated[float, typer.Option("--temperature", help="Sampling temperature; 0 is greedy.")]
TopP = Annotated[float, typer.Option("--top-p", help="Probability mass for nucleus sampling, above 0 and at most 1.")]
Rule = Annotated[
    str | None,
    typer.Option("--rule", help="Acceptance rule of the server: match (every engine's default) or rejection."),
]
VERIFIER = typer.Option(
    "--verifier", help="sequoia, specinfer, topk or, for generate, traversal. Default: chosen for the tree."
)
MaxNewTokens = Annotated[int, typer.Option("--max-new-tokens", help="Number of tokens to generate per prompt.", min=1)]
PAIR_HELP = {  # help text for each field of `PairSpec`
    "target": "Target model: local folder, hub id or GGUF file. Default: demo pair.",
    "draft": "Draft model or head: local folder, hub id, GGUF file, mtp, or none. Default: demo pair.",
    "device": "cpu, cuda, …; auto spreads the target over all GPUs. Default: CUDA if available.",
    "dtype": "float32, bfloat16 or float16.",
    "offload": "disk or host: where to stream the target's layers from. Default: no streaming.",
    "tokenizer": "Folder or hub id of the tokenizer. Default: the target's.",
}
CHAT = "Use the tokenizer's chat template, or raw text. Default: the template, if there is one."
TEMPLATE_ARGUMENTS = "Chat template argument as name=value, such as enable_thinking=false; may be repeated."


def _prompting(chat: bool | None, template_arguments: list[str] | None) -> Prompting:
    return Prompting(chat, parse_template_arguments(template_arguments or ()))


# Maps a command's parameter to the constructor of its value and to the options for the constructor's arguments.
OPTION_GROUPS: dict[str, tuple[Callable[..., object], dict[str, object]]] = {
    "spec": (
        PairSpec,
        {name: Annotated[str | None, typer.Option(f"--{name}", help=text)] for name, text in PAIR_HELP.items()},
    ),
    "prompting": (
        _prompting,
        {
            "chat": Annotated[bool | None, typer.Option("--chat/--raw", help=CHAT)],
            "template_arguments": Annotated[list[str] | None, typer.Option("--template-arg", help=TEMPLATE_ARGUMENTS)],
        },
    ),
}


def with_option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter of a command that is named in `OPTION_GROUPS` with the options of that group."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    signature = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        if name not in OPTION_GROUPS:
            parameters.append(parameter.replace(kind=keyword))
            continue
        _, options = OPTION_GROUPS[name]
        for option, annotation in options.items():
            parameters.append(inspect.Parameter(option, keyword, default=None, annotation=annotation))

    @wraps(command)
    def run(**values: object) -> None:
        for name, (make, options) in OPTION_GROUPS.items():
            if name in signature.parameters:
                values[name] = make(*[values.pop(option) for option in options])
        command(**values)

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run

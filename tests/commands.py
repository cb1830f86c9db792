"""Junk values for command options, and commands in subprocesses."""

import re
import subprocess
import sys
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import typer

from sequoia_core.command_line.main import app, main
from sequoia_core.files.libraries import INSTALL_EXTRAS
from sequoia_core.files.model_names import ASSETS

VECTOR = ASSETS / "acceptance" / "demo-t0.json"
PROFILE = ASSETS / "profiles" / "cpu-2core.json"
DEMO = str(ASSETS / "demo" / "target")
NEEDED = {
    "generate": ["--prompt", "x"],
    "tree": ["--acceptance", str(VECTOR), "--size", "5"],
    "table": ["--acceptance", str(VECTOR), "--max-size", "5", "--max-depth", "2"],
    "score": ["--acceptance", str(VECTOR), "--tree", "TREE"],
    "lookup": ["--responses", "LOG"],
    "server-plan": ["--after", "METRICS"],
    "doctor": ["--after", "METRICS"],
    "audit": ["--server", "http://127.0.0.1:1", "--against", "http://127.0.0.1:2"],
    "beam-plan": ["--acceptance", str(VECTOR), "--profile", str(PROFILE)],
    "sweep": ["PLAN", "--out", "new"],
    "plan": ["--acceptance", str(VECTOR), "--profile", str(PROFILE)],
}
COMPANIONS = {  # options that are required together
    "--target": ["--draft", DEMO],
    "--draft": ["--target", DEMO],
    "--target-shape": ["--draft-shape", "demo-draft", "--device-model", "h100"],
    "--draft-shape": ["--target-shape", "demo-target", "--device-model", "h100"],
    "--device-model": ["--target-shape", "demo-target", "--draft-shape", "demo-draft"],
}
FILES = {
    "TREE": '{"format": "sequoia-tree", "version": 1, "parents": [-1, 0]}',
    "LOG": '{"prompt": "a", "response": "b"}',
    "PLAN": "temperatures = [0.0]",
    "METRICS": 'vllm:spec_decode_num_drafts_total{model_name="demo"} 9\n'
    'vllm:spec_decode_num_draft_tokens_total{model_name="demo"} 18\n'
    'vllm:spec_decode_num_accepted_tokens_total{model_name="demo"} 12\n'
    'vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name="demo",position="0"} 7\n'
    'vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name="demo",position="1"} 5\n',
}
HUGE_NUMBER = "9" * 30  # beyond 64 bits
JUNK = {
    int: ["", "many", "-1", "0.5", "0", "9" * 5000, "-" + HUGE_NUMBER],
    float: ["", "many", "nan", "-inf", "1e300"],
    Path: ["/dev/zero", "/nowhere/at/all.json", "x" * 5000, "half\udce9", "FOLDER", "BYTES"],
    str: ["", "nonsense\nindeed", "half\udce9", "x" * 5000],
}
VALID = {  # junk values that are valid for an option
    ("--seed", "0"), ("--depth", "0"), ("--max-depth", "0"), ("--context", "0"),
    ("--prompt", ""), ("--prompt", "nonsense\nindeed"), ("--prompt", "x" * 5000),  # valid prompts
    ("--out", "half\udce9"), ("--out", "BYTES"),  # a new file, and an existing one
}  # fmt: skip


def types_in(hint) -> set:
    """Return every type in a hint, such as str in `list[str] | None`."""
    return {hint}.union(*map(types_in, typing.get_args(hint)))


def options_of_commands(part: str) -> Iterator[tuple[str, str, type]]:
    """Yield command, option and type for every option with a value in the commands of core or extras."""
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for name, command in commands.items():
        if not command.callback.__module__.startswith(part):
            continue
        hints = typing.get_type_hints(command.callback)
        for option in [each for each in command.params if each.param_type_name == "option"]:
            kinds = types_in(hints[option.name]) & {int, float, str, Path, bool}
            if bool not in kinds:
                (kind,) = kinds
                yield name, option.opts[0], kind


def check_junk(command: str, option: str, kind: type, folder: Path, monkeypatch, capfd) -> None:
    """Check that junk gives exit code 2 and one line naming it, without loading models or leaving files."""
    loaders = ["sequoia_core.models.folders.Folder.load", "sequoia_core.models.folders.folder_tokenizer"]
    for loader in loaders:
        monkeypatch.setattr(loader, lambda *_, **__: pytest.fail("loaded a model before checking the options"))
    (folder / "FOLDER").mkdir()
    (folder / "BYTES").write_bytes(bytes(range(256)))
    for name, text in FILES.items():
        (folder / name).write_text(text)
    places = {name: str(folder / name) for name in (*FILES, "FOLDER", "BYTES")}
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    needed = NEEDED.get(command, []) + ([] if command == "server-plan" else COMPANIONS.get(option, []))
    if option in needed:
        place = needed.index(option)
        needed = needed[:place] + needed[place + 2 :]
    for junk in JUNK[kind]:
        if (option, junk) in VALID or (command, option, junk) == ("sweep", "--out", "FOLDER"):
            continue
        value = places.get(junk, junk)
        code = main([command, *(places.get(each, each) for each in needed), option, value])
        output = capfd.readouterr()
        assert (code, output.out, output.err.count("\n")) == (2, "", 1), junk
        said = re.escape(re.match("[!-~]*", value)[0][:30]) or "''|\"\""
        assert re.search(rf"{option}|\b{option[2:].replace('-', '_')}\b|{said}", output.err) and len(output.err) < 1000
        assert before == {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}


WITHOUT = """
from importlib.machinery import PathFinder
find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *more: None if name in {} else find(name, *more)
"""


def without(libraries: Iterable[str], code: str) -> str:
    """Run Python without some libraries; return its output."""
    program = WITHOUT.format(set(libraries)) + code
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ASSETS.parent)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def check_no_torch(*commands: tuple[int, list[str]]) -> str:
    """Run commands without optional libraries, check their exit codes, and return their output."""
    run = f"assert all(main(command) == code for code, command in {commands})"
    return without(INSTALL_EXTRAS, f"from sequoia_core.command_line.main import main\n{run}")

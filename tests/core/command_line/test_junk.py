"""Every option of every command with junk in it: exit code 2, one line that names it, no model loaded, no file left.

Options are found in the app itself, so that a new one is tried as well.
"""

import re
import typing
from pathlib import Path

import pytest
import typer

from sequoia_core.command_line.main import app, main
from sequoia_core.files.model_names import ASSETS
from tests.core.servers.samples import AFTER, vllm_text

VECTOR, PROFILE = ASSETS / "acceptance" / "demo-t0.json", ASSETS / "profiles" / "cpu-2core.json"
DEMO = str(ASSETS / "demo" / "target")
NEEDED = {
    "generate": ["--prompt", "x"],
    "tree": ["--acceptance", str(VECTOR), "--size", "5"],
    "table": ["--acceptance", str(VECTOR), "--max-size", "5", "--max-depth", "2"],
    "score": ["--acceptance", str(VECTOR), "--tree", "TREE"],
    "lookup": ["--responses", "LOG"],
    "server-plan": ["--after", "METRICS"],
    "doctor": ["--after", "METRICS"],
    "audit": ["--server", "http://127.0.0.1:1"],
    "sweep": ["PLAN", "--out", "new"],
    "plan": ["--acceptance", str(VECTOR), "--profile", str(PROFILE)],
}
BESIDE = {  # options that mean nothing alone
    "--target": ["--draft", DEMO],
    "--draft": ["--target", DEMO],
    "--target-shape": ["--draft-shape", "demo-draft"],
    "--draft-shape": ["--target-shape", "demo-target"],
    "--device-model": ["--target-shape", "demo-target", "--draft-shape", "demo-draft"],
}
FAR = "9" * 30  # beyond 64 bits
JUNK = {
    int: ["", "many", "-1", "0.5", "0", "9" * 5000, "-" + FAR],
    float: ["", "many", "nan", "-inf", "1e300"],
    Path: ["/dev/zero", "/nowhere/at/all.json", "x" * 5000, "half\udce9", "FOLDER", "BYTES"],
    str: ["", "nonsense\nindeed", "half\udce9", "x" * 5000],
}
FINE = {  # what looks like junk and is not
    ("--seed", "0"), ("--depth", "0"), ("--max-depth", "0"), ("--context", "0"),
    ("--prompt", ""), ("--prompt", "nonsense\nindeed"), ("--prompt", "x" * 5000),  # a model may take them
    ("--out", "half\udce9"), ("--out", "BYTES"),  # a new file, and one to be replaced
}  # fmt: skip


def types_in(hint) -> set:
    """Return every type of a hint, such as str of `list[str] | None`."""
    return {hint}.union(*map(types_in, typing.get_args(hint)))


def options():
    """Yield command, option and type of everything that takes a value.

    server-check starts programs that its options name, so its own tests try them.
    """
    commands = {name: each for name, each in typer.main.get_command(app).commands.items() if name != "server-check"}
    for name, command in commands.items():
        hints = typing.get_type_hints(command.callback)
        for option in [each for each in command.params if each.param_type_name == "option"]:
            kinds = types_in(hints[option.name]) & {int, float, str, Path, bool}
            if bool not in kinds:
                (kind,) = kinds
                yield name, option.opts[0], kind


def loaded(*arguments, **options):
    raise AssertionError("a model was loaded before the options were looked at")


@pytest.fixture
def without_models(monkeypatch):
    for place in (
        "loading.load_weights",
        "loading.load_offloaded",
        "pair_tokenizer._of_folder",
        "random_models.random_pair",
    ):
        monkeypatch.setattr(f"sequoia_core.models.{place}", loaded)


@pytest.mark.sample(5, cover=False)
@pytest.mark.usefixtures("without_models")
@pytest.mark.parametrize(("command", "option", "kind"), options())
def test_junk_is_named_before_anything_is_loaded(command, option, kind, tmp_path, capfd):
    places = {name: str(tmp_path / name) for name in ("TREE", "LOG", "METRICS", "PLAN", "FOLDER", "BYTES")}
    (tmp_path / "FOLDER").mkdir()
    (tmp_path / "BYTES").write_bytes(bytes(range(256)))
    (tmp_path / "TREE").write_text('{"format": "sequoia-tree", "version": 1, "parents": [-1, 0]}')
    (tmp_path / "LOG").write_text('{"prompt": "a", "response": "b"}')
    (tmp_path / "PLAN").write_text("temperatures = [0.0]")
    (tmp_path / "METRICS").write_text(vllm_text(*AFTER))
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    needed = NEEDED.get(command, []) + ([] if command == "server-plan" else BESIDE.get(option, []))
    if option in needed:
        place = needed.index(option)
        needed = needed[:place] + needed[place + 2 :]
    for junk in JUNK[kind]:
        if (option, junk) in FINE or (command, option, junk) == ("sweep", "--out", "FOLDER"):
            continue
        value = places.get(junk, junk)
        code = main([command, *(places.get(each, each) for each in needed), option, value])
        output = capfd.readouterr()
        assert (code, output.out, output.err.count("\n")) == (2, "", 1), junk
        said = re.escape(re.match("[!-~]*", value)[0][:30]) or "''|\"\""
        assert re.search(rf"{option}|\b{option[2:].replace('-', '_')}\b|{said}", output.err) and len(output.err) < 1000
        assert before == {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}

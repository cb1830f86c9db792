"""The demo pair's recipe runs from corpus to card facts, and what it writes is a pair that decodes."""

import json
import subprocess
import sys
from pathlib import Path

from sequoia_core import decode, load_pair
from sequoia_core.design.plain_trees import chain_tree

ROOT = Path(__file__).parents[2]


def test_smoke_mode_trains_a_pair_that_decodes(tmp_path):
    command = [
        sys.executable,
        "scripts/train_demo_pair.py",
        "--smoke",
        "--work",
        str(tmp_path),
        "--out",
        str(tmp_path / "demo"),
    ]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert run.returncode == 0, run.stderr
    facts = json.loads((tmp_path / "demo" / "training.json").read_text())
    assert facts["train_files"] > facts["held_out_files"] > 0
    assert facts["target_held_out_loss"] < 6.3  # ln 512 = 6.24 is knowing nothing; an untrained model starts above
    files = json.loads((tmp_path / "files.json").read_text())
    assert not set(files["train"]) & set(files["held_out"])
    pair = load_pair(str(tmp_path / "demo" / "target"), str(tmp_path / "demo" / "draft"), "cpu")
    steps = decode(
        pair.tokenizer.encode("import"), target=pair.target, draft=pair.draft, tree=chain_tree(2), max_new_tokens=8
    )
    assert sum(len(step.new_tokens) for step in steps) == 8

"""Write a model of real sizes with random weights, and a draft to match: for times, not for text.

    python scripts/make_random_model.py --shape llama-3.2-3b --dtype bfloat16 FOLDER
    python scripts/make_random_model.py --shape llama-3.2-3b --draft-shape llama-3.2-1b FOLDER

Without --draft-shape FOLDER is the model; with it FOLDER/target and FOLDER/draft are. Written layer by layer, so it
takes little memory; a 3B model needs 6.4 GB of disk and a minute or two. Shapes are names or a config.json.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sequoia_core.design.model_shapes import ModelShape, find_shape, shipped_table
from sequoia_core.files.dtypes import DTYPES
from sequoia_core.models.random_models import write_random_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", required=True, help=f"a config.json or one of {', '.join(shipped_table('shapes'))}")
    parser.add_argument("--draft-shape", help="the same for a draft beside it")
    parser.add_argument("--dtype", default="bfloat16", choices=DTYPES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    try:
        models: dict[Path, ModelShape] = {args.folder: find_shape(args.shape)}
        if args.draft_shape is not None:
            models = {args.folder / "target": models[args.folder], args.folder / "draft": find_shape(args.draft_shape)}
        for folder, shape in models.items():
            gigabytes = shape.weight_bytes(args.dtype) / 1e9
            print(f"{folder}: {shape.name}, {shape.parameters:,} parameters, {gigabytes:,.1f} GB", file=sys.stderr)
            write_random_model(
                shape.to_config(), folder, dtype=args.dtype, seed=args.seed,
                progress=lambda share, message: print(f"\r{share:5.0%} {message}", end="", file=sys.stderr, flush=True),
            )  # fmt: skip
            print(file=sys.stderr)
    except ValueError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()

"""Static passes and captured decoding steps on CUDA devices.

Within this package, each module imports only those listed before it:

    phases, drafting, walk_by_rank, judging, compiled_layer
"""

PROVIDES = {
    "drafters": ["drafting:StaticDrafter"],
    "judges": ["judging:StaticJudge"],
    "layer_compilers": ["compiled_layer:compile_layer"],
}

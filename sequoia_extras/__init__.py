"""Optional packages. Each adds a capability to `sequoia_core` and can be deleted along with its dependents.

Besides the core, each package imports only the extras listed next to it:

    hardware_models    -
    gguf               -
    cpu_kernels        -
    cuda_graphs        -
    draft_heads        cpu_kernels
    offloading         cpu_kernels
    dynamic_trees      -
    evaluation         -
    servers            -
    sweeps             -

A test enforces the table. `EXTRAS` lists the packages in descending order of priority. Each package declares what it
adds in its `PROVIDES`; see `sequoia_core.files.extras`.
"""

from sequoia_core.files.extras import register

EXTRAS = tuple(
    f"{__name__}.{name}"
    for name in (
        "cpu_kernels",
        "cuda_graphs",
        "gguf",
        "draft_heads",
        "offloading",
        "dynamic_trees",
        "hardware_models",
        "evaluation",
        "servers",
        "sweeps",
    )
)
register(EXTRAS)

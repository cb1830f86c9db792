"""Target weights streamed from disk or host memory, optionally stored in four bits.

Within this package, each module imports only those listed before it:

    direct_reads, tensor_files, four_bits, layer_sources, layer_ring, packed_content, packed_layers,
    streamed_llama, streamed_modules, needs, loading, source
"""

NEEDS = ("cpu_kernels",)
PROVIDES = {"model_sources": ["source:streamed_target"]}

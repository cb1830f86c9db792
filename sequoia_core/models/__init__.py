"""Language models: what the engine asks of one, how they are loaded, and what runs their passes.

Each module imports, of this room, only the modules named:

    chat                   -
    chat_templates         -
    model_files            -
    device                 -
    direct_reads           -
    free_memory            -
    layer_ring             -
    plain_decoder          -
    protocol               -
    tree_cache             -
    compile_c              device
    instruction_sets       compile_c, device
    prefill                protocol
    default_dtype          compile_c, device, instruction_sets
    checkpoint             default_dtype, model_files
    tensor_files           default_dtype, direct_reads
    layer_sources          direct_reads, tensor_files
    transformers_passes    tree_cache
    streamed_modules       layer_ring, layer_sources, tensor_files, transformers_passes
    vocabulary_rows        compile_c
    tree_shaping           compile_c, vocabulary_rows
    llama_x86              plain_decoder, compile_c, instruction_sets, vocabulary_rows, tree_shaping
    llama_torch            plain_decoder, tree_cache, llama_x86
    language_model         protocol, transformers_passes, llama_x86, llama_torch
    random_models          free_memory, instruction_sets, protocol, language_model
    packed_layers          compile_c, direct_reads, layer_sources, llama_x86, model_files, tensor_files
    streamed_llama         instruction_sets, layer_ring, layer_sources, llama_x86, packed_layers, tensor_files
    offload_needs          free_memory, layer_ring, packed_layers, streamed_modules, tensor_files
    offloading  checkpoint, language_model, model_files, offload_needs, streamed_llama, streamed_modules, tensor_files
    loading  default_dtype, model_files, checkpoint, instruction_sets, protocol, language_model, packed_layers, offload_needs, offloading
"""  # noqa: E501

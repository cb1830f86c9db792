"""Language models: the interface that the engine uses, loading, and what runs their passes.

Each module imports, of this room, only the modules named:

    architectures             -
    chat                      -
    chat_templates            -
    device                    -
    free_memory               -
    gemma                     -
    gguf.bindings             -
    model_files               -
    offload.direct_reads      -
    offload.layer_ring        -
    pair_spec                 -
    protocol                  -
    tree_cache                -
    finite_weights            protocol
    prompting                 chat, protocol
    tree_pass_check           model_files, protocol, finite_weights
    default_dtype             device
    llama_torch               tree_cache
    prefill                   protocol
    transformers_passes       tree_cache
    checkpoint                architectures, model_files, default_dtype, finite_weights
    gguf.session              gguf.bindings
    gguf.model                model_files, protocol, gguf.bindings, gguf.session
    gguf.tokenizer            model_files, gguf.bindings
    language_model            protocol, llama_torch, transformers_passes
    generation_settings       protocol, language_model
    pair_tokenizer            model_files, protocol, gguf.model, gguf.tokenizer, language_model
    offload.tensor_files      offload.direct_reads, default_dtype
    offload.four_bits         offload.tensor_files
    offload.layer_sources     offload.direct_reads, offload.tensor_files
    random_models             free_memory, protocol, language_model
    offload.packed_content    offload.direct_reads, offload.tensor_files, offload.four_bits, offload.layer_sources
    offload.packed_layers     model_files, offload.direct_reads, offload.tensor_files, offload.four_bits, offload.packed_content
    offload.streamed_modules  finite_weights, offload.layer_ring, transformers_passes, offload.tensor_files, offload.four_bits, offload.layer_sources
    offload.needs             free_memory, offload.layer_ring, offload.tensor_files, offload.four_bits, offload.packed_content, offload.streamed_modules
    offload.streamed_llama    offload.layer_ring, offload.tensor_files, offload.four_bits, offload.layer_sources, offload.packed_content, offload.packed_layers
    offload.loading           model_files, protocol, checkpoint, language_model, offload.tensor_files, offload.four_bits, offload.streamed_modules, offload.needs, offload.streamed_llama
    loading                   architectures, model_files, protocol, default_dtype, checkpoint, gguf.model, gguf.tokenizer, language_model, generation_settings, pair_spec, pair_tokenizer, tree_pass_check, offload.packed_layers, offload.needs, offload.loading
"""  # noqa: E501

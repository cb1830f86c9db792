"""Language models: the interface that the engine uses, loading, and what runs their passes.

Each module imports, of this room, only modules named before it:

    architectures, chat, device, gemma, gguf.bindings, installation, model_files, offload.direct_reads, pair_spec,
    protocol, tree_cache, weight_files, finite_weights, prompting, tree_pass_check, default_dtype, heads.eagle3,
    heads.head_config, heads.head_files, llama_torch, transformers_passes, checkpoint, gguf.session, gguf.model,
    gguf.tokenizer, language_model, heads.mtp, heads.features, heads.compiled_head, heads.session,
    generation_settings, pair_tokenizer, offload.tensor_files, offload.four_bits, offload.layer_sources,
    offload.layer_ring, random_models, offload.packed_content, offload.packed_layers, offload.streamed_modules,
    offload.needs, offload.streamed_llama, offload.loading, loading
"""

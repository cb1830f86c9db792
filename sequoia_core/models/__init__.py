"""Language models: the interface used by the engine, loading, and forward passes.

Within this package, each module imports only those listed before it:

    architectures, chat, gemma, installation, model_files, pair_spec, tree_cache, weight_files, plain_decoder,
    llama_torch, processor, device, short_spins, other_load, threads, protocol, finite_weights, prompting,
    tree_pass_check, model_sources, default_dtype, checkpoint, configured_context, linear_layers,
    transformers_passes, language_model, generation_settings, pair_tokenizer, folders, loading
"""

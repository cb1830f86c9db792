"""Language models: what the engine asks of one, how they are loaded, and what runs their passes.

Each module imports, of this room, only the modules named:

    chat                   -
    model_files            -
    checkpoint             model_files
    device                 -
    plain_llama            -
    protocol               -
    tree_cache             -
    compile_c              device
    prefill                protocol
    transformers_passes    tree_cache
    vocabulary_rows        compile_c
    llama_amx              device, plain_llama, compile_c, vocabulary_rows
    llama_torch            plain_llama, tree_cache, llama_amx
    language_model         protocol, transformers_passes, llama_amx, llama_torch
    loading                model_files, checkpoint, protocol, language_model
"""

"""Language models: what the engine asks of one, how they are loaded, and what runs their passes.

Each module imports, of this room, only the modules named:

    chat                   -
    model_files            -
    checkpoint             model_files
    device                 -
    free_memory            -
    plain_decoder          -
    protocol               -
    tree_cache             -
    compile_c              device
    instruction_sets       device
    prefill                protocol
    transformers_passes    tree_cache
    vocabulary_rows        compile_c
    number_formats         compile_c, device, instruction_sets
    llama_x86              plain_decoder, compile_c, instruction_sets, vocabulary_rows
    llama_torch            plain_decoder, tree_cache, llama_x86
    language_model         protocol, transformers_passes, llama_x86, llama_torch
    random_models          free_memory, language_model
    loading                model_files, checkpoint, protocol, language_model
"""

"""Compiled code: C, and the Python that builds, chooses and calls it.

Each module imports, of this room, only the modules named:

    short_spins       -
    plain_decoder     -
    processor         -
    compile_c         processor
    instruction_sets  processor, compile_c
    sampling_ops      compile_c
    text_index        compile_c
    tree_expansion    compile_c, sampling_ops
    llama_x86         plain_decoder, compile_c, instruction_sets, sampling_ops, tree_expansion
    linear            instruction_sets, llama_x86
    drafting_calls    sampling_ops, tree_expansion, llama_x86
"""

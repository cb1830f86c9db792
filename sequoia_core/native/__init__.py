"""Compiled code: C, and the Python that builds, chooses and calls it.

Each module imports, of this room, only modules named before it:

    short_spins, notices, plain_decoder, processor, threads, compile_c, instruction_sets, sampling_ops, walker,
    text_index, tree_expansion, llama_x86, linear, drafting_calls
"""

"""Compiled C code for CPUs: forward passes, linear layers, row operations, text index and tree expansion.

Within this package, each module imports only those listed before it:

    c_declarations, compile_c, instruction_sets, sampling_ops, text_index, tree_expansion, kernel_session,
    llama_x86, drafting_calls, linear, walker, row_operations, drafting, judging
"""

PROVIDES = {
    "row_operations": ["row_operations:CompiledRows"],
    "drafters": ["drafting:CompiledDrafter"],
    "tree_expansion": ["drafting_calls"],
    "text_index": ["text_index:text_index_kernels"],
    "judges": ["judging:CompiledJudge"],
    "backends": ["llama_x86:CompiledLlama"],
    "linear_layers": ["linear"],
    "instructions_in_use": ["instruction_sets:instructions_in_use"],
    "environment_checks": ["instruction_sets:check_environment"],
    "compiled_products": ["instruction_sets:compiles_products"],
}

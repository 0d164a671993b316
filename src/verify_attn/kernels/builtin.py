"""The built-in kernels by name, apart from the code that loads them: listing needs no torch."""

BUILTIN = {
    "torch": "verify_attn.kernels.torch_kernel:torch_verify",
    "triton-unsplit": "verify_attn.kernels.triton_unsplit:TritonUnsplit",
    "triton-split": "verify_attn.kernels.triton_split:TritonSplit",
    "sm120": "verify_attn.kernels.sm120:Sm120",
}

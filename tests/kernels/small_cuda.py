"""A small CUDA source that uses what sm120 uses, and the ways to spoil it."""

from verify_attn.kernels.nvrtc import Unit

SMALL = r"""
extern "C" __global__ void __launch_bounds__(128) multiply(const unsigned *in, float *out) {
    extern __shared__ unsigned tile[];
    unsigned at = (unsigned)__cvta_generic_to_shared(tile + 4 * threadIdx.x);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n"
                 "cp.async.commit_group;\ncp.async.wait_group 0;"
                 ::"r"(at), "l"(in + 4 * threadIdx.x) : "memory");
    __syncthreads();
    float c[4] = {0, 0, 0, 0};
    for (int i = 0; i < STEPS; i++) {
        const unsigned *q = tile + i * 8 + threadIdx.x;
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                     "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                     : "r"(q[0]), "r"(q[32]), "r"(q[64]), "r"(q[96]), "r"(q[128]), "r"(q[160]));
    }
    for (int j = 0; j < 4; j++) out[j * 128 + threadIdx.x] = c[j];
}
extern "C" __global__ void merge(float *out) {
    __shared__ float row[32];
    row[threadIdx.x] = out[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = row[31 - threadIdx.x];
}
"""
SHARED = 4_096


def small(source=SMALL, *, shared=SHARED, **options):
    """The source as a unit."""
    return Unit(
        "steps=4", source, {"STEPS": 4}, {"multiply": (4, shared), "merge": (1, 0)},
        name="small.cu", options=options,
    )  # fmt: skip

// sm120: the two kernels.  What is before this file is said in sm120_common.cuh.

extern "C" __global__ void __launch_bounds__(THREADS, 1) verify_split(const __grid_constant__ Params p) {
    extern __shared__ __align__(128) unsigned char memory[];
    LAUNCH_NEXT();
    Shared& s = *reinterpret_cast<Shared*>(memory);
    if (threadIdx.x < 32) {
        Walk w;
        bool any = start_walk(p, w);
        if (threadIdx.x == 0) {
            s.any = any, s.start = w;
            for (int i = 0; i < STAGES; i++) {
                barrier_init(shared_address(&s.loaded[i]), ARRIVALS);
                barrier_init(shared_address(&s.used[i]), VALUE_WARPS);
            }
            for (int i = 0; i < 2; i++) {
                barrier_init(shared_address(&s.weighed[i]), SCORE_WARPS);
                barrier_init(shared_address(&s.taken[i]), VALUE_WARPS);
            }
            BARRIERS_ARE_MADE();  // copies come to them through another proxy
        }
    }
    __syncthreads();
    if (!s.any) return;
    if (threadIdx.x < SCORE_THREADS)
        score_warp(p, s);
    else
        value_warp(p, s);
}

constexpr int GROUP = LATENT / 4;  // threads of a row, four columns each
constexpr int GROUPS = 4;

// One block: rows (blockIdx.x * merge_rows ...) of unit blockIdx.y of request blockIdx.z.  Its four
// groups of threads share one row's segments (merge_rows 1) or have a row each (merge_rows 4).
extern "C" __global__ void __launch_bounds__(GROUPS * GROUP) verify_merge(const __grid_constant__ Params p) {
    __shared__ float4 sums[GROUPS - 1][GROUP];
    int group = threadIdx.x / GROUP, column = threadIdx.x % GROUP * 4, r = blockIdx.z;
    bool together = p.merge_rows == 1;
    Request now = request_of(p, r);
    int row = blockIdx.x * p.merge_rows + (together ? 0 : group), all = blockIdx.y * ROWS + row;
    if (int(blockIdx.y * ROWS + blockIdx.x * p.merge_rows) >= now.nodes * p.heads) {
        WAIT_FOR_LAST();  // or what is launched next might come before the end of verify_split
        return;
    }
    u32 total, before;
    int units, unit;
    sums_before(p, p.requests, total, units);
    sums_before(p, r, before, unit);
    Deal deal(p, total, units);
    before += blockIdx.y * now.tiles();
    unit += blockIdx.y;
    int first = deal.block_of(before), last = deal.block_of(before + now.tiles() - 1);

    WAIT_FOR_LAST();  // all above reads what was there before verify_split
    const float2* parts = p.part_sum + i64(unit) * ROWS + row;
    const float* values = p.part_out + (i64(unit) * ROWS + row) * LATENT + column;
    float base = NONE, sum = 0.0f;
    for (int b = first + int(threadIdx.x % 32); b <= last; b += 32) base = fmaxf(base, parts[i64(b) * ROWS].x);
    for (int d = 16; d > 0; d /= 2) base = fmaxf(base, __shfl_xor_sync(~0u, base, d));
    float from = base == NONE ? 0.0f : base;
    for (int b = first + int(threadIdx.x % 32); b <= last; b += 32) {
        float2 part = parts[i64(b) * ROWS];
        sum += part.y * exp2_fast(part.x - from);
    }
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);

    float4 acc = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 8
    for (int b = first + (together ? group : 0); b <= last; b += together ? GROUPS : 1) {
        float fade = exp2_fast(parts[i64(b) * ROWS].x - from);
        float4 v = *reinterpret_cast<const float4*>(values + i64(b) * ROWS * LATENT);
        acc.x += fade * v.x, acc.y += fade * v.y, acc.z += fade * v.z, acc.w += fade * v.w;
    }
    if (together) {
        if (group > 0) sums[group - 1][threadIdx.x % GROUP] = acc;
        __syncthreads();
        if (group > 0) return;
#pragma unroll
        for (int g = 0; g < GROUPS - 1; g++) {
            float4 v = sums[g][threadIdx.x];
            acc.x += v.x, acc.y += v.y, acc.z += v.z, acc.w += v.w;
        }
    }
    if (all >= now.nodes * p.heads) return;
    float whole = sum > 0.0f ? 1.0f / sum : 0.0f;
    i64 node = now.first + all / p.heads, head = all % p.heads;
    u16* to = p.out + node * p.out_node + head * p.out_head + column;
    float made[4] = {acc.x, acc.y, acc.z, acc.w};
#pragma unroll
    for (int i = 0; i < 4; i++) to[i] = to_bf16(made[i] * whole);
    if (column == 0)
        p.lse[node * p.lse_node + head * p.lse_head] =
            sum == 0.0f ? NONE : (base + log2f(sum)) * 0.69314718055994531f;  // NaN stays
}

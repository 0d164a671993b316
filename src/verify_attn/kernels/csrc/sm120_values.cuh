// sm120: the eight warps that ask for tiles and sum their values.

// Where a row of a tile lies, and in which page or node.
struct Asked {
    int page, row;  // row: within the page; OWN: page is a node outside the pool; NOTHING: zeros
};
constexpr int OWN = -1, NOTHING = -2;

#if __CUDA_ARCH__ >= 900
constexpr int ARRIVALS = ASKERS;  // at `loaded`

// Copies the row of lane % ASKED of a warp's part of a tile, or zeros, and lets `loaded` know when it is there.
__device__ __forceinline__ void copy_rows(const u16* from, bool zeros, u32 stage, u32 loaded) {
    int lane = threadIdx.x % 32;
    constexpr u32 ALL = (1u << ASKED) - 1;
    u32 present = __ballot_sync(~0u, !zeros) & ALL;
    if (present != ALL) {
        for (int row = 0; row < ASKED; row++)
            for (int c = lane; (present >> row & 1) == 0 && c < CHUNKS; c += 32)
                asm volatile("st.shared.v4.b32 [%0], {%1,%1,%1,%1};" ::"r"(stage + row * PITCH + c * 16), "r"(0) : "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // later copies come through another proxy
        __syncwarp();
    }
    if (lane == 0)
        asm volatile("{ .reg .b64 s; mbarrier.arrive.expect_tx.shared.b64 s, [%0], %1; }" ::"r"(loaded),
                     "r"(__popc(present) * WIDTH * 2) : "memory");
    __syncwarp();
    if (lane < ASKED && !zeros)
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                         stage + lane * PITCH), "l"(from), "r"(WIDTH * 2), "r"(loaded) : "memory");
}
#else
constexpr int ARRIVALS = ASKERS * 32;

// The same with 16 bytes a copy: SHARERS lanes share a row.
__device__ __forceinline__ void copy_rows(const u16* from, bool zeros, u32 stage, u32 loaded) {
    constexpr int SHARERS = 32 / ASKED;
    static_assert(CHUNKS % SHARERS == 0, "widths");
    int lane = threadIdx.x % 32, mine = lane / ASKED;
    u32 to = stage + lane % ASKED * PITCH + mine * 16;
#pragma unroll
    for (int c = 0; c < CHUNKS; c += SHARERS) copy16(to + c * 16, from + (c + mine) * 8, zeros ? 0 : 16);
    arrive_when_copied(loaded);
}
#endif

// The value warps ask for tiles in turn, two for a tile: one alone takes long enough over its 16 copies
// to come late to its products.  Where this one's next tile is; its segment is in shared memory.  Each
// lane knows of row `part() + lane % ASKED`.
struct Asking {
    int tile, end, number;  // number: of all this block's tiles
    Asked asked;

    // The first row of this warp's part of a tile.
    __device__ __forceinline__ static int part() { return (threadIdx.x / 32 - SCORE_WARPS) / TURNS * ASKED; }

    // To the tile that many further on, if there is one, and look up where its rows are.
    __device__ __forceinline__ void step(const Params& p, Walk& w, int tiles) {
        number += tiles, tile += tiles;
        while (tile >= end && w.left > 0) {
            int over = tile - end;
            next_of(p, w);
            tile = w.tile + over, end = w.end;
        }
        int position = tile * TILE + part() + threadIdx.x % ASKED, node = position - w.now.prefix;
        asked = {0, NOTHING};
        if (tile >= end || node >= w.now.nodes) return;
        if (node >= 0 && p.node_kv != nullptr) {
            asked = {w.now.first + node, OWN};
        } else {
            int column = u32(position) / u32(p.page_size);
            asked = {p.table[w.r * p.table_stride + column], position - column * p.page_size};
        }
    }

    // Copy the part of the tile, once its place in the ring is free.
    __device__ __forceinline__ void ask(const Params& p, Shared& s) {
        if (tile >= end) return;
        int stage = number % STAGES, round = number / STAGES;
        if (round > 0) wait(shared_address(&s.used[stage]), (round - 1) & 1);
        const u16* from = p.pool;
        if (asked.row >= 0) from += asked.page * p.page_stride + asked.row * p.row_stride;
        if (asked.row == OWN) from = p.node_kv + asked.page * p.node_stride;
        u32 to = shared_address(s.stages[stage]) + part() * PITCH;
        copy_rows(from, asked.row == NOTHING, to, shared_address(&s.loaded[stage]));
    }
};

__device__ __forceinline__ void value_warp(const Params& p, Shared& s) {
    constexpr int BLOCKS = ROWS / 16, EIGHTS = COLUMNS / 8;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 - SCORE_WARPS;
    u32 weight_offset = lane % 16 * WEIGHT_PITCH + (lane / 16 ^ lane / 4 % 2) * 16;
    u32 value_offset = lane % 16 * PITCH + (warp * COLUMNS + lane / 16 * 8) * 2;
    Walk& segment = begin_walk(s, s.asking[warp]);
    Asking asking = {segment.tile, segment.end, 0};
    asking.step(p, segment, warp % TURNS);
    if (warp % TURNS < AHEAD) {
        asking.ask(p, s);
        asking.step(p, segment, TURNS);
    }

    float acc[BLOCKS][EIGHTS][4];
    int number = 0;
    for (Walk& w = begin_walk(s, s.here[SCORE_WARPS + warp]);; next_of(p, w)) {
#pragma unroll
        for (int i = 0; i < BLOCKS * EIGHTS * 4; i++) acc[i / (EIGHTS * 4)][i / 4 % EIGHTS][i % 4] = 0.0f;
        for (int end = number + w.end - w.tile; number < end; number++) {
            int slot = number % 2, stage = number % STAGES;
            wait(shared_address(&s.loaded[stage]), number / STAGES & 1);
            u32 v[EIGHTS / 2][4];
            u32 values = shared_address(s.stages[stage]) + value_offset;
#pragma unroll
            for (int e = 0; e < EIGHTS / 2; e++) load4_transposed(v[e], values + e * 32);
            wait(shared_address(&s.weighed[slot]), number / 2 & 1);
            u32 fades = *reinterpret_cast<volatile u32*>(&s.fades[slot]);
            if (fades != 0) {
#pragma unroll
                for (int b = 0; b < BLOCKS; b++) {
                    if ((fades >> (b * 8) & 255) == 0) continue;
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        float fade = s.fade[slot][b * 16 + half * 8 + lane / 4];
#pragma unroll
                        for (int e = 0; e < EIGHTS; e++) acc[b][e][half * 2] *= fade, acc[b][e][half * 2 + 1] *= fade;
                    }
                }
            }
            u32 weights = shared_address(s.weights[slot]) + weight_offset;
#pragma unroll
            for (int b = 0; b < BLOCKS; b++) {
                u32 a[4];
                load4(a, weights + b * 16 * WEIGHT_PITCH);
                if (b == BLOCKS - 1) {
                    __syncwarp();
                    if (lane == 0) arrive(shared_address(&s.taken[slot])), arrive(shared_address(&s.used[stage]));
                }
#pragma unroll
                for (int e = 0; e < EIGHTS; e++) multiply(acc[b][e], a, v[e / 2][e % 2 * 2], v[e / 2][e % 2 * 2 + 1]);
            }
            if ((number + AHEAD) % TURNS == warp % TURNS) {
                asking.ask(p, s);
                asking.step(p, segment, TURNS);
            }
        }
        i64 slot = blockIdx.x + w.unit;
        float* to = p.part_out + slot * ROWS * LATENT + lane / 4 * LATENT + warp * COLUMNS + lane % 4 * 2;
        int rows = w.now.nodes * p.heads - w.part * ROWS;
#pragma unroll
        for (int b = 0; b < BLOCKS; b++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int row = b * 16 + half * 8;
                if (row + lane / 4 >= rows) continue;
#pragma unroll
                for (int e = 0; e < EIGHTS; e++)
                    *reinterpret_cast<float2*>(to + row * LATENT + e * 8) =
                        make_float2(acc[b][e][half * 2], acc[b][e][half * 2 + 1]);
            }
        if (w.left == 0) return;
    }
}

// sm120: the four warps that make a tile's scores and weights.

// The mask's bits for a tile: of row lane % 16 of this warp the word with the tile's first node, and
// in lanes 16 to 31 the one behind it.
__device__ __forceinline__ u32 mask_bits(const Params& p, const Walk& w, int tile) {
    int row = w.part * ROWS + threadIdx.x / 32 * 16 + threadIdx.x % 16, own = row / p.heads;
    int node = tile * TILE - w.now.prefix;
    int word = (node < 0 ? 0 : node) / 32 + threadIdx.x % 32 / 16;
    if (word * 32 >= w.now.nodes) return 0;
    own = own < w.now.nodes ? own : w.now.nodes - 1;
    return reinterpret_cast<const u32*>(p.mask + (w.now.first + own) * p.mask_stride)[word];
}

// Bit i: may this row see the tile's key i?  `node`: that of key 0, negative in the prefix.
__device__ __forceinline__ u32 seen(u32 bits, int row, int node, int nodes) {
    u32 low = __shfl_sync(~0u, bits, row), high = __shfl_sync(~0u, bits, row + 16);
    u32 sees = node < 0 ? low << -node | ((1u << -node) - 1) : __funnelshift_r(low, high, node);
    return nodes - node < TILE ? sees & ((1u << (nodes - node)) - 1) : sees;
}

constexpr __device__ bool is_held(int piece) { return piece % 4 == 3 && piece / 4 < HELD; }
constexpr __device__ int in_register(int piece) { return piece - (piece / 4 < HELD ? piece / 4 : HELD); }

// This warp's half of the dims of its own 16 rows (even pieces) and of the other's (odd pieces).
__device__ __forceinline__ void load_q(const Params& p, const Walk& w, u32 (&q)[IN_REGISTERS][4], u32 held) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, rows = w.now.nodes * p.heads;
#pragma unroll
    for (int other = 0; other < 2; other++) {
        const u16* from[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = w.part * ROWS + (warp ^ other) * 16 + half * 8 + lane / 4;
            row = row < rows ? row : rows - 1;  // rows past the end repeat the last one
            from[half] = p.q + (w.now.first + row / p.heads) * p.q_node + row % p.heads * p.q_head +
                         warp % 2 * (STEPS * 16) + lane % 4 * 2;
        }
#pragma unroll
        for (int step = 0; step < STEPS; step++) {
            int piece = step * 2 + other;
            u32 a[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                a[i] = *reinterpret_cast<const u32*>(from[i % 2] + step * 16 + i / 2 * 8);
            if (is_held(piece)) {
                asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(held + piece / 4 * 512),
                             "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]) : "memory");
            } else {
#pragma unroll
                for (int i = 0; i < 4; i++) q[in_register(piece)][i] = a[i];
            }
        }
    }
}

// Named barriers of a warp and the other of its pair.
__device__ __forceinline__ void pair_arrive(int barrier) {
    asm volatile("barrier.cta.arrive %0, 64;" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void pair_sync(int barrier) {
    asm volatile("barrier.cta.sync %0, 64;" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void score_warp(const Params& p, Shared& s) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 held = shared_address(s.held) + warp * HELD * 512 + lane * 16;
    u32 key_offset = (lane / 16 * 8 + lane % 8) * PITCH + lane / 8 % 2 * 16 + warp % 2 * (STEPS * 32);
    // 1 to 4: a warp's sums may be written over; 5 and 6: both of a pair have given theirs.
    int mine = 1 + warp, others = 1 + (warp ^ 1), both = 5 + warp / 2;
    pair_arrive(others);
    u32 q[IN_REGISTERS][4];
    int number = 0;
    for (Walk& w = begin_walk(s, s.here[warp]);; next_of(p, w)) {
        load_q(p, w, q, held);
        float base[2] = {NONE, NONE}, sum[2] = {0.0f, 0.0f};
        int end = w.end, masked = w.now.prefix / TILE;  // the first tile with a key behind the prefix
        for (int tile = w.tile; tile < end; tile++, number++) {
            float scores[2][2][4] = {};  // [own rows, the other's][eight keys]
            int stage = number % STAGES;
            wait(shared_address(&s.loaded[stage]), number / STAGES & 1);
            u32 keys = shared_address(s.stages[stage]) + key_offset, k[LOOK][4], a[4];
            load_held(a, held);
#pragma unroll
            for (int step = 0; step < LOOK; step++) load4(k[step], keys + step * 32);
#pragma unroll
            for (int step = 0; step < STEPS; step++) {
                u32(&now)[4] = k[step % LOOK];
                if (step > 0 && step - 1 + LOOK < STEPS) load4(k[(step - 1) % LOOK], keys + (step - 1 + LOOK) * 32);
#pragma unroll
                for (int other = 0; other < 2; other++) {
                    int piece = step * 2 + other;
                    const u32(&rows)[4] = is_held(piece) ? a : q[in_register(piece)];
                    multiply(scores[other][0], rows, now[0], now[1]);
                    multiply(scores[other][1], rows, now[2], now[3]);
                    if (is_held(piece) && is_held(piece + 4)) load_held(a, held + (piece / 4 + 1) * 512);
                }
                // Or the assembler brings products that wait for each other together.
                if (step % 2 == 1) __syncwarp();
            }

            pair_sync(mine);
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const float(&x)[4] = scores[1][j];
                s.given[warp][j][lane] = make_float4(x[0], x[1], x[2], x[3]);
            }
            pair_sync(both);
            float weight[2][4];  // [half of the rows][keys 2 l, 2 l + 1, 8 + 2 l, 9 + 2 l], l = lane % 4
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float4 x = s.given[warp ^ 1][j][lane];
                weight[0][j * 2] = scores[0][j][0] + x.x, weight[0][j * 2 + 1] = scores[0][j][1] + x.y;
                weight[1][j * 2] = scores[0][j][2] + x.z, weight[1][j * 2 + 1] = scores[0][j][3] + x.w;
            }
            pair_arrive(others);
            if (tile >= masked) {
                int node = tile * TILE - w.now.prefix;
                u32 bits = mask_bits(p, w, tile);
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    u32 sees = seen(bits, half * 8 + lane / 4, node, w.now.nodes) >> (lane % 4 * 2);
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        if ((sees >> (i / 2 * 8 + i % 2) & 1) == 0) weight[half][i] = NONE;
                }
            }
            float most[2], fade[2] = {1.0f, 1.0f};
            bool rises = false, fades = false;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float(&x)[4] = weight[half];
                most[half] = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3])) * p.scale;
                rises |= most[half] > base[half] + LAZY;
            }
            // The base follows the largest score only when it must: every change costs a product for
            // each element of the output.  So a row's largest is not even looked for in most tiles.
            if (__any_sync(~0u, rises)) {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    float row = most[half];
                    row = fmaxf(row, __shfl_xor_sync(~0u, row, 1));
                    row = fmaxf(row, __shfl_xor_sync(~0u, row, 2));
                    bool up = row > base[half] + LAZY;
                    fades |= up && base[half] != NONE;
                    fade[half] = up ? exp2_fast(base[half] - row) : 1.0f;  // 0 from no base at all
                    base[half] = up ? row : base[half];
                    sum[half] *= fade[half];
                }
                fades = __any_sync(~0u, fades);
            }
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float(&x)[4] = weight[half];
                float from = base[half] == NONE ? 0.0f : base[half];
#pragma unroll
                for (int i = 0; i < 4; i++) x[i] = exp2_fast(fmaf(x[i], p.scale, -from));
                sum[half] += (x[0] + x[1]) + (x[2] + x[3]);
            }

            int slot = number % 2, round = number / 2;
            if (round > 0) wait(shared_address(&s.taken[slot]), (round - 1) & 1);
            u32* to = reinterpret_cast<u32*>(s.weights[slot] + (warp * 16 + lane / 4) * WEIGHT_PITCH) + lane % 4;
            int turn = lane / 16 * 4;  // the two halves of a row are exchanged in every other four rows
#pragma unroll
            for (int half = 0; half < 2; half++) {
                to[half * 2 * WEIGHT_PITCH + turn] = pack(weight[half][0], weight[half][1]);
                to[half * 2 * WEIGHT_PITCH + (turn ^ 4)] = pack(weight[half][2], weight[half][3]);
                if (fades && lane % 4 == 0) s.fade[slot][warp * 16 + half * 8 + lane / 4] = fade[half];
            }
            if (lane == 0) reinterpret_cast<unsigned char*>(&s.fades[slot])[warp] = fades;
            __syncwarp();
            if (lane == 0) arrive(shared_address(&s.weighed[slot]));
        }
        float2* sums = p.part_sum + i64(blockIdx.x + w.unit) * ROWS + (threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float all = sum[half];
            all += __shfl_xor_sync(~0u, all, 1);
            all += __shfl_xor_sync(~0u, all, 2);
            if (threadIdx.x % 4 == 0) sums[half * 8] = make_float2(base[half], all);
        }
        if (w.left == 0) return;
    }
}

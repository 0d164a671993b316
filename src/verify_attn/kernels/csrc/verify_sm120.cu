// sm120: split-KV verify attention within 101,376 bytes of shared memory and mma.sync.
//
// 64 rows (row = node * heads + head) of one request are a unit; its keys, the prefix and then the
// nodes, come in tiles of 16.  All units' tiles in a row are dealt out evenly to the blocks, one
// block a multiprocessor; the part of a unit that a block gets is a segment.  verify_split writes a
// segment's weighted sum, its largest score and its sum of weights; verify_merge joins a unit's.
//
// A block is 12 warps, 168 registers each.  Four make the scores and weights of a tile, in pairs:
// each of a pair holds one half of the dims of 32 rows of q, most of it in registers, and gives the
// other the sums that belong to its 16 rows.  Eight hold 64 columns of the output apiece,
// multiply weights with values, and ask for the tiles to come.  A tile's keys and values are the same
// rows, so it is loaded once, into a ring of STAGES; weights go through a ring of two.
//
// Compiled with LATENT, ROPE, STAGES, SHARED_BYTES and PARAMS_BYTES.  No header is included, so that
// NVRTC alone is enough.

typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned long long u64;
typedef long long i64;

// What differs by architecture: how to wait at a barrier (the first sleeps in hardware), how rows
// are copied (`copy_rows`), how far keys are loaded ahead (LOOK), and that a kernel can be launched
// while the one before it ends.
#if __CUDA_ARCH__ >= 900
#define MBARRIER_WAIT "mbarrier.try_wait.parity.shared.b64"
#define BARRIERS_ARE_MADE() asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory")
#define LAUNCH_NEXT() asm volatile("griddepcontrol.launch_dependents;")
#define WAIT_FOR_LAST() asm volatile("griddepcontrol.wait;" ::: "memory")
#else
#define MBARRIER_WAIT "mbarrier.test_wait.parity.shared.b64"
#define BARRIERS_ARE_MADE()
#define LAUNCH_NEXT()
#define WAIT_FOR_LAST()
#endif

constexpr int ROWS = 64, TILE = 16;
constexpr int SCORE_WARPS = 4, VALUE_WARPS = 8;
constexpr int SCORE_THREADS = SCORE_WARPS * 32;
constexpr int THREADS = (SCORE_WARPS + VALUE_WARPS) * 32;
constexpr int WIDTH = LATENT + ROPE;
constexpr int STEPS = WIDTH / 32;        // of a score warp's products, 16 dims each
constexpr int PIECES = STEPS * 2;        // of q, 16 x 16, a score warp
constexpr int HELD = (PIECES - 1) / 4;   // every fourth is held in shared memory
constexpr int IN_REGISTERS = PIECES - HELD;
constexpr int LOOK = __CUDA_ARCH__ >= 900 ? 5 : 2;                 // steps whose keys are loaded into registers ahead
constexpr int COLUMNS = LATENT / VALUE_WARPS;  // of the output, a warp
constexpr int AHEAD = STAGES - 1;        // tiles asked for before their values are needed
constexpr int LEAST_TILES = 3;           // that a block is started for
constexpr int SLACK = 4;
// 16 bytes more than a row has, so that eight rows' same columns lie in different banks.
constexpr int PITCH = WIDTH * 2 + 16;
constexpr int WEIGHT_PITCH = TILE * 2;
constexpr int STAGE_BYTES = TILE * PITCH;
constexpr int WEIGHT_BYTES = ROWS * WEIGHT_PITCH;
constexpr int HELD_BYTES = HELD * SCORE_THREADS * 16;
constexpr int CHUNKS = WIDTH / 8;  // of 16 bytes, a row
constexpr float LAZY = 8.0f;  // scores may pass the base of the weights by a factor of 2^8
#define NONE __int_as_float(0xff800000)  // minus infinity

static_assert(LATENT % (16 * VALUE_WARPS) == 0 && ROPE % 32 == 0 && STAGES >= 3, "widths");

struct Params {
    const u16* q;
    const u16* pool;
    const u16* node_kv;  // null: the nodes' rows are in the pool
    const int* table;
    const int* prefix_lens;
    const int* node_offsets;
    const u64* mask;
    u16* out;
    float* lse;
    float* part_out;   // [slots, ROWS, LATENT]
    float2* part_sum;  // [slots, ROWS]: largest score times scale (base 2), sum of weights
    i64 q_node, q_head, page_stride, row_stride, node_stride, table_stride, mask_stride;
    i64 out_node, out_head, lse_node, lse_head;
    float scale;  // softmax_scale * log2(e)
    int requests, heads, page_size, blocks, merge_rows;
};
static_assert(sizeof(Params) == PARAMS_BYTES, "as the host packs them");

// ---- the schedule: the same arithmetic in both kernels ------------------------------------------

struct Request {
    int prefix, first, nodes;
    __device__ int units(int heads) const { return (nodes * heads + ROWS - 1) / ROWS; }
    __device__ int tiles() const { return (prefix + nodes + TILE - 1) / TILE; }
};

__device__ __forceinline__ Request request_of(const Params& p, int r) {
    int first = p.node_offsets[r];
    return {p.prefix_lens[r], first, p.node_offsets[r + 1] - first};
}

__device__ __forceinline__ u32 warp_sum(u32 value) {
    for (int d = 16; d > 0; d /= 2) value += __shfl_xor_sync(~0u, value, d);
    return value;
}

// Tiles and units of the requests before `end`, by one warp.  The host refuses 2^31 tiles.
__device__ __forceinline__ void sums_before(const Params& p, int end, u32& tiles, int& units) {
    u32 t = 0, u = 0;
    for (int r = threadIdx.x % 32; r < end; r += 32) {
        Request one = request_of(p, r);
        u += one.units(p.heads);
        t += one.units(p.heads) * one.tiles();
    }
    tiles = warp_sum(t);
    units = int(warp_sum(u));
}

// How the tiles are dealt out: `each` a block, and one more to the first `more` blocks.  The units
// of one request get `parts` blocks each instead, where that costs no block more than SLACK tiles:
// then none has the end of a unit and the beginning of another.
struct Deal {
    u32 blocks, each, more, parts, tiles;
    __device__ Deal(const Params& p, u32 total, u32 units) {
        u32 most = total / LEAST_TILES;
        blocks = most < 1 ? 1 : most < u32(p.blocks) ? most : p.blocks;
        parts = 0;
        if (p.requests == 1 && units <= blocks && units > 0) {
            tiles = total / units;
            u32 fit = blocks / units;
            if ((blocks - fit * units) * tiles <= SLACK * fit * blocks) parts = fit, blocks = fit * units;
        }
        each = total / blocks;
        more = total - each * blocks;
    }
    __device__ u32 first(u32 block) const {
        if (parts > 0) return block / parts * tiles + block % parts * tiles / parts;
        return block * each + (block < more ? block : more);
    }
    // The last block whose first tile is not behind this one.
    __device__ int block_of(u32 tile) const {
        if (parts > 0) return int(tile / tiles * parts + ((tile % tiles + 1) * parts - 1) / tiles);
        u32 bound = more * (each + 1);
        return int(tile < bound ? tile / (each + 1) : more + (tile - bound) / each);
    }
};

// Where a walk through a block's tiles is: a segment, and what is left behind it.
struct Walk {
    Request now;
    int r, part, unit;  // request, unit within it, unit of all
    int tile, end;      // the segment's next tile, and the one behind its last, within the unit
    int left;           // tiles of this block behind the segment
};

__device__ __forceinline__ void begin(const Params& p, Walk& w) {
    int tiles = w.now.tiles();
    int here = tiles - w.tile < w.left ? tiles - w.tile : w.left;
    w.end = w.tile + here;
    w.left -= here;
}

__device__ __forceinline__ void next_segment(const Params& p, Walk& w) {
    w.tile = 0, w.unit++;
    if (++w.part == w.now.units(p.heads)) {
        w.part = 0;
        do w.now = request_of(p, ++w.r);
        while (w.now.nodes == 0);
    }
    begin(p, w);
}

// By one warp: the walk of a block from its first tile on; false: it has none.
__device__ __forceinline__ bool start_walk(const Params& p, Walk& w) {
    u32 total;
    int units;
    sums_before(p, p.requests, total, units);
    Deal deal(p, total, units);
    if (total == 0 || blockIdx.x >= deal.blocks) return false;
    u32 low = deal.first(blockIdx.x);
    w.left = int(deal.first(blockIdx.x + 1) - low);
    w.unit = 0;
    for (w.r = 0;; w.r++) {
        w.now = request_of(p, w.r);
        u32 parts = w.now.units(p.heads), tiles = parts * w.now.tiles();
        if (low < tiles) break;
        low -= tiles, w.unit += parts;
    }
    w.part = int(low / w.now.tiles());
    w.unit += w.part;
    w.tile = int(low % w.now.tiles());
    begin(p, w);
    return true;
}

// ---- instructions -------------------------------------------------------------------------------

__device__ __forceinline__ u32 shared_address(const void* at) {
    return u32(__cvta_generic_to_shared(at));
}

__device__ __forceinline__ void barrier_init(u32 barrier, int count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

__device__ __forceinline__ void arrive(u32 barrier) {
    asm volatile("{ .reg .b64 s; mbarrier.arrive.shared.b64 s, [%0]; }" ::"r"(barrier) : "memory");
}

// Counts as this thread's arrival, once its copies up to here are in shared memory.
__device__ __forceinline__ void arrive_when_copied(u32 barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void wait(u32 barrier, u32 parity) {
    asm volatile(
        "{\n .reg .pred done;\n again:\n " MBARRIER_WAIT " done, [%0], %1;\n @!done bra again;\n}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}

__device__ __forceinline__ void copy16(u32 to, const void* from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

__device__ __forceinline__ void load4(u32 (&r)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}

__device__ __forceinline__ void load4_transposed(u32 (&r)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}

__device__ __forceinline__ void load_held(u32 (&r)[4], u32 at) {
    asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}

// d += a b: a [16, 16], b [16, 8], bf16 with float32 sums.
__device__ __forceinline__ void multiply(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    // volatile: in the order written, so that products that wait for each other stay apart
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ u32 pack(float low, float high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}

__device__ __forceinline__ u16 to_bf16(float x) { return u16(pack(x, 0.0f)); }

// ---- shared memory ------------------------------------------------------------------------------

struct Shared {
    unsigned char stages[STAGES][STAGE_BYTES];
    unsigned char weights[2][WEIGHT_BYTES];
    unsigned char held[HELD_BYTES > 0 ? HELD_BYTES : 16];
    float4 given[SCORE_WARPS][2][32];  // a score warp's sums for the other of its pair
    float fade[2][ROWS];  // what the sums so far are multiplied with
    u64 loaded[STAGES], used[STAGES], weighed[2], taken[2];
    Walk asking[VALUE_WARPS], here[SCORE_WARPS + VALUE_WARPS], start;
    u32 fades[2];  // a byte a score warp: is any of its 16 fades not 1
    int any;
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "as the host launches it");

// A warp's own walks are in shared memory: registers are what this kernel lacks.
__device__ __forceinline__ Walk& begin_walk(Shared& s, Walk& own) {
    if (threadIdx.x % 32 == 0) own = s.start;
    __syncwarp();
    return own;
}

__device__ __forceinline__ void next_of(const Params& p, Walk& own) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) next_segment(p, own);
    __syncwarp();
}

// ---- the four warps of the scores ---------------------------------------------------------------

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
            float fade[2];
            bool fades = false;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float(&x)[4] = weight[half];
                float most = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
                most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
                most = fmaxf(most, __shfl_xor_sync(~0u, most, 2)) * p.scale;
                // The base follows the largest score only when it must: every change costs a
                // product for each element of the output.
                bool up = most > base[half] + LAZY;
                fades |= up && base[half] != NONE;
                fade[half] = up ? exp2_fast(base[half] - most) : 1.0f;  // 0 from no base at all
                base[half] = up ? most : base[half];
                float from = base[half] == NONE ? 0.0f : base[half];
#pragma unroll
                for (int i = 0; i < 4; i++) x[i] = exp2_fast(fmaf(x[i], p.scale, -from));
                sum[half] = sum[half] * fade[half] + ((x[0] + x[1]) + (x[2] + x[3]));
            }
            fades = __any_sync(~0u, fades);

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

// ---- the eight warps of the values --------------------------------------------------------------

// Where a row of a tile lies, and in which page or node.
struct Asked {
    int page, row;  // row: within the page; OWN: page is a node outside the pool; NOTHING: zeros
};
constexpr int OWN = -1, NOTHING = -2;

#if __CUDA_ARCH__ >= 900
constexpr int ARRIVALS = 1;  // at `loaded`

// Copies the row of lane % 16 of a tile, or zeros, and lets `loaded` know when it is there.
__device__ __forceinline__ void copy_rows(const u16* from, bool zeros, u32 stage, u32 loaded) {
    int lane = threadIdx.x % 32;
    u32 present = __ballot_sync(~0u, !zeros) & 65535;
    if (present != 65535) {
        for (int row = 0; row < TILE; row++)
            for (int c = lane; (present >> row & 1) == 0 && c < CHUNKS; c += 32)
                asm volatile("st.shared.v4.b32 [%0], {%1,%1,%1,%1};" ::"r"(stage + row * PITCH + c * 16), "r"(0) : "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // later copies come through another proxy
        __syncwarp();
    }
    if (lane == 0)
        asm volatile("{ .reg .b64 s; mbarrier.arrive.expect_tx.shared.b64 s, [%0], %1; }" ::"r"(loaded),
                     "r"(__popc(present) * WIDTH * 2) : "memory");
    __syncwarp();
    if (lane < TILE && !zeros)
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                         stage + lane * PITCH), "l"(from), "r"(WIDTH * 2), "r"(loaded) : "memory");
}
#else
constexpr int ARRIVALS = 32;

// The same with 16 bytes a copy: two lanes share a row.
__device__ __forceinline__ void copy_rows(const u16* from, bool zeros, u32 stage, u32 loaded) {
    int lane = threadIdx.x % 32, second = lane / TILE;
    u32 to = stage + lane % TILE * PITCH + second * 16;
#pragma unroll
    for (int c = 0; c < CHUNKS; c += 2) copy16(to + c * 16, from + (c + second) * 8, zeros ? 0 : 16);
    arrive_when_copied(loaded);
}
#endif

// The value warps ask for tiles in turn.  Where this one's next tile is; its segment is in shared
// memory.  Each lane knows of row lane % 16.
struct Asking {
    int tile, end, number;  // number: of all this block's tiles
    Asked asked;

    // To the tile that many further on, if there is one, and look up where its rows are.
    __device__ __forceinline__ void step(const Params& p, Walk& w, int tiles) {
        number += tiles, tile += tiles;
        while (tile >= end && w.left > 0) {
            int over = tile - end;
            next_of(p, w);
            tile = w.tile + over, end = w.end;
        }
        int position = tile * TILE + threadIdx.x % TILE, node = position - w.now.prefix;
        asked = {0, NOTHING};
        if (tile >= end || node >= w.now.nodes) return;
        if (node >= 0 && p.node_kv != nullptr) {
            asked = {w.now.first + node, OWN};
        } else {
            int column = u32(position) / u32(p.page_size);
            asked = {p.table[w.r * p.table_stride + column], position - column * p.page_size};
        }
    }

    // Copy the tile, once its place in the ring is free.
    __device__ __forceinline__ void ask(const Params& p, Shared& s) {
        if (tile >= end) return;
        int stage = number % STAGES, round = number / STAGES;
        if (round > 0) wait(shared_address(&s.used[stage]), (round - 1) & 1);
        const u16* from = p.pool;
        if (asked.row >= 0) from += asked.page * p.page_stride + asked.row * p.row_stride;
        if (asked.row == OWN) from = p.node_kv + asked.page * p.node_stride;
        copy_rows(from, asked.row == NOTHING, shared_address(s.stages[stage]), shared_address(&s.loaded[stage]));
    }
};

__device__ __forceinline__ void value_warp(const Params& p, Shared& s) {
    constexpr int BLOCKS = ROWS / 16, EIGHTS = COLUMNS / 8;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32 - SCORE_WARPS;
    u32 weight_offset = lane % 16 * WEIGHT_PITCH + (lane / 16 ^ lane / 4 % 2) * 16;
    u32 value_offset = lane % 16 * PITCH + (warp * COLUMNS + lane / 16 * 8) * 2;
    Walk& segment = begin_walk(s, s.asking[warp]);
    Asking asking = {segment.tile, segment.end, 0};
    asking.step(p, segment, warp);
    if (warp < AHEAD) {
        asking.ask(p, s);
        asking.step(p, segment, VALUE_WARPS);
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
            if ((number + AHEAD) % VALUE_WARPS == warp) {
                asking.ask(p, s);
                asking.step(p, segment, VALUE_WARPS);
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

// ---- the merge ----------------------------------------------------------------------------------

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

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
constexpr int ASKERS = 2;                // value warps that ask for one tile, half of its rows each
constexpr int TURNS = VALUE_WARPS / ASKERS, ASKED = TILE / ASKERS;
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

static_assert(LATENT % (16 * VALUE_WARPS) == 0 && ROPE % 32 == 0 && STAGES >= 3 && AHEAD <= TURNS, "widths");

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

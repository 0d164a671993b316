// sm120: which tiles a block has, the same arithmetic in both kernels; and a block's shared memory.

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

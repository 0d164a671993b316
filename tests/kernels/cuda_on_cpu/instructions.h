// What the source calls of CUDA, on the machine of machine.h.

// Not inlined: the source's loops are unrolled, and compiling would take long.
#define CALLED __attribute__((noinline)) inline

inline uint64_t __cvta_generic_to_shared(const void* at) {
    return uint64_t(static_cast<const unsigned char*>(at) - machine::shared.data());
}
inline float __int_as_float(uint32_t bits) { return machine::float_of(bits); }
inline int __popc(uint32_t x) { return __builtin_popcount(x); }
CALLED uint32_t __funnelshift_r(uint32_t low, uint32_t high, int by) {
    return uint32_t((uint64_t(high) << 32 | low) >> (by & 31));
}
CALLED void __syncwarp() { machine::together("__syncwarp", {}, [](machine::Warp&) {}); }
CALLED uint32_t __ballot_sync(uint32_t, bool vote) {
    return *machine::together("__ballot_sync", {vote}, [](machine::Warp& w) {
        uint32_t all = 0;
        for (int l = 0; l < 32; l++) all |= uint32_t(w.in[l][0] != 0) << l;
        for (int l = 0; l < 32; l++) w.out[l][0] = all;
    });
}
CALLED bool __any_sync(uint32_t mask, bool vote) { return __ballot_sync(mask, vote) != 0; }
CALLED uint32_t __shfl_sync(uint32_t, uint32_t value, int from) {
    return *machine::together("__shfl_sync", {value, uint32_t(from)}, [](machine::Warp& w) {
        for (int l = 0; l < 32; l++) w.out[l][0] = w.in[w.in[l][1] % 32][0];
    });
}
CALLED uint32_t __shfl_xor_sync(uint32_t mask, uint32_t value, int with) {
    return __shfl_sync(mask, value, int(threadIdx.x % 32) ^ with);
}
CALLED float __shfl_xor_sync(uint32_t mask, float value, int with) {
    return machine::float_of(__shfl_xor_sync(mask, machine::bits_of(value), with));
}
CALLED void __syncthreads() {
    machine::Named& b = machine::all_threads;
    if (++b.arrived == machine::threads) b.arrived = 0, b.done++;
    else machine::wait_for(b.done);
}

// Its instructions of PTX, by the names that translate.py gives them.

CALLED void mbarrier_init(uint32_t at, int count) {
    machine::at_shared(at, 8, 8);
    machine::barriers[at] = {0, count, count, 0};
}
CALLED void arrive_at(uint32_t at) {
    machine::Barrier& b = machine::barrier_at(at);
    b.pending--, machine::complete(b);
}
CALLED void mbarrier_arrive(uint32_t at) {
    arrive_at(at);
    machine::pause_at_times();
}
CALLED void mbarrier_expect(uint32_t at, int bytes) {
    machine::Barrier& b = machine::barrier_at(at);
    b.bytes += bytes, b.pending--, machine::complete(b);
}
CALLED void mbarrier_wait(uint32_t at, uint32_t parity) {
    machine::Barrier& b = machine::barrier_at(at);
    while ((b.phase & 1) == parity) machine::wait_for(b.phase);
}
CALLED void named_arrive(int id) {
    if (id < 1 || id > 15) machine::fail("no named barrier " + std::to_string(id));
    machine::Named& b = machine::named[id];
    if (++b.arrived == 64) b.arrived = 0, b.done++;
    machine::pause_at_times();
}
CALLED void named_sync(int id) {
    machine::Named& b = machine::named[id];
    if (++b.arrived == 64) b.arrived = 0, b.done++;
    else machine::wait_for(b.done);
}
CALLED void copy_async(uint32_t to, const void* from, int bytes) {  // cp.async: 16, or zeros
    unsigned char* target = machine::at_shared(to, 16, 16);
    if (reinterpret_cast<uintptr_t>(from) % 16 != 0) machine::fail("a copy's source is not aligned");
    memset(target, 0xff, 16);
    machine::copies[machine::current].push_back([=] {
        memset(target, 0, 16);
        if (bytes > 0) memcpy(target, from, bytes);
        machine::counts.copied_bytes += bytes;
    });
}
CALLED void copy_async_arrive(uint32_t at) {
    machine::copies[machine::current].push_back([=] { arrive_at(at); });
}
CALLED void copy_bulk(uint32_t to, const void* from, int bytes, uint32_t at) {
    unsigned char* target = machine::at_shared(to, bytes, 16);
    if (reinterpret_cast<uintptr_t>(from) % 16 != 0 || bytes % 16 != 0) machine::fail("a bulk copy is not aligned");
    memset(target, 0xff, bytes);
    machine::copies.emplace_back();
    machine::copies.back().push_back([=] {
        memcpy(target, from, bytes);
        machine::counts.copied_bytes += bytes;
        machine::Barrier& b = machine::barrier_at(at);
        b.bytes -= bytes, machine::complete(b);
    });
    if (machine::copies.size() > 4096) {  // drop the queues that are empty
        auto& all = machine::copies;
        size_t kept = machine::threads;
        for (size_t i = kept; i < all.size(); i++)
            if (!all[i].empty()) std::swap(all[kept++], all[i]);
        all.resize(kept);
    }
}
CALLED void load_shared(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d, uint32_t at) {
    uint32_t four[4];
    memcpy(four, machine::at_shared(at, 16, 16), 16);
    machine::counts.vector_bytes += 16;
    a = four[0], b = four[1], c = four[2], d = four[3];
}
CALLED void store_shared(uint32_t at, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    uint32_t four[4] = {a, b, c, d};
    memcpy(machine::at_shared(at, 16, 16), four, 16);
}
CALLED void store_shared(uint32_t at, uint32_t same) { store_shared(at, same, same, same, same); }
CALLED void load_matrix(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d, uint32_t at) {
    uint32_t r[4];
    machine::load_matrices(r, at, false);
    a = r[0], b = r[1], c = r[2], d = r[3];
}
CALLED void load_matrix_transposed(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d, uint32_t at) {
    uint32_t r[4];
    machine::load_matrices(r, at, true);
    a = r[0], b = r[1], c = r[2], d = r[3];
}
CALLED void matrix_multiply(float& d0, float& d1, float& d2, float& d3, uint32_t a0, uint32_t a1, uint32_t a2,
                            uint32_t a3, uint32_t b0, uint32_t b1) {
    using namespace machine;
    const uint32_t* out = together(
        "mma", {a0, a1, a2, a3, b0, b1, bits_of(d0), bits_of(d1), bits_of(d2), bits_of(d3)}, [](Warp& w) {
            float a[16][16], b[16][8], d[16][8];
            counts.products++;
            for (int l = 0; l < LANES; l++) {
                const uint32_t* in = w.in[l];
                int group = l / 4, two = l % 4 * 2;
                for (int i = 0; i < 4; i++) {
                    float* to = &a[group + i % 2 * 8][two + i / 2 * 8];
                    to[0] = low_bf16(in[i]), to[1] = high_bf16(in[i]);
                    d[group + i / 2 * 8][two + i % 2] = float_of(in[6 + i]);
                }
                for (int i = 0; i < 2; i++)
                    b[two + i * 8][group] = low_bf16(in[4 + i]), b[two + i * 8 + 1][group] = high_bf16(in[4 + i]);
            }
            for (int row = 0; row < 16; row++)
                for (int k = 0; k < 16; k++)
                    for (int column = 0; column < 8; column++) d[row][column] += a[row][k] * b[k][column];
            for (int l = 0; l < LANES; l++)
                for (int i = 0; i < 4; i++) w.out[l][i] = bits_of(d[l / 4 + i / 2 * 8][l % 4 * 2 + i % 2]);
        });
    d0 = float_of(out[0]), d1 = float_of(out[1]), d2 = float_of(out[2]), d3 = float_of(out[3]);
}
CALLED void power_of_two(float& y, float x) { y = exp2f(x); }
CALLED void to_bf16_pair(uint32_t& both, float high, float low) {
    both = machine::bf16_bits(high) << 16 | machine::bf16_bits(low);
}
CALLED void nothing() {}

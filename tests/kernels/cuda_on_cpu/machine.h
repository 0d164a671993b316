// A multiprocessor on one CPU thread: enough of CUDA to run sm120's source block by block.
//
// Each CUDA thread is a fiber.  Warps take turns in a random order that a seed gives, and copies
// that the source starts land at a random later time; what they will overwrite is spoiled with NaN
// as soon as they are started.  So whatever reads too early or writes too early gives a wrong
// answer for some seed, and whatever waits for something that never comes is told as a deadlock.
// Products are exact float32 sums in order, as good as a tensor core's; nothing here has a time.
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static  // one block at a time

struct uint3 { unsigned x, y, z; };
struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static uint3 threadIdx, blockIdx;

namespace machine {

constexpr int LANES = 32, STACK = 128 << 10, MOST_THREADS = 1024;
constexpr unsigned GUARD = 4096;

// Waits until *gate is no longer `seen`; every wait there is counts something up.
struct Fiber {
    ucontext_t first;
    jmp_buf at;
    bool begun = false, ended = true;
    const unsigned* gate = nullptr;
    unsigned seen = 0;
    bool runs() const { return !ended && (gate == nullptr || *gate != seen); }
};

// What the lanes of a warp do together: the last one that comes does it.
struct Warp {
    unsigned done = 0;
    int arrived = 0;
    const char* what = "";
    uint32_t in[LANES][10], out[LANES][4];
};

struct Barrier {  // of shared memory: `phase` counts those that are complete
    unsigned phase = 0;
    int count = 0, pending = 0;
    long long bytes = 0;
};

struct Named {
    unsigned done = 0;
    int arrived = 0;
};

// Of a grid.  A wavefront is what shared memory gives at a time: 128 bytes, or less where lanes ask
// one bank for different words.
struct Counts {
    long long products = 0, matrix_bytes = 0, matrix_wavefronts = 0, vector_bytes = 0, copied_bytes = 0;
};

static Counts counts;
static Fiber fibers[MOST_THREADS];
static Warp warps[MOST_THREADS / LANES];
static char* const stacks = new char[size_t(MOST_THREADS) * STACK];  // pages that are touched count
static std::vector<unsigned char> shared;  // of this block, a guard behind it
static std::map<uint32_t, Barrier> barriers;
static Named named[16], all_threads;
static std::vector<std::deque<std::function<void()>>> copies;  // under way: in order within a queue
static std::mt19937 dice;
static std::function<void()> body;
static jmp_buf scheduler;
static std::string wrong;
static int threads, current;

[[noreturn]] inline void fail(const std::string& why) {
    char where[96];
    snprintf(where, sizeof where, " (block %u,%u,%u, thread %d)", blockIdx.x, blockIdx.y, blockIdx.z, current);
    wrong = why + where;
    longjmp(scheduler, 2);
}

inline void enter(int fiber) {
    current = fiber;
    threadIdx = {unsigned(fiber), 0, 0};
}

__attribute__((noinline)) inline void wait_for(const unsigned& gate) {
    Fiber& f = fibers[current];
    f.gate = &gate, f.seen = gate;
    if (_setjmp(f.at) == 0) _longjmp(scheduler, 1);
}

inline unsigned any_of(unsigned count) { return std::uniform_int_distribution<unsigned>(0, count - 1)(dice); }

// Now and then a thread is stopped behind its signal: what it should have done before comes too late.
__attribute__((noinline)) inline void pause_at_times() {
    if (any_of(3) != 0) return;
    fibers[current].gate = nullptr;
    if (_setjmp(fibers[current].at) == 0) _longjmp(scheduler, 1);
}

inline void run_body() {
    body();
    fibers[current].ended = true;
    _longjmp(scheduler, 1);
}

__attribute__((noinline)) inline void resume(int fiber) {
    Fiber& f = fibers[fiber];
    enter(fiber);
    f.gate = nullptr;
    int why = _setjmp(scheduler);
    if (why == 2) throw 0;
    if (why != 0) return;
    if (f.begun) _longjmp(f.at, 1);
    f.begun = true;
    getcontext(&f.first);
    f.first.uc_stack.ss_sp = stacks + size_t(fiber) * STACK;
    f.first.uc_stack.ss_size = STACK;
    f.first.uc_link = nullptr;
    makecontext(&f.first, run_body, 0);
    setcontext(&f.first);
}

inline bool land_a_copy() {
    unsigned first = copies.empty() ? 0 : any_of(unsigned(copies.size()));
    for (size_t i = 0; i < copies.size(); i++) {
        auto& queue = copies[(first + i) % copies.size()];
        if (queue.empty()) continue;
        auto copy = std::move(queue.front());
        queue.pop_front();
        copy();
        return true;
    }
    return false;
}

// For a while, or for long; now and then one warp sleeps until no other can go on.
static int asleep;
inline bool run_a_warp() {
    int count = threads / LANES, first = int(any_of(unsigned(count)));
    if (any_of(20) == 0) asleep = int(any_of(unsigned(count)));
    for (int i = 0; i <= count; i++) {
        int warp = i < count ? (first + i) % count : asleep % count;
        if (warp == asleep && i < count) continue;
        bool ran = false;
        for (int turns = 1 << any_of(9); turns > 0; turns--) {
            bool now = false, backwards = any_of(2) == 0;
            for (int lane = 0; lane < LANES; lane++) {
                int fiber = warp * LANES + (backwards ? LANES - 1 - lane : lane);
                if (fibers[fiber].runs()) resume(fiber), now = true;
            }
            if (!now) break;
            ran = true;
        }
        if (ran) return true;
    }
    return false;
}

// One block; throws where it goes wrong, and `wrong` says how.
inline void run_block(uint3 block, int block_threads, unsigned shared_bytes) {
    blockIdx = block, threads = block_threads;
    shared.assign(shared_bytes + GUARD, 0xff);
    barriers.clear(), copies.assign(threads + 1, {});
    all_threads = Named();
    for (Named& each : named) each = Named();
    for (int i = 0; i < threads; i++) fibers[i].begun = false, fibers[i].ended = false, fibers[i].gate = nullptr;
    for (int i = 0; i < threads / LANES; i++) warps[i].done = 0, warps[i].arrived = 0;
    for (;;) {
        if (any_of(4) == 0) land_a_copy();
        if (run_a_warp() || land_a_copy()) continue;
        for (int i = 0; i < threads; i++)
            if (!fibers[i].ended) {
                current = i;
                wrong = "deadlock: thread " + std::to_string(i) + " waits for what never comes (" +
                        (warps[i / LANES].arrived > 0 ? warps[i / LANES].what : "a barrier") + ")";
                throw 0;
            }
        break;
    }
    for (unsigned i = 0; i < GUARD; i++)
        if (shared[shared_bytes + i] != 0xff) {
            wrong = "written behind the end of shared memory";
            throw 0;
        }
}

inline unsigned char* at_shared(uint32_t address, unsigned bytes, unsigned alignment) {
    if (address % alignment != 0) fail("shared address " + std::to_string(address) + " is not aligned");
    if (address + bytes > shared.size() - GUARD) fail("shared address " + std::to_string(address) + " is outside");
    return shared.data() + address;
}

// The last lane of the warp that comes calls `all(warp)`.
template <class All>
inline const uint32_t* together(const char* what, std::initializer_list<uint32_t> mine, All all) {
    Warp& w = warps[current / LANES];
    int lane = current % LANES;
    if (w.arrived > 0 && w.what != what && strcmp(w.what, what) != 0) fail(std::string("lanes part: ") + what + " and " + w.what);
    w.what = what;
    int i = 0;
    for (uint32_t word : mine) w.in[lane][i++] = word;
    if (++w.arrived < LANES) {
        wait_for(w.done);
    } else {
        w.arrived = 0;
        all(w);
        w.done++;
    }
    return w.out[lane];
}

inline uint32_t bits_of(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }
inline float float_of(uint32_t u) { float x; memcpy(&x, &u, 4); return x; }
inline float low_bf16(uint32_t pair) { return float_of(pair << 16); }
inline float high_bf16(uint32_t pair) { return float_of(pair & 0xffff0000u); }
inline uint32_t bf16_bits(float x) {
    if (std::isnan(x)) return 0x7fff;
    uint32_t u = bits_of(x);
    return (u + 0x7fff + (u >> 16 & 1)) >> 16;
}

inline Barrier& barrier_at(uint32_t address) {
    auto found = barriers.find(address);
    if (found == barriers.end()) fail("no barrier was made at " + std::to_string(address));
    return found->second;
}

inline void complete(Barrier& b) {
    if (b.pending < 0) fail("more arrivals at a barrier than it counts");
    if (b.pending == 0 && b.bytes == 0) b.phase++, b.pending = b.count;
}

inline void load_matrices(uint32_t (&r)[4], uint32_t address, bool transposed) {
    const uint32_t* out = together(transposed ? "ldmatrix.trans" : "ldmatrix", {address}, [=](Warp& w) {
        uint16_t rows[4][8][8];
        for (int l = 0; l < LANES; l++) memcpy(rows[l / 8][l % 8], at_shared(w.in[l][0], 16, 16), 16);
        for (int m = 0; m < 4; m++) {
            int asked[8] = {}, most = 0;  // by four banks, which a row of 16 bytes takes
            for (int row = 0; row < 8; row++) most = std::max(most, ++asked[w.in[m * 8 + row][0] / 16 % 8]);
            counts.matrix_bytes += 128, counts.matrix_wavefronts += most;
        }
        for (int l = 0; l < LANES; l++)
            for (int m = 0; m < 4; m++) {
                int a = l / 4, b = l % 4 * 2;
                uint32_t low = transposed ? rows[m][b][a] : rows[m][a][b];
                uint32_t high = transposed ? rows[m][b + 1][a] : rows[m][a][b + 1];
                w.out[l][m] = low | high << 16;
            }
    });
    memcpy(r, out, 16);
}

}  // namespace machine

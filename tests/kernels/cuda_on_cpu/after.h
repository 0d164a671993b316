// The grid: blocks one after the other, in a random order.

template <class Kernel>
static const char* run_grid(uint3 grid, int threads, unsigned shared_bytes, unsigned seed, Kernel kernel) {
    machine::dice.seed(seed);
    machine::counts = machine::Counts();
    machine::asleep = 0;
    machine::body = kernel;
    std::vector<uint3> blocks;
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) blocks.push_back({x, y, z});
    std::shuffle(blocks.begin(), blocks.end(), machine::dice);
    try {
        for (uint3 block : blocks) machine::run_block(block, threads, shared_bytes);
    } catch (int) {
        machine::wrong += ", seed " + std::to_string(seed);
        return machine::wrong.c_str();
    }
    return nullptr;
}

// Null, or what went wrong.
extern "C" const char* run_split(const Params* p, unsigned blocks, unsigned seed) {
    return run_grid({blocks, 1, 1}, THREADS, SHARED_BYTES, seed, [=] { verify_split(*p); });
}

extern "C" const char* run_merge(const Params* p, unsigned x, unsigned y, unsigned z, unsigned seed) {
    return run_grid({x, y, z}, GROUPS * GROUP, 0, seed, [=] { verify_merge(*p); });
}

extern "C" const machine::Counts* counted() { return &machine::counts; }

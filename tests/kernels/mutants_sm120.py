"""Ways to spoil sm120's source: (what stands there, what stands there instead)."""

from verify_attn.kernels import sm120

LOADED = "wait(shared_address(&s.loaded[stage]), number / STAGES & 1);\n            u32 "
TOLD = "if (lane == 0) arrive(shared_address(&s.weighed"
NODE, BITS = "int node = tile * TILE - w.now.prefix", ";\n                u32 bits"
PHASE, FADES = "number / 2{} & 1);\n", "            u32 fades"
TAKEN, USED = "if ({}) wait(shared_address(&s.taken", "if ({}) wait(shared_address(&s.used"

# From where a warp reads the other's sums to where it lets them go.
LET_GO = "            pair_arrive(others);\n"
FADED = "if (lane == 0) reinterpret_cast<unsigned char*>(&s.fades[slot])[warp] = fades;\n"
TELL = f"            __syncwarp();\n            {TOLD}[slot]));\n"


def between(first: str, last: str) -> str:
    """The source from one text to the end of another."""
    source = sm120.source()
    start = source.index(first)
    return source[start : source.index(last, start) + len(last)]


SUMS = between("pair_sync(both);", LET_GO)

# Each gives a wrong answer, in some order of warps and copies.
WRONG = {
    "keys are not waited for": (LOADED + "keys", "u32 keys"),
    "values are not waited for": (LOADED + "v[", "u32 v["),
    "weights are not waited for": ("wait(shared_address(&s.weighed[slot]), number / 2 & 1);", ""),
    "weights are written over": (TAKEN.format("round > 0"), TAKEN.format("false")),
    "rows are written over": (USED.format("round > 0"), USED.format("false")),
    "sums are written over": ("pair_sync(mine);", "pair_arrive(mine);"),
    "sums are read too early": ("pair_sync(both);", "pair_arrive(both);"),
    "weights are told too early": ("__syncwarp();\n            " + TOLD, TOLD),
    "weights are let go too early": ("if (b == BLOCKS - 1) {", "if (b == 0) {"),
    "the wrong phase": (PHASE.format("") + FADES, PHASE.format(" + 1") + FADES),
    "the mask is shifted": (NODE + BITS, NODE + " + 1" + BITS),
    "the mask comes a tile late": ("w.now.prefix / TILE;", "w.now.prefix / TILE + 1;"),
    "sums do not fade": ("sum[half] *= fade[half];", ""),
    "the base never rises": ("if (__any_sync(~0u, rises)) {", "if (false) {"),
    "both ask for the same half": ("/ TURNS * ASKED; }", "/ TURNS * 0; }"),
    "some outputs do not fade": (
        "if ((fades >> (b * 8) & 255) == 0) continue;",
        "if (b) continue;",
    ),
    "parts do not fade": ("sum += part.y * exp2_fast(part.x - from);", "sum += part.y;"),
    "a zero row is not written": ("if (present != ALL) {", "if (false) {"),
    "sums are let go before they are read": (
        SUMS,
        SUMS.removesuffix(LET_GO).replace("(both);\n", f"(both);\n{LET_GO}"),
    ),
    "fades are told before they are there": (FADED + TELL, TELL + FADED),
    "a row's parts are added before they are there": (
        "__syncthreads();\n        if (group > 0) return;",
        "if (group > 0) return;",
    ),
}

# Each cannot go on, and the machine says why.
STUCK = {
    "deadlock: thread": ("pair_arrive(others);\n    u32 q", "u32 q"),
    "is not aligned": ("+ key_offset, k[LOOK][4]", "+ key_offset + 2, k[LOOK][4]"),
    "no barrier was made": ("(&s.used[stage]));", "(&s.used[stage]) + 4096);"),
    "more arrivals at a barrier": ("(&s.loaded[i]), ARRIVALS);", "(&s.loaded[i]), 0);"),
    "lanes part": ("if (__any_sync(~0u, rises)) {", "if (rises) {"),
    "is outside": ("s.weights[slot]) + weight_offset", "s.weights[slot]) + 200000"),
}

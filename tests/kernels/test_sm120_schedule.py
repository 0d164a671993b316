"""The schedule and the mask of sm120 in Python, against counting one by one.

Each part of the model has the lines of the CUDA source that it says again above it.  The first test
fails where the source says something else; then the model has to follow.
"""

from __future__ import annotations

import random
import re
from collections import namedtuple

import numpy as np
import pytest

from verify_attn.kernels import sm120
from verify_attn.perf.axes import Cell
from verify_attn.perf.projection_chips import CHIPS
from verify_attn.perf.projection_work import DESIGNS, spread
from verify_attn.tree import pack_words

U32 = (1 << 32) - 1
MODELLED: list[str] = []


def says(lines):
    """Decorator: the lines of the source that the decorated part stands for."""

    def mark(part):
        MODELLED.extend(lines.replace("\\\n", "").strip().splitlines())
        return part

    return mark


def constant(name):
    found = re.search(rf"\b{name} = (\d+)[,;]", sm120.source())
    assert found, f"no constant {name} in the source"
    return int(found.group(1))


ROWS, TILE, SLACK = constant("ROWS"), constant("TILE"), constant("SLACK")
LEAST_TILES, VALUE_WARPS, SCORE_WARPS = map(constant, ("LEAST_TILES", "VALUE_WARPS", "SCORE_WARPS"))
AHEAD, ASKERS = sm120.STAGES - 1, constant("ASKERS")
TURNS, ASKED = VALUE_WARPS // ASKERS, TILE // ASKERS


# -- the model -------------------------------------------------------------------------------------


class Request(namedtuple("Request", "prefix first nodes")):
    @says("__device__ int units(int heads) const { return (nodes * heads + ROWS - 1) / ROWS; }")
    def units(self, heads):
        return (self.nodes * heads + ROWS - 1) // ROWS

    @says("__device__ int tiles() const { return (prefix + nodes + TILE - 1) / TILE; }")
    def tiles(self):
        return (self.prefix + self.nodes + TILE - 1) // TILE


class Batch(namedtuple("Batch", "requests heads blocks")):
    def before(self, end):
        """Tiles and units of the requests before ``end``."""
        units = [r.units(self.heads) for r in self.requests[:end]]
        tiles = [u * r.tiles() for u, r in zip(units, self.requests, strict=False)]
        return sum(tiles), sum(units)


class Deal:
    @says(r"""
        u32 most = total / LEAST_TILES;
        blocks = most < 1 ? 1 : most < u32(p.blocks) ? most : p.blocks;
        if (p.requests == 1 && units <= blocks && units > 0) {
            tiles = total / units;
            u32 fit = blocks / units;
            if ((blocks - fit * units) * tiles <= SLACK * fit * blocks) \
                parts = fit, blocks = fit * units;
        each = total / blocks;
        more = total - each * blocks;
    """)
    def __init__(self, batch, total, units):
        self.blocks = max(1, min(total // LEAST_TILES, batch.blocks))
        self.parts = 0
        if len(batch.requests) == 1 and 0 < units <= self.blocks:
            self.tiles, fit = total // units, self.blocks // units
            if (self.blocks - fit * units) * self.tiles <= SLACK * fit * self.blocks:
                self.parts, self.blocks = fit, fit * units
        self.each = total // self.blocks
        self.more = total - self.each * self.blocks

    @says("""
        if (parts > 0) return block / parts * tiles + block % parts * tiles / parts;
        return block * each + (block < more ? block : more);
    """)
    def first(self, block):
        if self.parts:
            part = block % self.parts * self.tiles // self.parts
            return block // self.parts * self.tiles + part
        return block * self.each + min(block, self.more)

    @says("""
        if (parts > 0) return int(tile / tiles * parts + ((tile % tiles + 1) * parts - 1) / tiles);
        u32 bound = more * (each + 1);
        return int(tile < bound ? tile / (each + 1) : more + (tile - bound) / each);
    """)
    def block_of(self, tile):
        if self.parts:
            within = ((tile % self.tiles + 1) * self.parts - 1) // self.tiles
            return tile // self.tiles * self.parts + within
        bound = self.more * (self.each + 1)
        if tile < bound:
            return tile // (self.each + 1)
        return self.more + (tile - bound) // self.each


Segment = namedtuple("Segment", "request part unit tile end")


@says("""
    w.left = int(deal.first(blockIdx.x + 1) - low);
        if (low < tiles) break;
        low -= tiles, w.unit += parts;
    w.part = int(low / w.now.tiles());
    w.unit += w.part;
    w.tile = int(low % w.now.tiles());
    int here = tiles - w.tile < w.left ? tiles - w.tile : w.left;
    w.end = w.tile + here;
    w.left -= here;
    w.tile = 0, w.unit++;
    if (++w.part == w.now.units(p.heads)) {
        do w.now = request_of(p, ++w.r);
        while (w.now.nodes == 0);
""")
def walk(batch, deal, block):
    """The segments of a block, in the order of its tiles."""
    low = deal.first(block)
    left = deal.first(block + 1) - low
    r = unit = 0
    while low >= (tiles := batch.before(r + 1)[0] - batch.before(r)[0]):
        low, unit, r = low - tiles, unit + batch.requests[r].units(batch.heads), r + 1
    part, tile = divmod(low, batch.requests[r].tiles())
    unit += part
    while True:
        now = batch.requests[r]
        here = min(now.tiles() - tile, left)
        left -= here
        yield Segment(r, part, unit, tile, tile + here)
        if left == 0:
            return
        tile, unit, part = 0, unit + 1, part + 1
        if part == now.units(batch.heads):
            part, r = 0, r + 1
            while batch.requests[r].nodes == 0:
                r += 1


@says("""
    asking.step(p, segment, warp % TURNS);
    if (warp % TURNS < AHEAD) {
            if ((number + AHEAD) % TURNS == warp % TURNS) {
                asking.step(p, segment, TURNS);
    __device__ __forceinline__ static int part() {\
 return (threadIdx.x / 32 - SCORE_WARPS) / TURNS * ASKED; }
        int position = tile * TILE + part() + threadIdx.x % ASKED, node = position - w.now.prefix;
        number += tiles, tile += tiles;
        while (tile >= end && w.left > 0) {
            int over = tile - end;
            tile = w.tile + over, end = w.end;
        if (tile >= end) return;
""")
def asked(segments, warp):
    """(when, number, segment, tile, rows) of what a value warp asks for; when: before which tile's
    end, -1 at the start; rows: those of the tile that are its own."""
    at, tile, end, number = 0, segments[0].tile, segments[0].end, 0

    def step(tiles):
        nonlocal at, tile, end, number
        number, tile = number + tiles, tile + tiles
        while tile >= end and at + 1 < len(segments):
            over, at = tile - end, at + 1
            tile, end = segments[at].tile + over, segments[at].end

    rows = {warp // TURNS * ASKED + lane % ASKED for lane in range(32)}
    step(warp % TURNS)
    total = sum(s.end - s.tile for s in segments)
    for when in range(-1, total):
        if warp % TURNS < AHEAD if when < 0 else (when + AHEAD) % TURNS == warp % TURNS:
            if tile < end:
                yield when, number, segments[at], tile, rows
            step(TURNS)


@says("""
    int row = w.part * ROWS + threadIdx.x / 32 * 16 + threadIdx.x % 16, own = row / p.heads;
    int word = (node < 0 ? 0 : node) / 32 + threadIdx.x % 32 / 16;
    if (word * 32 >= w.now.nodes) return 0;
    own = own < w.now.nodes ? own : w.now.nodes - 1;
    return reinterpret_cast<const u32*>(p.mask + (w.now.first + own) * p.mask_stride)[word];
""")
def mask_bits(words, own, node, nodes):
    """The two 32-bit words of a row of the mask for a tile whose key 0 is that node."""
    first, halves = max(node, 0) // 32, words.view("<u4")[min(own, nodes - 1)]
    return [0 if w * 32 >= nodes else int(halves[w]) for w in (first, first + 1)]


@says("""
    u32 sees = node < 0 ? low << -node | ((1u << -node) - 1) : __funnelshift_r(low, high, node);
    return nodes - node < TILE ? sees & ((1u << (nodes - node)) - 1) : sees;
""")
def seen(low, high, node, nodes):
    both = high << 32 | low
    sees = low << -node & U32 | (1 << -node) - 1 if node < 0 else both >> node % 32 & U32
    return sees & (1 << nodes - node) - 1 if nodes - node < TILE else sees


# -- what must hold of it --------------------------------------------------------------------------


def test_the_model_says_what_the_source_says():
    source = {" ".join(line.split()) for line in sm120.source().splitlines()}
    missing = [line for line in MODELLED if " ".join(line.split()) not in source]
    assert not missing
    assert (ROWS, TILE) == (sm120.ROWS, sm120.TILE)
    assert SCORE_WARPS + VALUE_WARPS == sm120.WARPS


def random_batch(rng):
    requests, first = [], 0
    for _ in range(rng.choice((1, 1, 2, 5, 12))):
        nodes = rng.choice((0, 1, 8, 33, 64, rng.randint(1, 300)))
        requests.append(Request(rng.choice((0, 16, rng.randint(0, 200), 9_000)), first, nodes))
        first += nodes
    return Batch(tuple(requests), rng.choice((1, 3, 8, 16, 128)), rng.choice((1, 7, 132, 188)))


@pytest.mark.parametrize("seed", range(40))
def test_every_tile_is_dealt_once_and_the_merge_finds_every_segment(seed):
    batch = random_batch(random.Random(seed))
    every, owner = [], []
    for r, one in enumerate(batch.requests):
        for part in range(one.units(batch.heads)):
            every += [(len(owner), r, part, tile) for tile in range(one.tiles())]
            owner.append((r, part))
    total, units = batch.before(len(batch.requests))
    assert (total, units) == (len(every), len(owner))
    if total == 0:
        return  # verify_split and verify_merge return at once
    deal = Deal(batch, total, units)
    most = max(r.units(batch.heads) for r in batch.requests)
    slots, dealt = {}, []
    for block in range(deal.blocks):
        segments = list(walk(batch, deal, block))
        mine = [(s.unit, s.request, s.part, t) for s in segments for t in range(s.tile, s.end)]
        assert mine
        dealt += mine
        for s in segments:
            assert block + s.unit not in slots
            slots[block + s.unit] = s.unit
        of_warps = sorted(
            (number, row, (s.unit, s.request, s.part, tile), when)
            for warp in range(VALUE_WARPS) for when, number, s, tile, rows in asked(segments, warp)
            for row in rows
        )  # fmt: skip
        assert of_warps == [
            (n, row, what, max(n - AHEAD, -1)) for n, what in enumerate(mine) for row in range(TILE)
        ]
    assert dealt == every
    assert max(slots) < batch.blocks + most * len(batch.requests)  # slots, as Sm120.plan makes them
    for unit, (r, part) in enumerate(owner):
        before = batch.before(r)[0] + part * batch.requests[r].tiles()
        first = deal.block_of(before)
        last = deal.block_of(before + batch.requests[r].tiles() - 1)
        assert [slots.get(b + unit) for b in range(first, last + 1)] == [unit] * (last - first + 1)
        assert list(slots.values()).count(unit) == last - first + 1


@pytest.mark.parametrize("seed", range(20))
def test_a_tile_shows_a_row_the_prefix_and_what_the_mask_has(seed):
    rng = np.random.default_rng(seed)
    nodes, prefix = int(rng.integers(1, 301)), int(rng.integers(0, 70))
    visible = rng.random((nodes, nodes + 20)) < 0.5  # bits behind the last node count for nothing
    visible[rng.random(nodes) < 0.1] = False  # padding: the prefix alone
    words = pack_words(visible)
    for tile in range(prefix // TILE, (prefix + nodes + TILE - 1) // TILE):
        node = tile * TILE - prefix
        keys = np.arange(node, node + TILE)
        inside = (keys >= 0) & (keys < nodes)
        for own in range(nodes):
            shown = seen(*mask_bits(words, own, node, nodes), node, nodes)
            wanted = np.where(inside, visible[own, np.clip(keys, 0, nodes - 1)], keys < 0)
            assert [shown >> i & 1 for i in range(TILE)] == wanted.astype(int).tolist()


@pytest.mark.parametrize("gpu", ["h200", "rtx-pro-6000"])
def test_the_projection_deals_tiles_out_as_the_kernel_does(gpu):
    for context in (0, 100, 1_427, 31_952, 184_728):
        for nodes, heads, requests in ((1, 1, 1), (8, 8, 1), (33, 8, 1), (64, 16, 1), (65, 8, 7)):
            cell = Cell(context=context, nodes=nodes, heads=heads, requests=requests)
            asks = [Request(prefix, i * nodes, nodes) for i, prefix in enumerate(cell.prefix_lens)]
            batch = Batch(tuple(asks), heads, CHIPS[gpu].sms)
            total, units = batch.before(requests)
            deal = Deal(batch, total, units)
            longest = max(deal.first(b + 1) - deal.first(b) for b in range(deal.blocks))
            found = spread(DESIGNS["sm120"], cell, CHIPS[gpu])
            assert (found.tiles, found.blocks, found.longest) == (total, deal.blocks, longest), cell

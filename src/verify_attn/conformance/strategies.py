"""Hypothesis strategies: cases that shrink to something a person can read.

What is drawn are words and small numbers: lengths, parents, the name of a layout, a data seed.
Tensors are filled from the seed afterwards, so shrinking never touches them.
"""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st

from verify_attn.assemble import KV_DTYPES, LAYOUTS, POOL_LAYOUTS, Q_LAYOUTS, TABLE_LAYOUTS
from verify_attn.generate import DTYPES, Case
from verify_attn.geometry import preset
from verify_attn.kernels.base import Capabilities

PAGE_SIZES = (1, 2, 3, 16, 17, 64, 256)
EDGES = tuple(sorted({t + d for t in (16, 32, 64, 128, 256) for d in (-1, 0, 1)}))
SIZES = (1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129)
VALUES = ("planted", "planted", "planted", "planted", "equal", "large", "dominant", "low")
Geometries = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True)
class Profile:
    """What a machine can bear.

    ``geometries``    (name of a preset, head counts)
    ``others``        the same, for a kernel that takes none of those (`conformance.fitting`)
    ``longest``       prefix tokens of an ordinary case
    ``very_long``     prefix tokens of a rare one; (0, 0): none
    ``most_nodes``    of one request
    ``rows``          nodes * heads of a case
    ``tiles``         (1 head, 64 nodes, 64 tokens) tiles of a case; rows and tiles bound its cost
    """

    name: str
    geometries: Geometries
    dtypes: tuple[str, ...]
    longest: int
    very_long: tuple[int, int]
    most_nodes: int
    rows: int
    tiles: int
    others: Geometries = ()


# The Triton interpreter takes milliseconds a tile.
CPU = Profile(
    "cpu", (("tiny", (4, 1, 3, 5, 17)), ("small", (8, 2, 12))), ("float32", "float16"),
    longest=4096, very_long=(0, 0), most_nodes=600, rows=1200, tiles=60,
    others=(("kimi-k2.6-tp8", (1, 2, 3, 8)),),
)  # fmt: skip
GPU = Profile(
    "gpu",
    (("kimi-k2.6-tp8", (8, 8, 8, 1, 3, 16, 64, 128)), ("tiny", (4, 5)), ("small", (8,))),
    ("bfloat16", "float16", "float32"),
    longest=9000, very_long=(100_000, 200_000), most_nodes=1025, rows=40_000, tiles=20_000,
)  # fmt: skip


def trees(most_nodes: int, chains_only: bool = False) -> st.SearchStrategy[str]:
    """A tree of a case: explicit parents where few, a name and a seed where many."""
    sizes = st.sampled_from([s for s in SIZES if s <= most_nodes])
    many = st.integers(min(66, most_nodes), most_nodes)
    size = st.one_of(st.integers(1, min(9, most_nodes)), sizes, sizes, many)
    if chains_only:
        return size.map(lambda n: f"chain:{n}")
    seeds = st.integers(0, 999)
    whole = st.one_of(
        _parents(min(9, most_nodes)),
        st.builds(lambda kind, n: f"{kind}:{n}", st.sampled_from(("chain", "star", "comb")), size),
        st.builds(lambda n, seed: f"random:{n}:{seed}", size, seeds),
        st.builds(lambda n, seed: f"ddtree:{n - 1}:{seed}", size, seeds),
        st.builds(lambda n: f"padding:{n}", st.integers(1, min(3, most_nodes))),
    )
    padding = st.sampled_from(("", "", "", "", "", "+1", "+3"))
    return st.builds(lambda tree, padded: tree + padded, whole, padding)


@st.composite
def _parents(draw: st.DrawFn, most_nodes: int) -> str:
    nodes = draw(st.integers(1, most_nodes))
    parents = [-1, *(draw(st.integers(0, i - 1)) for i in range(1, nodes))]
    return str(parents).replace(" ", "")


@st.composite
def cases(draw: st.DrawFn, profile: Profile, kernel: Capabilities) -> Case:
    """Any case that the machine can bear and the kernel declares."""
    most_nodes = min(profile.most_nodes, kernel.max_nodes or profile.most_nodes)
    very_long = profile.very_long[1] > 0 and draw(st.integers(0, 24)) == 24
    count = draw(st.one_of(st.integers(1, 3), st.integers(1, 3 if very_long else 16)))
    name, heads = draw(st.sampled_from(profile.geometries))
    count = min(count, max(1, profile.tiles // min(heads)))
    fitting = [h for h in heads if h * count <= profile.tiles] or [min(heads)]
    heads_here = draw(st.sampled_from(fitting))
    page_size = draw(st.sampled_from(page_sizes_of(kernel)))
    # What one request leaves of the rows and tiles, the next may use.
    rows, tiles = profile.rows // heads_here, profile.tiles // heads_here
    lengths = st.one_of(
        st.integers(0, 3), st.sampled_from(EDGES), st.integers(0, 300),
        st.integers(257, profile.longest),
    )  # fmt: skip
    requests = []
    for index in range(count):
        if very_long and index == 0:
            length = draw(st.integers(*profile.very_long))
        else:
            length = draw(lengths)
        others = count - 1 - index
        most = max(1, min(65 if very_long else most_nodes, rows - others))
        shape = draw(trees(most, not kernel.tree_mask))
        if _nodes(shape) > most:
            shape = shape.partition("+")[0]  # no room for its padding rows
        nodes = _nodes(shape)
        blocks = -(-nodes // 64)
        if not (very_long and index == 0):
            length = min(length, max(64 * (tiles - others) // blocks, 66))
        ends = draw(st.sampled_from(("anywhere",) * 4 + ("prefix", "tree")))
        if ends != "anywhere":  # the prefix, or the tree, ends where a page does
            over = (length if ends == "prefix" else length + nodes) % page_size
            length = length - over if length >= over else length - over + page_size
        rows, tiles = rows - nodes, tiles - blocks * -(-length // 64)
        requests.append((length, shape))
    first = draw(st.integers(0, count - 1))  # the large ones are not always the first
    requests = requests[first:] + requests[:first]
    room = (kernel.max_nodes or 1 << 20) - max(_nodes(shape) for _, shape in requests)

    return Case(
        requests=tuple(requests),
        geometry=with_heads(name, heads_here),
        dtype=draw(st.sampled_from(dtypes_of(profile, kernel))),
        page_size=page_size,
        layout=draw(st.sampled_from(LAYOUTS)),
        shared_pages=draw(st.sampled_from((0, 0, 1, 5))) if count > 1 else 0,
        tail_rows=draw(st.sampled_from((0, 0, 1, 7))),
        q=draw(st.sampled_from(Q_LAYOUTS)),
        pool=draw(st.sampled_from(POOL_LAYOUTS)),
        node_kv=draw(st.booleans()),
        slack=draw(st.sampled_from((0, 0, 1, 300))),
        node_slack=draw(st.sampled_from([s for s in (0, 0, 1, 64) if s <= max(room, 0)])),
        tables=draw(st.sampled_from(TABLE_LAYOUTS)),
        host_copies=draw(st.sampled_from((True, True, True, False))),
        values=draw(st.sampled_from(VALUES)),
        kv_dtype=draw(st.sampled_from(kv_dtypes_of(kernel))),
        seed=draw(st.integers(0, 2**16)),
    )


def with_heads(name: str, heads: int) -> str:
    """A case's geometry: the preset's name alone where it has so many heads."""
    return name if heads == preset(name).heads else f"{name}/{heads}"


def dtypes_of(profile: Profile, kernel: Capabilities) -> list[str]:
    """Of q: what machine and kernel have in common, else the machine's."""
    able = [d for d in profile.dtypes if kernel.dtypes is None or DTYPES[d] in kernel.dtypes]
    return able or list(profile.dtypes)


def page_sizes_of(kernel: Capabilities) -> list[int]:
    """Of the usual ones those that the kernel declares, else its own."""
    able = [p for p in PAGE_SIZES if kernel.page_sizes is None or p in kernel.page_sizes]
    return able or sorted(kernel.page_sizes or PAGE_SIZES)


def kv_dtypes_of(kernel: Capabilities) -> list[str]:
    """Of the pool: q's own dtype, and what else the kernel declares."""
    if kernel.kv_dtypes is None:
        return [""]
    own = any(dtype in DTYPES.values() for dtype in kernel.kv_dtypes)
    narrow = [name for name, dtype in KV_DTYPES.items() if dtype in kernel.kv_dtypes]
    return ["", "", "", *narrow] if own else narrow or [""]


def _nodes(tree: str) -> int:
    tree, _, padding = tree.partition("+")
    if tree.startswith("["):
        nodes = tree.count(",") + 1
    else:
        nodes = int(tree.split(":")[1]) + tree.startswith("ddtree")
    return nodes + int(padding or 0)

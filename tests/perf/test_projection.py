"""Times projected to another GPU: what is carried over, what bounds them, what is refused."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.perf.projected_runs import CELLS, FIXED_MS, made_up, record
from verify_attn.hardware import GPUS, sheet_of
from verify_attn.perf.axes import Cell
from verify_attn.perf.projection import Projected, Projection, ProjectionError
from verify_attn.perf.projection_chips import CHIPS
from verify_attn.perf.projection_work import DESIGNS, Speed, needed_s, spread
from verify_attn.perf.roofline import Rates, limit, work_of

TARGETS = [name for name, chip in CHIPS.items() if chip.sustained]
LONG = {n: Cell(context=184_728, nodes=n) for n in (8, 32, 64)}


def project(cell: Cell, gpu: str = "rtx-pro-6000", **values) -> Projected:
    found = Projection.from_record(record(**values), gpu).project("sm120", cell)
    assert isinstance(found, Projected)
    return found


class TestWhatIsProjected:
    @pytest.mark.parametrize("gpu", TARGETS)
    @pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.id)
    def test_no_end_is_faster_than_the_data_sheet_allows(self, cell: Cell, gpu: str) -> None:
        sheet = GPUS[gpu]
        floor = limit(work_of(cell.case()), Rates(sheet.gb_per_s, sheet.tflops, "")).seconds * 1e3
        found = project(cell, gpu)
        assert floor < found.low_ms <= found.ms <= found.high_ms

    def test_the_memory_binds_with_few_nodes_and_the_tensor_cores_with_many(self) -> None:
        assert project(LONG[8]).binds == "memory"
        assert project(LONG[32]).binds == project(LONG[64]).binds == "tensor cores"

    def test_on_hopper_shared_memory_binds_since_its_tensor_cores_are_faster(self) -> None:
        found = project(LONG[64])
        assert found.source_binds == "shared memory"
        assert found.needs_ms["shared memory"] < 0.6 * found.needs_ms["tensor cores"]

    def test_a_memory_bound_time_grows_as_the_memory_rates_do(self) -> None:
        """Both reach the same share of their sheet, so the sheets' ratio is all there is where
        nothing is lost; a slow memory here, so that nothing else binds on either."""
        found = project(LONG[8], ms=lambda cell: made_up(cell) / 100, gb_per_s=3000.0)
        there = needed_s(
            DESIGNS["sm120"], LONG[8], work_of(LONG[8].case()), CHIPS["h200"],
            Speed(3000, 1.98e9, 2576, 5500),
        )  # fmt: skip
        assert (found.source_binds, found.binds) == ("memory", "memory")
        assert found.efficiency == 1
        grown = (found.ms - found.fixed_ms) / (there["memory"] * 1e3)
        assert grown == pytest.approx(4800 / 1792, rel=1e-6)

    def test_what_was_lost_is_lost_again_in_clocks_a_tile(self) -> None:
        """Between the ends; at the slow one it is the same share, at the fast one none."""
        found, hopper, card = project(LONG[64]), CHIPS["h200"], CHIPS["rtx-pro-6000"]
        rest, longest = found.source_ms - found.fixed_ms, found.needs_ms["tensor cores"]
        before = spread(DESIGNS["sm120"], LONG[64], hopper).longest
        clocks = rest * (1 - found.efficiency) * 1980 / before
        lost = clocks * found.longest / (763 / 989.5 * card.boost_mhz)
        assert found.ms == pytest.approx(found.fixed_ms + longest + lost)
        # The clocks at the ends differ, and so does the rate of mma.sync there.
        assert found.high_ms > found.fixed_ms + longest / found.efficiency
        at_best = longest * 763 / 989.5 / 0.923
        assert found.low_ms == pytest.approx(found.fixed_ms + at_best)

    def test_the_slow_end_takes_the_worst_of_what_may_have_held_it_up(self) -> None:
        """With two row tiles the H200's shared memory needs longest, its memory more than half as
        long; were it the memory, the time grows as its rates do, at the slow end's share."""
        cell = LONG[8].changed(heads=16)
        found = project(cell, cells=[*CELLS, cell])
        rest = found.source_ms - found.fixed_ms
        assert found.source_binds == "shared memory"
        assert found.high_ms == pytest.approx(1.5 * FIXED_MS + rest * 4306 / (0.8 * 1792), rel=1e-6)

    def test_what_does_not_grow_with_the_context_is_carried_over_in_seconds(self) -> None:
        found = project(LONG[8])
        assert found.fixed_ms == pytest.approx(FIXED_MS, rel=1e-6)
        dearer = project(LONG[8], ms=lambda cell: made_up(cell) + 0.1)
        assert dearer.fixed_ms - found.fixed_ms == pytest.approx(0.1)
        assert dearer.ms - found.ms == pytest.approx(0.1, rel=1e-6)

    def test_cells_of_too_few_contexts_take_the_fixed_cost_of_the_others(self) -> None:
        lone = Cell(nodes=64, page_size=16)
        found = project(lone, cells=[*CELLS, lone])
        assert found.fixed_ms == pytest.approx(FIXED_MS, rel=1e-6)

    def test_without_contexts_none_is_told_apart(self) -> None:
        assert project(LONG[8], cells=[LONG[8]]).fixed_ms == 0

    def test_a_better_kernel_is_projected_to_be_better(self) -> None:
        slower = project(LONG[32], ms=lambda cell: 2 * made_up(cell))
        faster = project(LONG[32])
        assert slower.high_ms == pytest.approx(2 * faster.high_ms)
        assert faster.ms < slower.ms < 2 * faster.ms  # what the card needs stays
        assert slower.efficiency == pytest.approx(faster.efficiency / 2)

    def test_nothing_is_carried_over_above_what_the_limits_say(self) -> None:
        """A time below the model's own limits is no efficiency of more than 1."""
        found = project(LONG[32], ms=lambda cell: made_up(cell) / 100)
        assert found.efficiency == 1
        assert found.ms >= max(found.needs_ms.values())

    def test_a_hotter_card_is_slower(self) -> None:
        assert project(LONG[64], "rtx-pro-6000-max-q").ms > project(LONG[64]).ms
        assert project(LONG[8], "rtx-pro-6000-server").ms > project(LONG[8]).ms

    def test_the_measured_share_of_the_tensor_rate_stays_within_what_is_public(self) -> None:
        def share(tflops: float) -> float:
            made = Projection.from_record(record(tflops=tflops), "rtx-pro-6000")
            return next(a.central for a in made.assumptions if a.id == "target-sustained")

        assert share(763) == pytest.approx(763 / 989.5)
        assert share(989) == 0.83
        assert share(300) == 0.695

    @settings(deadline=None, max_examples=40)
    @given(
        st.integers(0, 300_000), st.integers(1, 300), st.sampled_from([1, 8, 16, 64]),
        st.integers(1, 4), st.floats(1e-3, 1e3), st.sampled_from(TARGETS),
    )  # fmt: skip
    def test_any_cell_has_an_ordered_range(self, context, nodes, heads, requests, ms, gpu) -> None:
        cell = Cell(context=context, nodes=nodes, heads=heads, requests=requests)
        found = project(cell, gpu, cells=[cell], ms=lambda cell: ms)
        assert 0 < found.low_ms <= found.ms <= found.high_ms
        assert 0 < found.efficiency <= 1
        assert found.source_ms == pytest.approx(ms)


class TestSpread:
    design, card, hopper = DESIGNS["sm120"], CHIPS["rtx-pro-6000"], CHIPS["h200"]

    def test_long_contexts_fill_every_multiprocessor_evenly(self) -> None:
        over = spread(self.design, LONG[64], self.card)
        assert (over.row_tiles, over.blocks, over.waves) == (8, 188, 1)
        assert over.tiles == 8 * 11_550  # 184,792 tokens in sixteens
        assert over.longest * over.blocks < over.tiles * 1.01

    def test_tiny_ones_leave_some_idle(self) -> None:
        over = spread(self.design, Cell(context=24, nodes=8), self.card)
        assert (over.tiles, over.blocks, over.longest) == (2, 1, 2)  # three tiles a block at least

    def test_row_tiles_get_their_own_blocks_where_that_costs_little(self) -> None:
        """8 row tiles of 94 tiles: 23 blocks each; four of 188 stay idle."""
        over = spread(self.design, Cell(context=1_427, nodes=64), self.card)
        assert (over.tiles, over.blocks, over.longest) == (752, 184, 5)
        even = spread(self.design, LONG[32], self.card)
        assert (even.blocks, even.longest) == (188, 246)

    def test_requests_and_rows_over_a_tile(self) -> None:
        two = Cell(context=1600, nodes=9, requests=2)
        over = spread(self.design, two, self.card)
        assert over.row_tiles == 2  # 72 rows
        assert over.tiles == 2 * (101 + 7)

    def test_one_block_fits_a_multiprocessor_of_either(self) -> None:
        assert self.design.occupancy("sm_90").limited_by == ("registers",)
        assert self.design.occupancy("sm_90").blocks == self.design.occupancy("sm_120").blocks == 1

    def test_its_shared_memory_is_what_sm_120_allows(self) -> None:
        assert self.design.resources.shared == 101_376

    def test_the_design_is_the_kernels(self) -> None:
        """What the CUDA source and its Python say of tiles and warps."""
        sm120 = pytest.importorskip("verify_attn.kernels.sm120")
        text = sm120.source()
        said = {n: int(v) for n, v in re.findall(r"\b([A-Z_]+) = (\d+)\b", text)}
        pieces = 2 * (512 + 64) // 32
        for line in ("STEPS = WIDTH / 32;", "PIECES = STEPS * 2;", "HELD = (PIECES - 1) / 4;"):
            assert line in text
        assert (said["ROWS"], said["TILE"]) == (self.design.rows, self.design.tokens)
        assert said["LEAST_TILES"] == self.design.least_tiles
        assert said["SLACK"] == self.design.slack_tiles
        assert said["SCORE_WARPS"] == 2 * self.design.key_reads  # each reads half of the dims
        assert said["VALUE_WARPS"] == self.design.weight_reads
        assert said["SCORE_WARPS"] + said["VALUE_WARPS"] == self.design.resources.warps
        assert self.design.query_pieces == said["SCORE_WARPS"] * ((pieces - 1) // 4)
        assert "float4 given[SCORE_WARPS][2][32];" in text  # as many bytes as the tile's scores
        assert sm120.shared_bytes(512, 64) <= self.design.resources.shared

    def test_needs_by_hand(self) -> None:
        """64 rows by 16 tokens: 2 x 64 x 16 x 1,088 operations, 1,024 of them a clock."""
        cell = Cell(context=8, nodes=8)
        needs = needed_s(
            self.design, cell, work_of(cell.case()), self.card, Speed(1000, 1e9, 1024, 2000)
        )
        assert needs["tensor cores"] == pytest.approx(2176e-9)
        tile, values, weights, sums = 16 * 1152, 16 * 1024, 64 * 16 * 2, 64 * 16 * 4
        query = 4 * 8 * 16 * 16 * 2
        assert needs["shared memory"] == pytest.approx(
            (3 * tile + values + 9 * weights + query + 2 * sums) / 128 * 1e-9
        )
        assert needs["memory"] == pytest.approx(work_of(cell.case()).total_bytes / 1e12)
        assert needs["L2"] == pytest.approx(tile / 2e12)

    @pytest.mark.parametrize(("nodes", "walks"), [(8, 1), (32, 1), (64, 2), (40, 1)])
    def test_kv_is_read_again_only_by_row_tiles_that_are_far_out_of_step(
        self, nodes: int, walks: int
    ) -> None:
        """188 blocks over 8 row tiles: half of them start within a range, 106 MB from the others;
        over 5 row tiles it is a fifth, which the L2 keeps."""
        cell = Cell(context=184_728, nodes=nodes)
        work = work_of(cell.case())
        in_step, out_of_step = (
            needed_s(self.design, cell, work, self.card, Speed(1000, 1e9, 1024, 2000, again))
            for again in (False, True)
        )
        more = (walks - 1) * work.kv_bytes / 1e12
        assert out_of_step["memory"] - in_step["memory"] == pytest.approx(more)


class TestAssumptions:
    made = Projection.from_record(record(), "rtx-pro-6000")

    def test_each_has_a_source(self) -> None:
        assert len({a.id for a in self.made.assumptions}) == len(self.made.assumptions)
        assert all(a.text and a.source for a in self.made.assumptions)

    @pytest.mark.parametrize(
        "name", ["target-sustained", "target-memory", "target-l2", "target-mma"]
    )
    def test_the_fast_end_is_no_slower(self, name: str) -> None:
        found = next(a for a in self.made.assumptions if a.id == name)
        assert found.slow <= found.central <= found.fast

    def test_the_sheets_and_the_rates_per_clock_agree(self) -> None:
        for name in TARGETS:
            chip = CHIPS[name]
            sheet = chip.sms * chip.boost_mhz * 1e6 * chip.mma_flops.central / 1e12
            assert sheet == pytest.approx(GPUS[name].tflops, rel=1e-3)

    def test_hopper_is_held_to_mma_sync_and_not_to_wgmma(self) -> None:
        chip = CHIPS["h200"]
        whole = GPUS["h200"].tflops * 1e12 / (chip.sms * chip.boost_mhz * 1e6)
        assert chip.mma_flops.central / whole == pytest.approx(0.63, abs=0.01)

    def test_they_are_in_the_record(self) -> None:
        told = self.made.as_record()
        assert told["mark"] == "projected, not measured"
        assert {a["id"] for a in told["assumptions"]} == {a.id for a in self.made.assumptions}
        assert (told["source"], told["target"]) == ("h200", "rtx-pro-6000")


class TestRefused:
    @pytest.mark.parametrize(
        ("values", "gpu", "told"),
        [
            ({}, "h200", "nothing can be projected to h200"),
            ({}, "b200", "to these it can: rtx-pro-6000"),
            ({"gpu": "NVIDIA L4"}, "rtx-pro-6000", "the record is of NVIDIA L4"),
            ({"gpu": ""}, "rtx-pro-6000", "the record is of no GPU"),
            ({"kernel": "triton-split"}, "rtx-pro-6000", "no time of sm120"),
            ({"cells": []}, "rtx-pro-6000", "no time of sm120"),
            ({"cells": [Cell(dtype="float32")]}, "rtx-pro-6000", "no time of sm120"),
            ({"ms": lambda cell: float("nan")}, "rtx-pro-6000", "run_ms is nan"),
            ({"ms": lambda cell: None}, "rtx-pro-6000", "no time of sm120"),
            ({"gb_per_s": 0}, "rtx-pro-6000", "gb_per_s is 0; it must be a number within"),
            (
                {"gpu": "NVIDIA RTX PRO 6000 Blackwell Server Edition"}, "rtx-pro-6000",
                "it must be bench's, of one of these: h200",
            ),
        ],
    )  # fmt: skip
    def test_records(self, values: dict, gpu: str, told: str) -> None:
        values = {"ms": lambda cell: 1.0} | values
        with pytest.raises(ProjectionError, match=told):
            Projection.from_record(record(**values), gpu)

    def test_a_case_that_is_none(self) -> None:
        broken = record()
        del broken["cases"][0]["parameters"]["nodes"]
        with pytest.raises(ProjectionError, match=r"the record has no cases\[0\].parameters.nodes"):
            Projection.from_record(broken, "rtx-pro-6000")

    def test_failed_cases_are_no_times(self) -> None:
        mixed = record()
        mixed["cases"][0]["status"] = "inconclusive"
        made = Projection.from_record(mixed, "rtx-pro-6000")
        assert made.project("sm120", CELLS[0]) == "not measured on h200"

    def test_other_kernels(self) -> None:
        made = Projection.from_record(record(), "rtx-pro-6000")
        told = made.project("triton-split", CELLS[0])
        assert told == "triton-split does not do the same on both architectures"


@pytest.mark.parametrize(
    ("driver", "name"),
    [
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtx-pro-6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000-server"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "rtx-pro-6000-max-q"),
    ],
)
def test_each_edition_has_its_own_sheet(driver: str, name: str) -> None:
    assert sheet_of(driver) == GPUS[name]
    assert name in TARGETS

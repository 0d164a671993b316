"""Floors: between their points, beyond them, and what is wrong with a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verify_attn.live.floors import Floor, FloorError, read_floors


def floor(*points: tuple[int, float], unit: str = "tok/s") -> Floor:
    return Floor("f", "*", unit, "sustained", 1, points)


def test_between_two_points_the_time_of_a_token_is_interpolated() -> None:
    """10 ms at 1,000 tokens, 110 ms at 11,000: 1 ms more every 100."""
    given = floor((1000, 100.0), (11_000, 1000 / 110))
    assert given.at(6000) == pytest.approx(1000 / 60)
    assert given.at(1000) == 100.0
    assert given.at(11_000) == pytest.approx(1000 / 110)


def test_a_ratio_is_interpolated_itself() -> None:
    given = floor((1000, 1.0), (3000, 0.5), unit="of shortest context")
    assert given.at(2000) == pytest.approx(0.75)


def test_a_tenth_beyond_and_no_more() -> None:
    given = floor((1000, 100.0), (4000, 50.0))
    assert given.at(901) == given.at(1000) == 100.0
    assert given.at(4399) == 50.0
    assert given.at(899) is None
    assert given.at(4401) is None
    assert floor((1000, 5.0)).at(1050) == 5.0


@given(
    st.lists(
        st.tuples(st.integers(1, 10**6), st.floats(0.1, 1e4)),
        min_size=1, max_size=6, unique_by=lambda p: p[0],
    ),
    st.floats(0, 1),
    st.sampled_from(["tok/s", "of saved run"]),
)  # fmt: skip
def test_it_stays_between_its_neighbours(
    points: list[tuple[int, float]], part: float, unit: str
) -> None:
    points.sort()
    at = round(points[0][0] + part * (points[-1][0] - points[0][0]))
    value = floor(*points, unit=unit).at(at)
    assert value is not None
    left = max(p for p in points if p[0] <= at)
    right = min(p for p in points if p[0] >= at)
    low, high = sorted((left[1], right[1]))
    assert low * (1 - 1e-9) <= value <= high * (1 + 1e-9)


def test_whom_it_is_for() -> None:
    given = Floor("f", "*kimi-k2*", "tok/s", "sustained", 4, ((1, 1.0),))
    assert given.holds_for("moonshotai/Kimi-K2.6", 4)
    assert not given.holds_for("moonshotai/Kimi-K2.6", 1)
    assert not given.holds_for("deepseek-v3", 4)


GOOD = """
schema_version = 1

[[floor]]
name = "after"
model = "*kimi*"
rate = "worst window"
concurrency = 2
points = [[1427, 118.6], [184728, 0.7]]

[[floor]]
points = [[1000, 1]]
"""


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "floors.toml"
    path.write_text(GOOD)
    first, second = read_floors(path)
    expected = ((1427, 118.6), (184_728, 0.7))
    assert first == Floor("after", "*kimi*", "tok/s", "worst window", 2, expected)
    assert second == Floor("floor 2", "*", "tok/s", "sustained", 1, ((1000, 1.0),))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("points = [[1000", "point = [[1000", "unknown key 'point' (did you mean 'points'?)"),
        ("name =", "nmae =", "unknown key 'nmae' (did you mean 'name'?)"),
        ("model =", "xyz =", "unknown key 'xyz'; allowed are name, model, unit, rate"),
        ('"worst window"', '"worst"', "rate is 'worst'; allowed are 'sustained', 'worst window'"),
        ("concurrency = 2", "concurrency = 0", "concurrency is 0; it must be a whole number >= 1"),
        ("concurrency = 2", "concurrency = true", "concurrency is True"),
        ("concurrency = 2", 'unit = "tps"', "unit is 'tps'; allowed are 'tok/s'"),
        ("concurrency = 2", "name2 = 1", "unknown key 'name2' (did you mean 'name'?)"),
        ("[1427, 118.6]", "[1427, -1]", "the floor at 1427 is -1; it must be a number above 0"),
        ("[1427, 118.6]", "[1427, nan]", "the floor at 1427 is nan"),
        ("[1427, 118.6]", "[1427]", "points has [1427]; points must be a list"),
        ("[1427, 118.6]", "[14.5, 1]", "context 14.5; it must be a whole number"),
        ("[1427, 118.6]", "[200000, 1]", "context 184728 comes after 200000"),
        ("points = [[1000, 1]]", "", "floor 2: points are missing"),
        ("points = [[1000, 1]]", "points = []", "floor 2: points is []"),
        ("schema_version = 1", "schema_version = 2", "schema_version is 2; it must be 1"),
        ("schema_version = 1", "", "schema_version is missing"),
        ("schema_version = 1", "schema_version = 1\nfloors = 1", "(did you mean 'floor'?)"),
        ('model = "*kimi*"', "model = 3", "model is 3; it must be a string"),
        ("[[floor]]", "[floor", "floors file"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, old: str, new: str, said: str) -> None:
    path = tmp_path / "floors.toml"
    assert old in GOOD
    path.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(FloorError) as wrong:
        read_floors(path)
    assert said in str(wrong.value)
    assert str(path) in str(wrong.value)


def test_no_file_and_no_floor(tmp_path: Path) -> None:
    with pytest.raises(FloorError, match=r"none\.toml"):
        read_floors(tmp_path / "none.toml")
    (tmp_path / "empty.toml").write_text("schema_version = 1\n")
    with pytest.raises(FloorError, match=r"no .*floor.* table"):
        read_floors(tmp_path / "empty.toml")


def test_a_ratio_in_percent_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "floors.toml"
    path.write_text(
        'schema_version = 1\n[[floor]]\nunit = "of shortest context"\npoints = [[1000, 80]]\n'
    )
    with pytest.raises(FloorError, match=r"80 of shortest context; a ratio is at most 1\.5"):
        read_floors(path)

"""Presets of real models and the rules of a geometry."""

import math
import re

import pytest

from verify_attn.geometry import (
    PRESETS,
    AttentionGeometry,
    GeometryError,
    mla_softmax_scale,
    preset,
    yarn_mscale,
)


@pytest.mark.parametrize(("model", "heads"), [("kimi-k2.6", 64), ("deepseek-v3", 128)])
@pytest.mark.parametrize("tensor_parallel", [1, 2, 4, 8, 16])
def test_heads_are_split_over_ranks_and_the_latent_is_not(
    model: str, heads: int, tensor_parallel: int
) -> None:
    geometry = preset(f"{model}-tp{tensor_parallel}")
    assert geometry.heads == heads // tensor_parallel
    assert geometry.heads * tensor_parallel == heads
    assert (geometry.latent_dim, geometry.rope_dim, geometry.qk_dim) == (512, 64, 576)
    assert geometry.name == f"{model}-tp{tensor_parallel}"


@pytest.mark.parametrize(("model", "scale"), [("kimi-k2.6", 0.1446796), ("deepseek-v3", 0.1352338)])
def test_softmax_scale_of_the_models(model: str, scale: float) -> None:
    """Seven digits; without YaRN's mscale it would be 0.0721688, half as much."""
    for name, geometry in PRESETS.items():
        if name.startswith(model):
            assert abs(geometry.softmax_scale - scale) < 5e-8


def test_softmax_scale_is_made_of_head_width_and_mscale() -> None:
    assert mla_softmax_scale(128, 64) == pytest.approx(192**-0.5)
    assert yarn_mscale(40.0) == pytest.approx(1.368888, abs=5e-7)
    assert yarn_mscale(64.0) == pytest.approx(1.415888, abs=5e-7)
    assert yarn_mscale(64.0, mscale_all_dim=0.5) == pytest.approx(1.207944, abs=5e-7)
    assert yarn_mscale(1.0) == yarn_mscale(0.5) == 1.0  # no context extension
    assert mla_softmax_scale(128, 64, 40.0) == pytest.approx(192**-0.5 * yarn_mscale(40.0) ** 2)


def test_row_bytes() -> None:
    assert preset("deepseek-v3-tp8").row_bytes() == 1152
    assert preset("deepseek-v3-tp8").row_bytes(element_bytes=1) == 576


def test_other_head_counts() -> None:
    base = preset("kimi-k2.6-tp8")
    other = base.with_heads(3)
    assert other.heads == 3
    assert other.name == "kimi-k2.6-tp8-h3"
    assert (other.qk_dim, other.softmax_scale) == (base.qk_dim, base.softmax_scale)
    assert base.heads == 8


@pytest.mark.parametrize("name", ["tiny", "small"])
def test_small_presets_have_a_temperature_too(name: str) -> None:
    """A kernel that forgets mscale must fail on a machine without a GPU as well."""
    geometry = preset(name)
    nope_dim = geometry.latent_dim // 2
    assert geometry.softmax_scale == mla_softmax_scale(nope_dim, geometry.rope_dim, 64.0)
    assert geometry.softmax_scale > 2 * mla_softmax_scale(nope_dim, geometry.rope_dim)


def test_unknown_preset_names_those_there_are() -> None:
    with pytest.raises(GeometryError, match=r"no preset 'kimi'; there are: .*kimi-k2\.6-tp8.*tiny"):
        preset("kimi")


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("heads", 0, "heads is 0; it must lie in 1..128"),
        ("heads", 129, "heads is 129; it must lie in 1..128"),
        ("latent_dim", 0, "latent_dim is 0; it must be at least 1"),
        ("rope_dim", -1, "rope_dim is -1; it must be at least 1"),
        ("softmax_scale", 0.0, "softmax_scale is 0.0; it must be positive and finite"),
        ("softmax_scale", -0.1, "softmax_scale is -0.1; it must be positive and finite"),
        ("softmax_scale", math.inf, "softmax_scale is inf; it must be positive and finite"),
        ("softmax_scale", math.nan, "softmax_scale is nan; it must be positive and finite"),
    ],
)
def test_errors_name_field_value_and_rule(field: str, value: float, rule: str) -> None:
    fields = {"heads": 8, "latent_dim": 512, "rope_dim": 64, "softmax_scale": 0.1, field: value}
    with pytest.raises(GeometryError, match=re.escape(rule)):
        AttentionGeometry(**fields)


def test_the_limits_themselves_are_allowed() -> None:
    assert AttentionGeometry(1, 1, 1, 0.1).qk_dim == 2
    assert preset("deepseek-v3-tp1").heads == 128

"""What each release's limits of gradients mean in `optim`."""

from __future__ import annotations

import pytest

from migrate.generations import AFTER
from optim.errors import UnsupportedError
from tests.test_migrate.arguments_of import arguments_of


@pytest.mark.parametrize(
    ("generation", "keras", "limits"),
    [
        ("keras1", "1.2.2", {"global_clipnorm": 0.5}),
        ("keras2", "2.2.4", {"global_clipnorm": 0.5}),
        ("keras2.3", "2.3.1", {"global_clipnorm": 0.5}),
        ("optimizer_v1", "2.0.8-tf", {"global_clipnorm": 0.5}),
        ("optimizer_v1", "2.1.5-tf", {"global_clipnorm": 0.5}),  # TF 1.8
        ("optimizer_v1", "2.2.4-tf", {"clipnorm": 0.5}),
        ("optimizer_v2", "2.9.0", {"clipnorm": 0.5}),
        ("optimizer", "2.15.0", {"clipnorm": 0.5}),
        ("keras3", "3.8.0", {"clipnorm": 0.5}),
    ],
)
def test_clipnorm_is_global_in_old_keras(generation: str, keras: str, limits: dict[str, float]) -> None:
    found = arguments_of("SGD", {"clipnorm": 0.5, "learning_rate": 0.1}, generation, keras)
    assert {k: v for k, v in found.values.items() if "clip" in k} == limits
    assert not found.reasons


@pytest.mark.parametrize(
    ("versions", "limits"),
    [
        ({"tensorflow": "1.9.0"}, {"global_clipnorm": 0.5}),
        ({"tensorflow": "1.10.1"}, {"clipnorm": 0.5}),
        ({AFTER: "1.10"}, {"clipnorm": 0.5}),
    ],
)
def test_one_keras_took_both_norms(versions: dict[str, str], limits: dict[str, float]) -> None:
    """TF 1.9 to 1.12 say 2.1.6-tf, and 1.9 alone takes one norm over all gradients."""
    config, keras = {"clipnorm": 0.5, "learning_rate": 0.1}, "2.1.6-tf"
    found = arguments_of("SGD", config, "optimizer_v1", keras, **versions)
    assert {k: v for k, v in found.values.items() if "clip" in k} == limits
    assert not found.reasons
    (reason,) = arguments_of("SGD", config, "optimizer_v1", keras).reasons
    assert "--set clipnorm=0.5 or --set global_clipnorm=0.5" in reason


@pytest.mark.parametrize("limit", ["clipnorm", "clipvalue"])
def test_a_limit_of_zero_is_one_from_tf_1_10_on(limit: str) -> None:
    """Run with TF 1.9.0, 1.10.1, 1.12.3 and 1.13.2."""
    config = {limit: 0.0, "learning_rate": 0.1}
    assert limit not in arguments_of("SGD", config, "optimizer_v1", "2.1.6-tf", tensorflow="1.9.0").values
    for keras, told in (("2.1.6-tf", {AFTER: "1.10"}), ("2.2.4-tf", {}), ("2.1.6-tf", {})):
        with pytest.raises(UnsupportedError, match=f"{limit} is 0 .* makes every gradient zero"):
            arguments_of("SGD", config, "optimizer_v1", keras, **told)


def test_a_limit_below_zero_was_none_for_older_releases_alone() -> None:
    """`clipvalue > 0` is asked in Keras 2.2.4; OptimizerV2 of TF 2.4 raises, and it was exact without a limit."""
    config = {"clipvalue": -1.0, "learning_rate": 0.1}
    assert "clipvalue" not in arguments_of("SGD", config, "keras2", "2.2.4").values
    with pytest.raises(UnsupportedError, match=r"clipvalue is -1 .* does not take for none; .*--set clipvalue=none"):
        arguments_of("SGD", config, "optimizer_v2", "2.4.0", tensorflow="2.4")


@pytest.mark.parametrize("rate", [1e300, 10**400, -1e39])
def test_what_float32_cannot_hold_is_refused(rate: float) -> None:
    """It was exact, with steps that are not finite."""
    with pytest.raises(UnsupportedError, match=r"learning_rate = .*, which float32 cannot hold; .*--set learning_rate"):
        arguments_of("SGD", {"learning_rate": rate}, "keras2", "2.2.4")


@pytest.mark.parametrize(
    ("generation", "keras", "tensorflow", "order", "certain"),
    [
        ("keras2", "2.2.4", None, "norm_first", True),
        ("optimizer_v1", "2.2.4-tf", None, "norm_first", True),
        ("optimizer_v2", "2.2.4-tf", None, "norm_first", False),  # of TF 2.0, too, whose fit did not clip
        ("optimizer_v2", "2.3.0-tf", "2.2", "norm_first", True),
        ("optimizer_v2", "2.3.0-tf", "2.1", "norm_first", False),
        ("optimizer_v2", "2.3.0-tf", None, "norm_first", False),
        ("optimizer_v2", "2.4.0", None, "value_first", False),  # TF 2.3 calls its Keras so, too
        ("optimizer_v2", "2.4.0", "2.3", "norm_first", True),
        ("optimizer_v2", "2.4.0", "2.4", "value_first", True),
        ("optimizer_v2", "2.9.0", None, "value_first", True),
        ("optimizer_v2", None, None, "value_first", False),
    ],
)
def test_order_of_two_clippings(
    generation: str, keras: str | None, tensorflow: str | None, order: str, certain: bool
) -> None:
    found = arguments_of("SGD", {"clipnorm": 0.5, "clipvalue": 0.1}, generation, keras, tensorflow=tensorflow)
    assert found.values["clip_order"] == order
    assert bool(found.reasons) is not certain


def test_the_new_optimizer_applies_the_first_clipping_alone() -> None:
    found = arguments_of("SGD", {"clipnorm": 0.5, "clipvalue": 0.1}, "optimizer", "2.15.0")
    assert {k: v for k, v in found.values.items() if "clip" in k} == {"clipnorm": 0.5}
    assert any("clipnorm alone" in w for w in found.warnings)

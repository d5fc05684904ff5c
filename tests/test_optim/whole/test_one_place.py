"""An optimizer is named in three places, and told to people in one."""

from __future__ import annotations

import re

import optim
from tests.places import ROOT

SOURCES = {".py", ".json", ".toml", ".h", ".cc"}


def test_adan_takes_its_rule_its_class_and_its_name() -> None:
    files = [f for package in ("optim", "migrate", "bench", "dtopt_cli") for f in (ROOT / package).rglob("*.*")]
    sources = [f for f in files if f.suffix in SOURCES]
    assert len(sources) > 200
    naming = {str(f.relative_to(ROOT)) for f in sources if re.search(r"Adan|\badan\b", f.read_text(encoding="utf-8"))}
    measured = {"bench/cases/algorithms.py", "bench/peers/abilities.py"}
    """An optimizer is whole without them: they say which of its arguments `-o` takes, and which peers have it."""
    assert naming - measured == {"optim/__init__.py", "optim/optimizers/adan.py", "optim/rules/adan.py"}


def test_a_source_format_takes_its_reader_and_two_lines() -> None:
    sources = [f for package in ("optim", "migrate", "bench", "dtopt_cli") for f in (ROOT / package).rglob("*.py")]
    naming = {str(f.relative_to(ROOT)) for f in sources if "weights_h5" in f.read_text(encoding="utf-8")}
    assert naming == {"migrate/readers/__init__.py", "migrate/readers/weights_h5.py", "dtopt_cli/options.py"}


def test_an_option_takes_its_part_and_the_settings() -> None:
    """Where it acts, a step asks the settings."""
    naming = {f.name for f in (ROOT / "optim").rglob("*.py") if "RateMultipliers" in f.read_text(encoding="utf-8")}
    assert naming == {"rate_multipliers.py", "settings.py"}


def test_every_optimizer_of_a_rule_is_documented() -> None:
    page = (ROOT / "docs" / "optimizers.md").read_text(encoding="utf-8")
    public = [getattr(optim, name) for name in optim.__all__]
    classes = [c for c in public if isinstance(c, type) and issubclass(c, optim.RuleOptimizer)]
    names = {c.__name__ for c in classes} - {"RuleOptimizer"}
    assert {"Adam", "Adan"} <= names
    assert not {name for name in names if f"`{name}`" not in page}

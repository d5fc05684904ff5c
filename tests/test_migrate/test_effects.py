"""Effects of a program are sorted by what they are, and reports call them as before."""

from __future__ import annotations

from migrate.state import CHANGED, LATE_READ, MOVING, Effects

FOUND = {
    "momentum": "a formula",
    CHANGED: "gradients pass through 'double'",
    f"{MOVING}rho": "made of a counter",
    LATE_READ: "read after the step",
}


def test_effects_are_sorted_by_what_they_are() -> None:
    effects = Effects.of(FOUND)
    assert (effects.gradients, effects.late_read) == (FOUND[CHANGED], FOUND[LATE_READ])
    assert effects.settings == {"momentum": "a formula"}
    assert effects.moving == {"rho": "made of a counter"}


def test_reports_call_effects_by_their_subjects() -> None:
    assert Effects.of(FOUND).by_subject() == {key: text for key, text in FOUND.items() if not key.startswith(MOVING)}


def test_a_program_without_effects_is_false() -> None:
    assert not Effects()
    assert Effects.of({"momentum": "a formula"})

"""The questions that are asked of a source: their order is data, and no answer changes another."""

from __future__ import annotations

import typing
from typing import Any

import pytest

from migrate import readers
from migrate.evidence import interpret, steps
from migrate.evidence.known import Known
from migrate.evidence.steps import Step
from migrate.state import Stored
from tests import adversary
from tests.places import CORPUS

GIVEN = [step.gives for step in interpret.STEPS if step.gives]
SAID = ("source", "optimizer_config", "variables", "generation", "overrides")


def test_each_answer_has_one_place() -> None:
    fields = typing.get_type_hints(Known)
    assert set(GIVEN) | set(SAID) == set(fields)
    questions = [step.question for step in interpret.STEPS]
    assert len(set(questions)) == len(questions)
    assert all(question.endswith("?") and len(question) < 80 for question in questions)


@pytest.mark.parametrize("step", [step for step in interpret.STEPS if step.gives], ids=lambda step: step.question)
def test_an_answer_is_of_the_type_of_its_place(step: Step[Known]) -> None:
    annotation = typing.get_type_hints(step.answer).get("return")
    wanted = typing.get_type_hints(Known)[step.gives]
    if annotation is not None and step.gives != "overrides":  # a lambda has no annotation
        assert annotation == wanted


def test_a_check_gives_nothing() -> None:
    for step in interpret.STEPS:
        if not step.gives:
            assert typing.get_type_hints(step.answer).get("return", type(None)) is type(None)


def _known(name: str) -> Known:
    case = adversary.case(CORPUS / name)
    source = str(case.folder / case.source)
    hints = case.hints
    stored = readers.detect(source, str(hints.get("format") or "auto")).read(source, hints.get("generation"), None)
    assert isinstance(stored, Stored)
    config = hints.get("optimizer_config")
    return Known(
        stored,
        None if config is None else interpret.checked_config(config),
        hints.get("variables"),
        hints.get("generation"),
        hints.get("overrides") or {},
    )


@pytest.mark.parametrize(
    "name",
    [
        *(
            "keras224-nadam-mlp",
            "tf20-ftrl-mlp",
            "extra-tfa19-lookahead-adam-ckpt",
            "extra-k224-sgd-clipboth-frozen-h5",
        ),
        *("tf215-new-sgd-gclip-weights-mlp", "extra-keras315-adam-accumulation-keras", "extra-tf215-adam-alone"),
        *("tf115-train-rmsprop-centered-convbn", "extra-k224-adadelta-decay-mlp-npz"),
    ],
)
def test_no_step_changes_an_answer_that_is_there(name: str) -> None:
    known = _known(name)

    def answers() -> dict[str, str]:
        return {key: repr(value) for key, value in vars(known).items()}

    for step in interpret.STEPS:
        before = answers()
        steps.run([step], known)
        after = answers()
        changed = {key for key in before if before[key] != after[key]}
        assert changed <= {step.gives}, step.question


def test_a_step_cannot_use_a_later_answer() -> None:
    known = _known("keras224-nadam-mlp")
    late: list[Any] = [step for step in interpret.STEPS if step.gives == "table"]
    with pytest.raises(AttributeError):
        steps.run(late, known)

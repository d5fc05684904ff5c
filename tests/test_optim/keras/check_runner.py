"""Run the checks of a program of its own process, and print one JSON line for each: its name, and its traceback."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Mapping
from typing import Any

LONG = frozenset(
    {
        "check_a_checkpoint_of_one_device_continues_on_a_mesh_and_back",
        "check_fit_follows_keras",
        "check_a_constant_loss_scale",
        "check_accumulation_with_a_schedule_follows_keras",
        "check_a_model_and_a_copy_continue",
        "check_a_large_variable_steps_as_its_parts_do",
        "check_files_go_from_a_mesh_to_one_device",
        "check_groups_are_restored",
        "check_slots_follow_their_variables",
        "check_slots_on_a_mesh_are_those_of_one_device",
        "check_steps_are_those_of_one_device",
        "check_steps_follow_the_reference",
        "check_tensorflow_can_continue",
    }
)
"""Checks that take most of the time: `make test-all` runs them."""


def run_checks(names: Mapping[str, Any]) -> None:
    """Call each function of a module that is called `check_...`; an error of one leaves the others alone.

    With CHECKS=quick all but the long ones, with CHECKS=long those.
    """
    which = os.environ.get("CHECKS")
    for name, check in list(names.items()):
        if name.startswith("check_") and (which is None or (name in LONG) == (which == "long")):
            try:
                check()
                error = ""
            except Exception:
                error = traceback.format_exc()
            print(json.dumps({"check": name, "error": error}), flush=True)

"""Options on another backend than TensorFlow: taken from an optimizer of `optim`, and refused if they cannot act."""

from __future__ import annotations

import warnings
from typing import Any

from optim import recipe, schedules
from optim.algorithm import Algorithm
from optim.errors import HyperparameterError, UnsupportedError
from optim.groups.algorithm import Composite, Member
from optim.groups.member_state import MemberState
from optim.groups.selection import Selection
from optim.groups.settings import OPTIONS_OF_ALL, GroupsSettings
from optim.hyperparameters import to_number
from optim.keras.backends import Backend, check_rule
from optim.lazy import is_tensor
from optim.native.trace import unknown_function
from optim.optimizers.groups import Groups
from optim.options.loss_scale import DYNAMIC
from optim.options.settings import OPTIONS, Settings

OTHER_NAMES = ("lr", "loss_scale_factor")
"""Options that are other names of one."""


def settings_of(optimizer: Any, state: recipe.State) -> Settings:
    """The options of an optimizer once more, with state of this one. TensorFlow's variables become numbers."""
    old: Settings = optimizer._settings
    options = {name: old.get(name) for name in OPTIONS if name not in OTHER_NAMES}
    rate = old.rate.source
    if is_tensor(rate):
        rate = to_number("learning_rate", rate)
    shared = {"gradients_clip_option": None, "ema_option": None, "learning_rate": rate}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of `decay`, which was warned of before
        settings = Settings(options, shared, old._algorithm, state, old.explicit)  # type: ignore[arg-type]
    settings.weight_decay.variables = list(old.weight_decay.variables)
    return settings


def parts_of(optimizer: Any) -> tuple[recipe.State, Settings, Algorithm]:
    """The state, options and algorithm of an optimizer once more, for one that steps."""
    state: Any = recipe.State()
    if not isinstance(optimizer, Groups):
        settings = settings_of(optimizer, state)
        return state, settings, settings.algorithm()
    members: list[Member] = []
    selection, old = Selection(optimizer.patterns), optimizer._settings
    algorithm = Composite(type(optimizer), None, None, optimizer._hyper.current, None, selection, members)
    shared = {"gradients_clip_option": None, "ema_option": None, "learning_rate": None}
    whole = GroupsSettings({n: old.get(n) for n in OPTIONS_OF_ALL}, shared, algorithm, state, old.explicit)
    for number, member in enumerate(optimizer.members):
        member_state: Any = MemberState(state, selection, number)
        settings = settings_of(member, member_state)
        settings.join(whole, member_state)
        members.append(Member(settings.algorithm(), member_state, settings))
    whole.add_members([member.settings for member in members], selection)
    return state, whole, algorithm


def check(settings: Settings, algorithm: Algorithm, optimizer: Any, backend: Backend) -> None:
    """Refuse what has no effect, or cannot be done, on this backend."""
    if isinstance(algorithm, Composite):
        for member, part in zip(optimizer.members, algorithm.members, strict=True):
            _check_algorithm(part.settings, part.algorithm, member, backend)
    else:
        _check_algorithm(settings, algorithm, optimizer, backend)
    _check_options(settings, type(optimizer).__name__, backend)


def _check_algorithm(settings: Settings, algorithm: Algorithm, optimizer: Any, backend: Backend) -> None:
    """What is checked of each member of groups."""
    owner, where = type(optimizer).__name__, f"with Keras on {backend.name}"
    if algorithm.updating_rule is None:
        raise UnsupportedError(
            f"{owner} has its own update_step, which is made of TensorFlow's ops; {where}, write it as an optim.Rule"
        )
    if settings.rate.source is None:
        raise HyperparameterError(f"{owner} was made without a learning_rate")
    check_rate(settings.rate.source, backend)
    for name, value in optimizer._hyper.values.items():
        if not isinstance(value, float):
            raise UnsupportedError(
                f"{name} is a tensor or a callable, which would be read once only {where}; give a number"
            )
    unknown = unknown_function(algorithm.updating_rule)
    check_rule(backend, [] if unknown is None else [unknown])


def _check_options(settings: Settings, owner: str, backend: Backend) -> None:
    """What acts on all variables."""
    where = f"with Keras on {backend.name}"
    if settings.loss_scale.loss_scale == DYNAMIC:
        raise UnsupportedError(
            f"loss_scale={DYNAMIC!r} is Keras's to do {where}. Leave it out and wrap the optimizer:\n"
            f"keras.optimizers.LossScaleOptimizer(optim.for_keras(optim.{owner}(...)))"
        )
    for name, why in (
        ("jit_compile", "call model.compile(..., jit_compile=...)"),
        ("repeated_rows", "gradients of tables are dense there, and the rows of a batch are summed"),
    ):
        if settings.get(name):
            raise UnsupportedError(f"{name}={settings.get(name)!r} has no effect {where}; leave it out: {why}")
    if settings.execution.executor != "auto":
        raise UnsupportedError(f"executor={settings.execution.executor!r} is for TensorFlow; leave it out {where}")
    backend.check_placement(settings.placement.slot_placement)


def check_rate(rate: Any, backend: Backend) -> None:
    if isinstance(rate, schedules.LinearWarmup):
        check_rate(rate.schedule, backend)
    if isinstance(rate, schedules.Formula) and backend.name == "jax":
        raise UnsupportedError(
            "a schedules.Formula is computed by TensorFlow or NumPy; on JAX, give a schedule of Keras"
        )
    if callable(rate) and not schedules.is_schedule(rate) and backend.name == "jax":
        raise UnsupportedError(
            "a callable learning_rate would be called once only, when JAX compiles the step; give a schedule, or a"
            " number and set optimizer.learning_rate"
        )

"""The public optimizer Groups: several optimizers in one, each for the variables that its pattern matches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from optim import configs
from optim.arguments import LearningRate
from optim.errors import HyperparameterError, UnsupportedError
from optim.groups.algorithm import Composite, Member
from optim.groups.member_state import MemberState
from optim.groups.selection import Selection
from optim.groups.settings import OPTIONS_OF_ALL, OTHER_NAMES, GroupsSettings, check_options, signature
from optim.hyperparameters import Values
from optim.lazy import uses_tensorflow
from optim.options.option_objects import EMAOption, GradientsClipOption
from optim.options.settings import OPTIONS

if TYPE_CHECKING or uses_tensorflow():
    from tensorflow.experimental import dtensor

    from optim.groups import building
    from optim.layouts import meshes
    from optim.optimizer import Optimizer
else:
    from optim.recipe import Optimizer


class Groups(Optimizer):
    """Several optimizers as one: each updates the variables with names that its pattern matches.

    `groups` are tried in their order, and the first pattern that is found in the name of a variable (`re.search`)
    decides. Each group has its own algorithm, hyperparameters, learning rate and weight decay, and its variables get
    the same numbers that its optimizer alone would give them. Clipping, averages, gradient accumulation, loss scaling,
    master copies, slot placement, executor and the count of steps belong to the whole.

    `members` are the optimizers of the groups, in order, for reading and setting what belongs to them:
    `optimizer.members[0].learning_rate = 0.01`. `learning_rate` is that of the last group; setting it, as callbacks of
    Keras do, multiplies the rates of all groups by the same factor.

    Args:
      groups: (pattern, optimizer) pairs. A pattern is a regular expression, or None, at the end, for all variables that
        no other pattern matches. The optimizers are copied, and those given stay as they are.
      gradients_clip_option, ema_option, name, mesh, and all that follows: see `Optimizer`. What `Optimizer` takes and
        `Groups` does not (`weight_decay`, `lazy_rows`, ...) belongs to the optimizers of the groups.

    Raises:
      HyperparameterError (a ValueError): no groups; a malformed or repeated pattern; an optimizer that has taken steps,
        or an option that belongs to the whole. When it is built: a variable that no pattern matches, or a pattern
        without a variable.
      UnsupportedError: an optimizer with its own `update_step`, of `optim.legacy`, or of `for_keras`.

    >>> optimizer = optim.Groups([
    ...     ("embedding", optim.Adagrad(0.05)),
    ...     ("bias|norm", optim.AdamW(0.001, weight_decay=0.0)),
    ...     (None, optim.AdamW(0.001)),
    ... ], global_clipnorm=1.0)
    """

    def __init__(
        self,
        groups: Sequence[tuple[str | None, Optimizer]],
        gradients_clip_option: GradientsClipOption | Mapping[str, Any] | None = None,
        ema_option: EMAOption | Mapping[str, Any] | None = None,
        name: str = "Groups",
        mesh: dtensor.Mesh | None = None,
        **options: Any,
    ):
        check_options(options)
        pairs = _checked(groups)
        super(Optimizer, self).__init__()
        self._state = self._begin(name, mesh)
        self._hyper = Values({}, {})
        self._selection = Selection([pattern for pattern, _ in pairs])
        shared = {"gradients_clip_option": gradients_clip_option, "ema_option": ema_option, "learning_rate": None}
        members: list[Member] = []
        self._algorithm = Composite(type(self), None, None, self._hyper.current, None, self._selection, members)
        self._settings = GroupsSettings(options, shared, self._algorithm, self._state, None)
        self._members = tuple(self._member(number, optimizer) for number, (_, optimizer) in enumerate(pairs))
        for member in self._members:
            state: Any = member._state
            members.append(Member(member._algorithm, state, member._settings))
        self._settings.add_members([member.settings for member in members], self._selection)
        if uses_tensorflow():
            building.let_step(self)

    _written_out = staticmethod(signature)

    def _member(self, number: int, optimizer: Optimizer) -> Optimizer:
        """A copy of an optimizer, for one group of this one."""
        member = _copied(optimizer)
        state: Any = MemberState(self._state, self._selection, number)
        member._state = state
        member._settings.join(self._settings, state)
        return member

    @property
    def members(self) -> tuple[Optimizer, ...]:
        """The optimizers of the groups, in order. Only the whole takes steps."""
        return self._members

    @property
    def patterns(self) -> tuple[str | None, ...]:
        """The patterns of the groups, in order."""
        return self._selection.patterns

    def member_of(self, variable: Any) -> Optimizer:
        """The member that updates a variable. Raises UnknownVariableError (a KeyError): not built on it."""
        return self._members[self._selection.of(self._state.tracked[variable])]

    @property
    def learning_rate(self) -> Any:
        """The learning rate of the last group. Setting a number multiplies the rates of all groups by one factor.

        Raises, when it is set:
          TypeError: the rate of a group is a schedule or a callable. HyperparameterError: it is 0 now, so that no
          factor leads to the number. Set `members[i].learning_rate` then.
        """
        return self._settings.rate.read()

    @learning_rate.setter
    def learning_rate(self, value: LearningRate) -> None:
        self._settings.rate.replace(value)

    lr = learning_rate
    _learning_rate = property(lambda self: self._settings.rate.source)

    def exclude_from_weight_decay(
        self, var_list: Sequence[Any] | None = None, var_names: Sequence[str] | None = None
    ) -> None:
        """Leave out variables, and those whose names one of these regular expressions matches, in all groups."""
        for member in self._members:
            member.exclude_from_weight_decay(var_list, var_names)

    def __reduce__(self) -> Any:
        groups = [(pattern, _copied(m)) for pattern, m in zip(self.patterns, self._members, strict=True)]
        if not uses_tensorflow():
            live = self._settings.live()
            return type(self).from_config, ({**self.get_config(), "groups": groups, **live},)
        function, (cls, config, *rest) = super().__reduce__()
        return function, (cls, {**config, "groups": groups}, *rest)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments as JSON values: `groups` as [pattern, {"class_name", "config"}] pairs."""
        described = [
            [pattern, {"class_name": type(member).__name__, "config": _config(member)}]
            for pattern, member in zip(self.patterns, self._members, strict=True)
        ]
        mesh = self._state.given_mesh
        return {
            "name": self.name,
            "groups": described,
            **self._settings.config(),
            "mesh": None if mesh is None else meshes.to_config(mesh),
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: Mapping[str, type] | None = None) -> Groups:
        """As `Optimizer.from_config`. `custom_objects` has the classes of members that are not of `optim`, by name."""
        options = dict(config)
        if isinstance(options.get("mesh"), Mapping):
            options["mesh"] = meshes.from_config(options["mesh"])
        optimizer = cls(**configs.with_members(options, custom_objects or {}))
        if "mesh" in config:
            optimizer._settings.explicit.update(OPTIONS)
        return optimizer


def _checked(groups: Any) -> list[tuple[str | None, Optimizer]]:
    """The pairs of `groups`. Raises HyperparameterError, UnsupportedError."""
    form = 'groups must be (pattern, optimizer) pairs, as [("bias|norm", optim.AdamW()), (None, optim.Muon())]'
    if isinstance(groups, (str, Mapping)) or not isinstance(groups, Sequence):
        raise HyperparameterError(f"{form}, got {groups!r}")
    if not groups:
        raise HyperparameterError(f"{form}; the list is empty")
    for pair in groups:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise HyperparameterError(f"{form}, got {pair!r}")
        _check_member(*pair)
    return [(pattern, optimizer) for pattern, optimizer in groups]


def _check_member(pattern: Any, optimizer: Any) -> None:
    where = f"groups, {pattern!r}: {type(optimizer).__name__}"
    if not isinstance(optimizer, Optimizer) or isinstance(optimizer, Groups):
        raise UnsupportedError(
            f"{where} is not an optimizer of one algorithm of optim. Give optim.AdamW(...) or the like; for_keras takes"
            " the Groups as a whole"
        )
    optimizer._algorithm.check_has_config()
    if optimizer._algorithm.own_step is not None:
        raise UnsupportedError(
            f"{where} has its own update_step, and Groups takes rules only: write it as a rule, and make its class"
            " with optim.RuleOptimizer"
        )
    if uses_tensorflow() and (optimizer.built or int(optimizer.iterations.numpy())):
        raise HyperparameterError(
            f"{where} has been built or has taken steps; give a new one: from_config(get_config())"
        )
    if optimizer._state.given_mesh is not None:
        raise HyperparameterError(f"{where} has a mesh, which belongs to the whole: Groups(..., mesh=mesh)")
    usual, member_config = Optimizer().get_config(), optimizer._settings.config()
    odd = [name for name in OPTIONS_OF_ALL if member_config[name] != usual[name]]
    if odd:
        values = ", ".join(f"{name}={member_config[name]!r}" for name in odd)
        raise HyperparameterError(f"{where} has {values}, which acts on all groups: Groups([...], {values})")


def _config(member: Optimizer) -> dict[str, Any]:
    """The config of a member without what belongs to the whole."""
    return {name: value for name, value in member.get_config().items() if name not in (*OPTIONS_OF_ALL, *OTHER_NAMES)}


def _copied(optimizer: Optimizer) -> Optimizer:
    """An optimizer like one, or like a member, without state; schedules and callables are the same objects."""
    live = {name: value for name, value in optimizer._settings.live().items() if name not in OPTIONS_OF_ALL}
    copy = type(optimizer).from_config({**_config(optimizer), **optimizer._hyper.values, **live, "mesh": None})
    copy._settings.explicit = set(optimizer._settings.explicit)
    copy._settings.weight_decay.exclude_from_weight_decay(optimizer._settings.weight_decay.variables)
    return copy

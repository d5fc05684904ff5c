"""What passes between readers and writers: numpy only, arrays are read on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from migrate import claims, surfaces
from migrate.bytes.arrays import LazyArray
from migrate.bytes.messages import line
from migrate.bytes.source import Source
from migrate.claims import Origin
from migrate.generations import Generation, traits
from migrate.releases.versions import UNKNOWN, Versions
from optim.bytes.checks import Check

GLOBAL_STEP = "global_step"
"""The default name of the step counter in programs of TensorFlow 1."""

CHANGED, CLIPPING, SPARSE_CLIPPING = "gradients", "clipping", "sparse clipping"
UPDATES, OPTIMIZER, NO_KERNEL, LATE_READ = "updates", "optimizer", "kernel", "late read"
GATHERED, LOST, OTHERS_GRAPH, OTHER_COMPILE = "gathered", "slots", "graph", "compile"
"""Names of a program's effects in reports and `--set`, see `Effects`."""
MOVING = "moving "
"""Before a hyperparameter: steps change it, see `Effects.moving`."""


def _effect(subject: str) -> Any:
    return field(default="", metadata={"subject": subject})


@dataclass(frozen=True)
class Effects:
    """What a program does around the optimizer, as sentences; empty if it does nothing.

    Attributes:
      clipping: it changes gradients, perhaps only by a limit.
      gradients: it changes gradients, not only by a limit.
      sparse_clipping: it clips gradients of tables by their norm before repeated rows are added up.
      optimizer, updates: it changes the optimizer or variables, in its graph.
      no_kernel: its graph trains variables with custom ops, by no rule of tf.train's classes or Keras's.
      late_read: gradients of a step may have been computed from variables that it had changed already.
      other_graph: the graph next to the source belongs to another program, or one of the two is altered.
      lost: trained variables have no slots, although others have.
      gathered: a loop has accumulated gradients since the last step, which the next step would use.
      other_compile: the optimizer was compiled several times, and may also count the steps of another one.
      settings: hyperparameter -> how the graph computes it, if dtopt does not understand that.
      moving: hyperparameter -> how the graph computes it from values that steps change.
    """

    clipping: str = _effect(CLIPPING)
    gradients: str = _effect(CHANGED)
    sparse_clipping: str = _effect(SPARSE_CLIPPING)
    optimizer: str = _effect(OPTIMIZER)
    updates: str = _effect(UPDATES)
    no_kernel: str = _effect(NO_KERNEL)
    late_read: str = _effect(LATE_READ)
    other_graph: str = _effect(OTHERS_GRAPH)
    lost: str = _effect(LOST)
    gathered: str = _effect(GATHERED)
    other_compile: str = _effect(OTHER_COMPILE)
    settings: Mapping[str, str] = field(default_factory=dict)
    moving: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(effects: Mapping[str, str]) -> Effects:
        """Effects by their names in reports; other keys are hyperparameters."""
        names = {effect.metadata["subject"]: effect.name for effect in fields(Effects) if effect.metadata}
        moving = {key.removeprefix(MOVING): text for key, text in effects.items() if key.startswith(MOVING)}
        settings = {key: text for key, text in effects.items() if key not in names and not key.startswith(MOVING)}
        texts = {names[key]: text for key, text in effects.items() if key in names}
        return Effects(**texts, settings=settings, moving=moving)

    def __bool__(self) -> bool:
        return self != Effects()

    def by_subject(self) -> dict[str, str]:
        """The effects that are set, without `moving`, by their names in reports."""
        texts = {effect.metadata["subject"]: getattr(self, effect.name) for effect in fields(self) if effect.metadata}
        return {**self.settings, **{subject: text for subject, text in texts.items() if text}}


@dataclass(frozen=True)
class LayerVariable:
    name: str
    shape: tuple[int, ...]
    trainable: bool | None


@dataclass(frozen=True)
class Layers:
    """A layer or model: its own variables, then those inside. Members of a chain follow each other; chains may be
    interleaved in any way. `own_last`: whether its own variables come last, None if unknown."""

    own_variables: tuple[LayerVariable, ...] = ()
    chains: tuple[tuple[Layers, ...], ...] = ()
    own_last: bool | None = False

    def variables(self) -> list[LayerVariable]:
        """All of them, chain after chain."""
        within = [v for chain in self.chains for layer in chain for v in layer.variables()]
        return [*within, *self.own_variables] if self.own_last else [*self.own_variables, *within]

    def ordered(self) -> bool:
        """Whether only one order is possible."""
        trained = [chain for chain in self.chains if any(layer.trained() for layer in chain)]
        if self.own_last is None and trained and any(v.trainable is not False for v in self.own_variables):
            return False
        return len(trained) <= 1 and all(layer.ordered() for chain in trained for layer in chain)

    def trained(self) -> bool:
        """Whether anything in it may be trained."""
        return any(v.trainable is not False for v in self.variables())


@dataclass(frozen=True)
class StoredVariable:
    """A model variable of a source. `trainable` is None if the source does not show it."""

    name: str
    array: LazyArray | None
    shape: tuple[int, ...]
    dtype: str
    trainable: bool | None = None


@dataclass(frozen=True)
class NamedVariables:
    """The trained variables named by the user, in the optimizer's order.

    Attributes:
      in_source: all variables in the order of the source, `trainable` set by the user.
      left_out: those that are trainable in the source and not named by the user.
      contradicted: two of them in the opposite order of the source, if that is the optimizer's.
      unnamed: the source without the user's names.
    """

    order: tuple[str, ...]
    in_source: tuple[StoredVariable, ...]
    left_out: tuple[str, ...] = ()
    contradicted: tuple[str, ...] = ()
    unnamed: Stored | None = None


@dataclass(frozen=True)
class Twins:
    """Variables that neither names nor shapes of their slots distinguish.

    Attributes:
      order: all variables with slots, in the order of the optimizer's lists, twins in that of the source; for a
        source with one list of weights, only the twins.
      groups: those that are equal; they contain more than `order` if it is unknown which of them have slots.
      is_contradicted: whether the identified variables are in another order in the lists than in the source.
    """

    order: tuple[str, ...]
    groups: tuple[tuple[str, ...], ...]
    is_contradicted: bool


@dataclass(frozen=True)
class StoredModel:
    """The model in a source, as JSON of the release that wrote it; nothing of it is built.

    Attributes:
      config: `{"class_name", "config"}` of the model.
      training: `training_config` or `compile_config`, None if the model was not compiled.
      groups: top-level layer -> (stored weight name, name among `Stored.variables`) in the source's order, if the
        source groups weights by layer; the one key "" if only their names identify them; None if their places in a
        tree do (`.keras`).
      assets: name of a further file that its layers read, such as a vocabulary -> its bytes, in pieces.
    """

    config: Mapping[str, Any]
    training: Mapping[str, Any] | None
    groups: Mapping[str, tuple[tuple[str, str], ...]] | None
    assets: Mapping[str, Callable[[], Iterator[bytes]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Stored:
    """The result of a reader, in the source's own terms, before any interpretation.

    A format stores optimizer state in one of two ways, and its reader fills the matching field: `slots` if state has
    keys of slot and variable (TF2 object graphs, tf.train Savers), or `weights` if only the order is known (HDF5,
    lists).
    """

    format: str
    """Name of the reader, a value of `--from`."""
    generation: str | None
    """`keras1 keras2 keras2.3 optimizer_v1 optimizer_v2 experimental optimizer keras3 tf1`, None if unknown."""
    evidence: tuple[str, ...]
    """Evidence for format and generation, one short sentence each."""
    optimizer_config: Mapping[str, Any] | None
    """Keras JSON `{"class_name", "config"}` as stored, or None."""
    variables: tuple[StoredVariable, ...]
    slots: Mapping[str, Mapping[str, LazyArray]] = field(default_factory=dict)
    """The source's own slot name -> variable name -> array."""
    scalars: Mapping[str, LazyArray] = field(default_factory=dict)
    """Optimizer-wide state under the source's own names: iter, learning_rate, momentum_cache, ..."""
    weights: tuple[tuple[str, LazyArray], ...] | None = None
    """(stored name, array) in the source's order; names may have no meaning. None if `slots` is used."""
    versions: Versions = UNKNOWN
    warnings: tuple[str, ...] = ()
    matched: Mapping[str, str] = field(default_factory=dict)
    """`slot/variable`, in the source's own slot names -> how the reader matched the variable, if it had to."""
    unmapped: Mapping[str, LazyArray] = field(default_factory=dict)
    """Values that are neither optimizer state nor model variables: counters of the checkpoint, a loss scale."""
    twins: Twins | None = None
    """Slots whose variables are only assumed."""
    nameless: bool = False
    """Whether `variables` have only positions, so that the user must name them, in order."""
    layers: Layers | None = None
    """Partial knowledge of the order of `variables`; None if the source shows all of it."""
    optimizers: tuple[str, ...] = ()
    """Paths of all optimizers in a checkpoint that can hold several; the state is of one of them."""
    effects: Effects = Effects()
    """What the program did around the optimizer, if the source shows it."""
    loss_scaling: tuple[int | None, float | None] | None = None
    """Steps until a loss scale grows, and the scale, as dtopt itself noted them."""
    graph_config: Mapping[str, Any] | None = None
    """`{"class_name", "config"}` from constants and ops of the source's graph; a part of the config, or None."""
    graph_seen: bool | None = None
    """Whether the graph shows all changes of gradients and rate before the optimizer; None without a graph of the
    program, as in eager TensorFlow."""
    sparse: frozenset[str] | None = None
    """Variables with sparse gradients, if the source shows it for all trained ones."""
    constrained: Mapping[str, str] = field(default_factory=dict)
    """Variables with a constraint after each step, from a graph or dtopt itself: the constraint in the form of
    `models.constraints`, empty if a graph does not identify it."""
    optimizer_name: str | None = None
    """The optimizer's name in the source, usually from its class."""
    model: StoredModel | None = None
    """None if the source does not describe its model."""
    doubts: tuple[Origin, ...] = ()
    """dtopt's own values, if it wrote the source."""
    no_state: str = ""
    """Why there is no optimizer state; empty if there is some."""

    @property
    def traits(self) -> Generation:
        """What its generation does."""
        return traits(self.generation)


@dataclass(frozen=True)
class Parts:
    """The parts of a model that a partial state does not cover: names of variables.

    Attributes:
      fresh: those without slots and, for a live model, values in the state.
      grown: those that are larger in the live model, which supplies the rest.
      dropped: those of the source that the state leaves out.
    """

    fresh: tuple[str, ...] = ()
    grown: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True)
class OptimizerState:
    """Optimizer state in dtopt's own terms, from any source. Everything of the source is somewhere here.

    Attributes:
      algorithm: name of a class of `optim`.
      hyperparameters: its keyword arguments, as JSON values.
      iterations: the step count.
      iterations_source: the place of that number.
      slots: {slot: {variable: array}} by `optim`'s names; arrays are read when they are used.
      variables: the model's, in optimizer order, then the others; `trainable` shows which have or will have slots.
      scalars: optimizer-wide state, such as Nadam's `u_product`.
      unmapped: everything else.
      matched: {`slot/variable`: `name`, `object graph`, `shape` or `position`}.
      source: the reader's result; None for a slot-variable checkpoint.
      origins: the source of every value that the next step depends on.
      warnings: notes for the user that do not affect the fidelity.
      opened: the files that it was read from, some of which are read later; None without a source.
      parts: what is left to the live model, if that differs from the source's.
    """

    algorithm: str
    hyperparameters: Mapping[str, Any]
    iterations: int
    iterations_source: str
    slots: Mapping[str, Mapping[str, LazyArray]]
    variables: tuple[StoredVariable, ...]
    scalars: Mapping[str, float] = field(default_factory=dict)
    unmapped: Mapping[str, LazyArray] = field(default_factory=dict)
    matched: Mapping[str, str] = field(default_factory=dict)
    source: Stored | None = None
    origins: tuple[Origin, ...] = ()
    warnings: tuple[str, ...] = ()
    opened: Source | None = None
    parts: Parts = Parts()

    @property
    def source_traits(self) -> Generation:
        """What the generation of the source does."""
        return traits(self.source.generation if self.source is not None else None)

    @property
    def fidelity(self) -> str:
        """`exact` or `approximate`."""
        return claims.fidelity(self.origins)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why it is not exact, with the answers in the style of the calling surface."""
        return tuple(map(surfaces.worded, self.kept_reasons))

    @property
    def kept_reasons(self) -> tuple[str, ...]:
        """The same in the style of the command line, in which files store them."""
        return tuple(map(line, claims.reasons(self.origins)))

    @property
    def questions(self) -> claims.Questions:
        """Open questions, and the answers that confirm them."""
        return claims.questions(self.origins)

    def check_unchanged(self) -> None:
        """Raise DamagedFileError if a file has changed since the state was read."""
        if self.opened is not None:
            self.opened.check()

    def arrays(self) -> Iterator[LazyArray]:
        """Every array: of slots, of variables, and unmapped."""
        yield from (array for owners in self.slots.values() for array in owners.values())
        yield from (v.array for v in self.variables if v.array is not None)
        yield from self.unmapped.values()

    def checks(self) -> list[Check]:
        """Checks of the files around the arrays, which must finish before the state is trusted."""
        checks = (array.extent.check for array in self.arrays() if array.extent is not None)
        return list({id(check): check for check in checks if check is not None}.values())

    def finish_checks(self) -> None:
        """Finish all of `checks`. Raises DamagedFileError."""
        for check in self.checks():
            check.finish()

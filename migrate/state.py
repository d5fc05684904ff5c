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
"""What programs of TensorFlow 1 call their counter of steps, where they give it no other name."""

CHANGED, CLIPPING, SPARSE_CLIPPING = "gradients", "clipping", "sparse clipping"
UPDATES, OPTIMIZER, NO_KERNEL, LATE_READ = "updates", "optimizer", "kernel", "late read"
GATHERED, LOST, OTHERS_GRAPH, OTHER_COMPILE = "gathered", "slots", "graph", "compile"
"""What reports and `--set` call effects of a program, see `Effects`."""
MOVING = "moving "
"""Before a hyperparameter: steps change it, see `Effects.moving`."""


def _effect(subject: str) -> Any:
    return field(default="", metadata={"subject": subject})


@dataclass(frozen=True)
class Effects:
    """What a program does around the optimizer, as sentences; empty if it does nothing.

    Attributes:
      clipping: to gradients, and it may be a limit and nothing else.
      gradients: to gradients, and not by a limit alone.
      sparse_clipping: it clips gradients of tables by their norm before rows that occur twice are added up.
      optimizer, updates: to the optimizer or to variables, in its graph.
      no_kernel: its graph trains variables with ops of its own, by no rule of tf.train's classes or Keras's.
      late_read: gradients of one step may have been computed from variables that the step had moved already.
      other_graph: the graph next to the source is not that of its program, or one of the two was altered.
      lost: trained variables have no slots, although others have.
      gathered: a loop has added up gradients since the last step, which the next step would take.
      other_compile: the optimizer was compiled several times, and steps of another one may count with its own.
      settings: hyperparameter -> how the graph makes it, if dtopt does not understand that.
      moving: hyperparameter -> how the graph makes it from what steps change, so that it is no number.
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
    def of(found: Mapping[str, str]) -> Effects:
        """Effects by what reports call them; other keys are hyperparameters."""
        names = {each.metadata["subject"]: each.name for each in fields(Effects) if each.metadata}
        moving = {key.removeprefix(MOVING): text for key, text in found.items() if key.startswith(MOVING)}
        settings = {key: text for key, text in found.items() if key not in names and not key.startswith(MOVING)}
        known = {names[key]: text for key, text in found.items() if key in names}
        return Effects(**known, settings=settings, moving=moving)

    def __bool__(self) -> bool:
        return self != Effects()

    def by_subject(self) -> dict[str, str]:
        """Those that there are, but `moving`, by what reports call them."""
        known = {each.metadata["subject"]: getattr(self, each.name) for each in fields(self) if each.metadata}
        return {**self.settings, **{subject: text for subject, text in known.items() if text}}


@dataclass(frozen=True)
class LayerVariable:
    name: str
    shape: tuple[int, ...]
    trainable: bool | None


@dataclass(frozen=True)
class Layers:
    """A layer or model: its own variables, then what is in it; members of one chain follow each other, while the
    chains may be interleaved in any way. `own_last`: its own variables stand behind, None where nothing says it."""

    own: tuple[LayerVariable, ...] = ()
    chains: tuple[tuple[Layers, ...], ...] = ()
    own_last: bool | None = False

    def variables(self) -> list[LayerVariable]:
        """All of them, chain after chain."""
        within = [v for chain in self.chains for layer in chain for v in layer.variables()]
        return [*within, *self.own] if self.own_last else [*self.own, *within]

    def ordered(self) -> bool:
        """Whether only one order is possible."""
        trained = [chain for chain in self.chains if any(layer.trained() for layer in chain)]
        if self.own_last is None and trained and any(v.trainable is not False for v in self.own):
            return False
        return len(trained) <= 1 and all(layer.ordered() for chain in trained for layer in chain)

    def trained(self) -> bool:
        """Whether anything in it may be trained."""
        return any(v.trainable is not False for v in self.variables())


@dataclass(frozen=True)
class StoredVariable:
    """A model variable of a source. `trainable` is None where the source does not say."""

    name: str
    array: LazyArray | None
    shape: tuple[int, ...]
    dtype: str
    trainable: bool | None = None


@dataclass(frozen=True)
class NamedVariables:
    """The trained variables as a person named them, in the optimizer's order.

    Attributes:
      in_source: all variables in the order of the source, `trainable` as the person said.
      left_out: those that the source calls trainable, and the person does not name.
      denied: two of them that the source has the other way round, where its order is that of the optimizer.
      unnamed: the source as it is without what the person said.
    """

    order: tuple[str, ...]
    in_source: tuple[StoredVariable, ...]
    left_out: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    unnamed: Stored | None = None


@dataclass(frozen=True)
class Twins:
    """Variables that neither the names nor the shapes of their slots tell apart.

    Attributes:
      order: all variables with slots, in the order of the optimizer's lists, twins in that of the source; of a source
        that keeps one list of weights, only the twins.
      groups: those alike; more of them than `order` has where it is open which of them have slots.
      denied: whether the variables that are known stand in another order in the lists than in the source.
    """

    order: tuple[str, ...]
    groups: tuple[tuple[str, ...], ...]
    denied: bool


@dataclass(frozen=True)
class StoredModel:
    """The model that a source describes, as JSON of the release that wrote it; nothing of it is built.

    Attributes:
      config: `{"class_name", "config"}` of the model.
      training: `training_config` or `compile_config`, None where the model was not compiled.
      groups: top-level layer -> (stored weight name, name among `Stored.variables`) in the source's order, where the
        source groups weights by layer; the one key "" where their names alone tell; None where their places in a tree
        do (`.keras`).
      assets: name of a file that its layers read besides, such as a vocabulary -> its bytes, in pieces.
    """

    config: Mapping[str, Any]
    training: Mapping[str, Any] | None
    groups: Mapping[str, tuple[tuple[str, str], ...]] | None
    assets: Mapping[str, Callable[[], Iterator[bytes]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Stored:
    """What a reader found, in the source's own terms, before any interpretation.

    A format keeps optimizer state in one of two ways, and a reader fills the one that its format has:
    `slots` where state is keyed by slot and variable (TF2 object graphs, tf.train Savers), or `weights` where only
    the order is known (HDF5, lists).
    """

    format: str
    """Name of the reader, as `--from` takes it."""
    generation: str | None
    """`keras1 keras2 keras2.3 optimizer_v1 optimizer_v2 experimental optimizer keras3 tf1`, None if unknown."""
    evidence: tuple[str, ...]
    """Why the reader believes in format and generation, one short sentence each."""
    optimizer_config: Mapping[str, Any] | None
    """Keras JSON `{"class_name", "config"}` as stored, or None."""
    variables: tuple[StoredVariable, ...]
    slots: Mapping[str, Mapping[str, LazyArray]] = field(default_factory=dict)
    """The source's own slot name -> variable name -> array."""
    scalars: Mapping[str, LazyArray] = field(default_factory=dict)
    """State of the whole optimizer under the source's own names: iter, learning_rate, momentum_cache, ..."""
    weights: tuple[tuple[str, LazyArray], ...] | None = None
    """(stored name, array) in the source's order; names may mean nothing. None where `slots` is used."""
    versions: Versions = UNKNOWN
    warnings: tuple[str, ...] = ()
    matched: Mapping[str, str] = field(default_factory=dict)
    """`slot/variable`, in the source's own slot names -> how the reader found the variable, where it had to."""
    unmapped: Mapping[str, LazyArray] = field(default_factory=dict)
    """What is no state of the optimizer and no variable of the model: counters of the checkpoint, a loss scale."""
    twins: Twins | None = None
    """Which slots belong to their variables by assumption alone."""
    nameless: bool = False
    """Whether `variables` are known by their positions alone, so that a person has to name them, in order."""
    layers: Layers | None = None
    """What is known of the order of `variables` where the source does not say all of it; None where it does."""
    optimizers: tuple[str, ...] = ()
    """Paths of all optimizers in a checkpoint that can hold several; the state is of one of them."""
    effects: Effects = Effects()
    """What the program did around the optimizer, if the source shows it."""
    loss_scaling: tuple[int | None, float | None] | None = None
    """Steps until a loss scale grows, and the scale, as dtopt itself noted them."""
    graph_config: Mapping[str, Any] | None = None
    """`{"class_name", "config"}` as constants and ops of the source's graph say it; a part of the config, or None."""
    graph_seen: bool | None = None
    """Whether the graph shows all that happens to gradients and rate before they reach the optimizer; None where the
    program is not in a graph, as in eager TensorFlow."""
    sparse: frozenset[str] | None = None
    """Variables with sparse gradients, where the source tells it of all that it trains."""
    constrained: Mapping[str, str] = field(default_factory=dict)
    """Variables on which a constraint acts after each step, as a graph or dtopt itself says: the constraint as
    `models.constraints` shows it, empty where a graph does not show which of Keras's it is."""
    optimizer_name: str | None = None
    """What the source's names call the optimizer, usually after its class."""
    model: StoredModel | None = None
    """None where the source does not describe its model."""
    doubts: tuple[Origin, ...] = ()
    """Of dtopt itself, where it wrote the source."""
    no_state: str = ""
    """Why there is nothing of an optimizer; empty where there is."""

    @property
    def traits(self) -> Generation:
        """What its generation does."""
        return traits(self.generation)


@dataclass(frozen=True)
class Parts:
    """What of a model a partial state leaves to it: names of variables.

    Attributes:
      fresh: those of which the state has neither slots nor, for a live model, values.
      grown: those that are larger in the live model, which has the rest.
      dropped: those of the source that the state leaves out.
    """

    fresh: tuple[str, ...] = ()
    grown: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True)
class OptimizerState:
    """Optimizer state in dtopt's own terms, whatever wrote it. Everything the source held is somewhere here.

    Attributes:
      algorithm: name of a class of `optim`.
      hyperparameters: its keyword arguments, as JSON values.
      iterations: steps taken.
      iterations_source: where that number stands.
      slots: {slot: {variable: array}} by `optim`'s names; arrays are read when they are asked for.
      variables: the model's, in optimizer order, then the others; `trainable` says which have slots to come.
      scalars: state of the whole optimizer, such as Nadam's `u_product`.
      unmapped: what has no place elsewhere.
      matched: {`slot/variable`: `name`, `object graph`, `shape` or `position`}.
      source: what the reader found; None for a slot-variable checkpoint.
      origins: where every value came from that the next step depends on.
      warnings: what a person may like to know; none of it decides whether the state is exact.
      opened: the files that it was read from, some of which are read later; None where it was not read from any.
      parts: what is left to the live model, where that is another than the source's.
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
        """Why it is not exact, with the answers as the surface writes them that asks."""
        return tuple(map(surfaces.worded, self.kept_reasons))

    @property
    def kept_reasons(self) -> tuple[str, ...]:
        """The same as the command line writes them, which is how files keep them."""
        return tuple(map(line, claims.reasons(self.origins)))

    @property
    def questions(self) -> claims.Questions:
        """What is open, and the answers that confirm it."""
        return claims.questions(self.origins)

    def check_unchanged(self) -> None:
        """Raises DamagedFileError if a file is not what it was when the state was read."""
        if self.opened is not None:
            self.opened.check()

    def arrays(self) -> Iterator[LazyArray]:
        """Every array: of slots, of variables, and unmapped."""
        yield from (array for owners in self.slots.values() for array in owners.values())
        yield from (v.array for v in self.variables if v.array is not None)
        yield from self.unmapped.values()

    def checks(self) -> list[Check]:
        """The checks of the files around the arrays, which must have finished before the state is believed."""
        found = (array.extent.check for array in self.arrays() if array.extent is not None)
        return list({id(check): check for check in found if check is not None}.values())

    def finish_checks(self) -> None:
        """Finish all of `checks`. Raises DamagedFileError."""
        for check in self.checks():
            check.finish()

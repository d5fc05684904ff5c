"""Resolve a name in a program to an optimizer class, or another object of Keras or TensorFlow."""

from __future__ import annotations

import builtins
import re
from collections.abc import Sequence
from functools import lru_cache

import libcst as cst

from migrate import algorithms
from migrate.algorithms import tf_train
from migrate.code import signatures
from migrate.code.meanings import Old
from migrate.code.releases import KERAS, TENSORFLOW, TF_KERAS
from migrate.code.scopes import Scopes, dotted, within
from migrate.generations import traits
from migrate.releases.modules import ADDONS, ALONE, CONTRIB, KERAS_CONTRIB

ONE_NAME = (
    (r"^tensorflow_core\.", "tensorflow."),
    (r"^tensorflow\._api\.v\d\.", "tensorflow."),
    (r"^tensorflow\.compat\.v[12]\.", "tensorflow."),
    (r"^tensorflow\.(?:python|contrib)\.keras\.(?:api\.keras\.|python\.keras\.)?", "tensorflow.keras."),
    (r"^tensorflow\.keras\.(?:api\.keras|python\.keras)\.", "tensorflow.keras."),
    (
        r"^(?:tensorflow\.)?keras\.(?:optimizers\.)?(?:optimizer_v2|schedules)\.learning_rate_schedule\.",
        "tensorflow.keras.optimizers.schedules.",
    ),
    (r"^(?:tensorflow\.)?keras\.(?:optimizers\.)?optimizer_v2\.\w+\.", "tensorflow.keras.optimizers."),
    (r"^(?:tensorflow\.)?keras\.optimizers\.\w+_v2\.", "tensorflow.keras.optimizers."),
    (r"^tensorflow\.optimizers\.", "tensorflow.keras.optimizers."),
    (r"^tensorflow\.python\.training\.\w+\.(?=\w+Optimizer$)", "tensorflow.train."),
    (r"^tensorflow\.contrib\.opt\.python\.training\.\w+\.", "tensorflow.contrib.opt."),
    (r"^tensorflow_addons\.optimizers\.\w+\.(?=[A-Z])", "tensorflow_addons.optimizers."),
    (r"^keras_contrib\.optimizers\.\w+\.(?=[A-Z])", "keras_contrib.optimizers."),
    (r"^keras\.src\.", "keras."),
    (r"^transformers\.(?:\w+\.)+AdamWeightDecay$", "transformers.AdamWeightDecay"),
    (r"^official\.(?:\w+\.)+AdamWeightDecay$", "official.nlp.optimization.AdamWeightDecay"),
)
"""The import paths of one object -> its canonical path."""
BY_RELEASE = ("keras.optimizers", "tensorflow.keras.optimizers")
"""Modules whose classes depend on the release."""

FOREIGN = (ADDONS, CONTRIB, KERAS_CONTRIB)
"""Modules whose classes are no algorithm of `optim` by themselves; see `addons`."""
OTHERS = frozenset(
    {f"tensorflow.train.{name}Optimizer" for name in ("AdagradDA", "ProximalAdagrad", "ProximalGradientDescent")}
    | {"transformers.AdamWeightDecay", "official.nlp.optimization.AdamWeightDecay"}
)
"""The same for single classes."""
BASES = re.compile(
    r"^(?:keras|tensorflow\.keras|tf_keras)\.optimizers\.(?:\w+\.)*(?:Optimizer(?:V[12])?|TFOptimizer|_?BaseOptimizer)$"
    r"|^tensorflow\.(?:train|python\.training\.optimizer)\.Optimizer$"
)
BACKEND = re.compile(r"^(?:keras|tensorflow\.keras|tf_keras)\.(?:backend|_legacy\.backend)\.(\w+)$")
MODELS = re.compile(
    r"^(?:keras|tensorflow\.keras|tf_keras)\.(?:(?:models|engine(?:\.\w+)?|legacy\.models)\.)?"
    r"(?:Model|Sequential|Graph|load_model|clone_model|model_from_json|model_from_yaml|model_from_config)$"
    r"|^(?:keras|tensorflow\.keras|tf_keras)\.applications\..*\w+$"
)
LOOKUPS = re.compile(r"^(?:keras|tensorflow\.keras|tf_keras)\.optimizers\.(get|deserialize|optimizer_from_config)$")
WRAPPERS = re.compile(
    r"LossScaleOptimizer$|\.DistributedOptimizer$|enable_mixed_precision_graph_rewrite$|\.CrossShardOptimizer$"
    r"|^tensorflow_addons\.optimizers\.(?:Lookahead|SWA|MovingAverage|MultiOptimizer)$|\.MovingAverageOptimizer$"
    r"|\.SyncReplicasOptimizer$"
)
CALLBACK = re.compile(r"^(?:keras|tensorflow\.keras|tf_keras)\.callbacks\.(?:\w+\.)?\w+$")
HANDED_ON = re.compile(r"\.(keras|tf|tensorflow|K)$")
"""What other packages export under the frameworks' usual names."""
FRAMEWORK = re.compile(r"^(?:keras|tensorflow|tf_keras|keras_contrib|tensorflow_addons|transformers|horovod)\b")


@lru_cache(maxsize=4096)
def one_name(name: str) -> str:
    """The canonical name."""
    for pattern, short in ONE_NAME:
        name = re.sub(pattern, short, name)
    return name


def is_module(name: str) -> bool:
    """Whether it is a module of optimizer classes of Keras or tf.train."""
    return name in BY_RELEASE or (name in ALONE and name not in FOREIGN)


@lru_cache(maxsize=4096)
def old_class(name: str) -> Old | None:
    """The optimizer class of a canonical name, if `migrate.algorithms` has its rule."""
    module, _, cls = name.rpartition(".")
    if not is_module(module):
        return None
    generation = ALONE.get(module)
    package = KERAS if module == "keras.optimizers" else TF_KERAS if module.startswith("tf_keras.") else TENSORFLOW
    if traits(generation).has_tf_train_names:
        algorithm_name = tf_train.CLASSES.get(cls)
        return Old(module, cls, algorithm_name, package, generation) if algorithm_name else None
    for algorithm in algorithms.ALGORITHMS:
        if cls in (algorithm.name, algorithm.name.lower()) or (cls == "Ftrl" and algorithm.name == "Ftrl"):
            return Old(module, algorithm.name, algorithm.name, package, generation)
    return None


@lru_cache(maxsize=4096)
def is_foreign(name: str) -> bool:
    """Whether the name is an optimizer class of a module with its own rules."""
    module, _, cls = name.rpartition(".")
    if name in OTHERS:
        return True
    if module not in FOREIGN:
        return False
    return cls in signatures.classes(module) or cls.lower() in {c.lower() for c in signatures.classes(module)}


class Names:
    """Names in one module, resolved through its imports and aliases."""

    def __init__(self, scopes: Scopes, kerases: Sequence[str] = (KERAS, TENSORFLOW)):
        self._scopes = scopes
        self._kerases = tuple("tensorflow.keras" if package == TENSORFLOW else "keras" for package in kerases)
        self._known: dict[cst.CSTNode, frozenset[str]] = {}

    def of(self, node: cst.CSTNode) -> frozenset[str]:
        """All objects that a name or attribute may be, canonical; empty unless it is imported."""
        if node not in self._known:
            self._known[node] = self._canonical(node)
        return self._known[node]

    def _canonical(self, node: cst.CSTNode) -> frozenset[str]:
        first, _, rest = dotted(node).partition(".")
        if not first:
            return self._by_string(node)
        bound = self._bound(node, first)
        if not bound:
            return self._starred(first, rest)
        imported = [name for name in bound if name is not None]
        if len(imported) < len(bound):
            return frozenset()
        every = [home for name in imported for home in self._homes(name)]
        return frozenset(one_name(f"{name}.{rest}" if rest else name) for name in every)

    def _by_string(self, node: cst.CSTNode) -> frozenset[str]:
        """Resolve `getattr(module, "name")`."""
        if not isinstance(node, cst.Call) or dotted(node.func) != "getattr" or len(node.args) < 2:
            return frozenset()
        name = node.args[1].value
        text = name.evaluated_value if isinstance(name, cst.SimpleString) else None
        if not isinstance(text, str):
            return frozenset()
        return frozenset(one_name(f"{module}.{text}") for module in self.of(node.args[0].value))

    def _homes(self, name: str) -> tuple[str, ...]:
        """What an import binds. `from bert4keras.backend import keras` binds the Keras that this package chose."""
        if FRAMEWORK.match(name) or not (match := HANDED_ON.search(name)):
            return (name,)
        if match[1] in ("tf", "tensorflow"):
            return ("tensorflow",)
        return tuple(f"{keras}.backend" if match[1] == "K" else keras for keras in self._kerases)

    def _bound(self, node: cst.CSTNode, first: str) -> Sequence[str | None]:
        scope = self._scopes.of.get(node)
        return scope.find(first) if scope is not None else ()

    def partly(self, node: cst.CSTNode) -> bool:
        """Whether a name is imported on one path and bound differently on another."""
        first = dotted(node).partition(".")[0]
        return len({name is None for name in self._bound(node, first)}) > 1 if first else False

    def sources(self, node: cst.CSTNode) -> list[str]:
        """The full names of all imports that a name may come from; star imports count if nothing else binds it."""
        first, _, rest = dotted(node).partition(".")
        bound = self._bound(node, first) if first else ()
        if not bound and first and not hasattr(builtins, first):
            return [within(module, dotted(node)) for module in self._scopes.stars]
        return [f"{name}.{rest}" if rest else name for name in bound if name is not None]

    def bindings(self, node: cst.CSTNode) -> Sequence[str | None]:
        """All bindings of a name here: the full names of imports, None for others."""
        return self._bound(node, dotted(node).partition(".")[0])

    def takes(self, name: str) -> bool:
        """Whether the module uses a name for something else than the top-level module of that name."""
        return name in self._scopes.names

    def _starred(self, first: str, rest: str) -> frozenset[str]:
        text = f"{first}.{rest}" if rest else first
        names = {one_name(within(module, text)) for module in self._scopes.stars}
        return frozenset(n for n in names if old_class(n) or is_foreign(n) or LOOKUPS.match(n) or MODELS.match(n))


STRINGS = {algorithm.name.lower(): algorithm.name for algorithm in algorithms.ALGORITHMS}
IMPORTS = re.compile(
    r"^\s*(?:import|from)\s+(?:keras|tensorflow|tf_keras|keras_contrib|tensorflow_addons)\b"
    r"|^\s*from\s+[\w.]+\s+import\s[^\n#]*\b(?:keras|tf)\b",
    re.M,
)
IMPORTS_KERAS = re.compile(r"^\s*(?:import|from)\s+keras(?:\b|_contrib)", re.M)
IMPORTS_TF_KERAS = re.compile(r"^\s*(?:import|from)\s+tf_keras\b", re.M)
"""Whether a program imports a framework, standalone Keras, and tf_keras."""


def of_string(text: str, code: str) -> str:
    """The canonical class of a string in `compile`: tf.keras's if no other Keras is imported."""
    cls = STRINGS.get(text.lower(), "")
    package = "tensorflow.keras"
    if IMPORTS_KERAS.search(code):
        package = "keras"
    elif IMPORTS_TF_KERAS.search(code):
        package = "tf_keras"
    return f"{package}.optimizers.{cls}" if cls else ""

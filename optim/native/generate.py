"""C++ from traces: functions for each variant of a rule and each dtype, and their names.

One function updates a run of elements; its C signature, `DtoptUpdate` in `abi.h`, is the same for all rules. A rule
that adds up over a whole variable, its matrices, its rows or its columns has further functions, `DtoptSums`, one after
the other. Each makes sums, or numbers of each row or column that elements need, from earlier results and the old slots.
Slots with fewer dims are stored by separate functions, `DtoptStores`.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from optim import rules
from optim.native.graph import COLUMNS, COUNTS, FULL, MATRICES, ONE, ROWS, UntraceableError, Value, kind_of
from optim.native.trace import Trace, trace
from optim.rule import Rule
from optim.summed_gradients import POWERS

INFIX = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
    "equal": "==",
    "not_equal": "!=",
    "logical_and": "&",
    "logical_or": "|",
}
CALLS = {
    "sqrt": "std::sqrt",
    "abs": "std::abs",
    "exp": "std::exp",
    "log": "std::log",
    "tanh": "std::tanh",
    "square": "Square",
    "sign": "Sign",
    "maximum": "Max",
    "minimum": "Min",
    "pow": "Power",
    "neg": "-",
    "logical_not": "!",
}


SHAPES = (FULL, ROWS, COLUMNS, ONE)
"""Shapes of slots, in the order in which the kernel gets them."""
SUMS = (ONE, MATRICES, ROWS, COLUMNS)
"""Kinds of sums, in the order of the struct `Adding` in `whole.h`."""
STORES = {"rows": ROWS, "columns": COLUMNS, "ones": ONE}
"""The functions that store slots of fewer dims."""


@dataclass(frozen=True)
class Pass:
    """The results of one function over all elements, rows or columns, `over`: sums, and numbers of each that it
    visits."""

    over: frozenset[str]
    sums: tuple[Value, ...]
    kept: tuple[Value, ...]

    def into(self, dims: frozenset[str]) -> tuple[Value, ...]:
        """Return the sums of all, of each matrix, of each row, or of each column."""
        return tuple(value for value in self.sums if kind_of(value) == dims)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The counts, as in the struct `Adding` in `whole.h`."""
        counts = {dims: len(self.into(dims)) for dims in SUMS}
        if self.over != FULL:
            counts[self.over] = len(self.kept)
        return (SHAPES.index(self.over), *counts.values())


@dataclass(frozen=True)
class Program:
    """A rule in the form that the kernel uses."""

    name: str
    """Name of its function: the class of the rule, and a digest of its formulas."""
    slots: tuple[str, ...]
    """Slots with the variable's shape, then those of rows, of columns, and single numbers."""
    scalars: tuple[str, ...]
    """Names of its coefficients, in order."""
    is_identity_at_zero: bool
    code: str
    shapes: tuple[int, ...] = ()
    """Number of slots of each of `SHAPES`."""
    passes: tuple[int, ...] = ()
    """The `numbers` of each function that adds up."""
    stored: tuple[str, ...] = ()
    """The `STORES` that have a function."""
    powers: tuple[int, ...] = ()
    """The `POWERS` whose sums it needs, if a gradient is the sum of several, in order."""

    @property
    def has_sums(self) -> bool:
        return bool(self.passes)

    @property
    def functions(self) -> tuple[str, ...]:
        count = len(self.passes) // (1 + len(SUMS))
        return (
            self.name,
            *(f"{self.name}_sums{k}" for k in range(count)),
            *(f"{self.name}_{end}" for end in self.stored),
        )


def program_for(
    rule: Rule | None, rank: int = 2, slots: Sequence[str] | None = None, is_sum: bool = False
) -> Program | None:
    """Return the program for variables of that rank with these slots, see `trace`; None if they have no kernel.

    `why_none` explains why.
    """
    try:
        return _program(trace(rule, rank, slots, is_sum))
    except UntraceableError:
        return None


def why_none(rule: Rule | None, rank: int = 2, slots: Sequence[str] | None = None, is_sum: bool = False) -> str:
    """Explain why there is no kernel for a rule; empty if there is one."""
    try:
        trace(rule, rank, slots, is_sum)
    except UntraceableError as error:
        return str(error)
    return ""


@lru_cache(maxsize=1024)
def _program(traced: Trace) -> Program:
    passes = _passes(traced)
    writer = _Writer(traced, passes)
    parts = {"": writer.update(), **{f"_sums{k}": writer.sums(pass_) for k, pass_ in enumerate(passes)}}
    stored = tuple(end for end, dims in STORES.items() if _stored(traced, dims))
    parts |= {f"_{end}": writer.stores(STORES[end]) for end in stored}
    digest = hashlib.sha256("".join(parts.values()).encode()).hexdigest()[:12]
    name = f"{traced.rule}_{digest}"
    if not name.isidentifier() or not name.isascii():
        name = f"Rule_{digest}"
    code = ""
    for end, body in parts.items():
        kind = "UPDATE" if not end else "SUMS" if end.startswith("_sums") else "STORES"
        code += f"template <typename T>\nDTOPT_{kind}({name}{end}) {{\n{body}}}\nDTOPT_EXPORT_{kind}({name}{end})\n"
    slots = [traced.slots_along(dims) for dims in SHAPES]
    return Program(
        name=name,
        slots=tuple(itertools.chain(*slots)),
        scalars=traced.scalars,
        is_identity_at_zero=traced.is_identity_at_zero,
        code=code,
        shapes=tuple(map(len, slots)),
        passes=tuple(itertools.chain(*(pass_.numbers for pass_ in passes))),
        stored=stored,
        powers=tuple([*POWERS].index(power) for power in traced.powers),
    )


def _passes(traced: Trace) -> list[Pass]:
    """Return the passes in an order in which every value is known before its use."""
    sums: dict[tuple[int, int], list[Value]] = {}
    for value in traced.sums:
        whole = value.operands[0]
        sums.setdefault((whole.level, _ORDER.index(kind_of(whole))), []).append(value)
    kept: dict[tuple[int, int], list[Value]] = {}
    for value in _boundary(traced):
        kept.setdefault((value.level, _ORDER.index(kind_of(value))), []).append(value)
    keys = sorted({*sums, *kept})
    return [Pass(_ORDER[key[1]], tuple(sums.get(key, ())), tuple(kept.get(key, ()))) for key in keys]


_ORDER = (ROWS, COLUMNS, FULL)
"""Order of functions that need sums of the same level: elements need numbers of rows and columns."""


def _boundary(traced: Trace) -> list[Value]:
    """Return the numbers of rows and of columns that elements need."""
    results = [traced.change, *traced.slots.values(), *(total.operands[0] for total in traced.sums)]
    of_elements = [value for value in _used(traced, results, ()) if kind_of(value) == FULL and value.op != "sum"]
    needed = {operand.number for value in of_elements for operand in value.operands}
    needed |= {value.number for value in (traced.change, *(traced.slots[n] for n in _stored(traced, FULL)))}
    return [value for value in traced.graph.values if value.number in needed and kind_of(value) in (ROWS, COLUMNS)]


def _stored(traced: Trace, dims: frozenset[str]) -> list[str]:
    """Return the slots of these dims that the rule updates."""
    return [name for name in traced.slots_along(dims) if name in traced.slots]


class _Writer:
    """The statements of a trace's functions.

    A function visits elements, rows or columns, `over`. Its inputs for each of these are streams; elements also get
    streams with the numbers of their column, and with sums of powers. Numbers of the row, the matrix and the whole are
    scalars.
    """

    def __init__(self, traced: Trace, passes: Sequence[Pass]):
        self._traced = traced
        symbol = traced.graph.symbol
        slots = {dims: [traced.old_slots[name] for name in traced.slots_along(dims)] for dims in SHAPES}
        sums = {dims: [v for pass_ in passes for v in pass_.into(dims)] for dims in SUMS}
        kept = {dims: [v for pass_ in passes if pass_.over == dims for v in pass_.kept] for dims in (ROWS, COLUMNS)}
        scalars = [*(symbol("scalar", name, ()) for name in traced.scalars), *slots[ONE]]
        scalars += [*(symbol("count", name, ()) for name in COUNTS), *sums[ONE]]
        of_matrix = [*scalars, *sums[MATRICES]]
        self._scalars = {FULL: [*of_matrix, *kept[ROWS]], ROWS: of_matrix, COLUMNS: of_matrix, ONE: scalars}
        powers = [value for value in traced.graph.values if value.op == "power"]
        self._streams = {
            FULL: [*slots[FULL], *powers, *kept[COLUMNS]],
            ROWS: [*slots[ROWS], *sums[ROWS]],
            COLUMNS: [*slots[COLUMNS], *sums[COLUMNS]],
            ONE: slots[ONE],
        }

    def update(self) -> str:
        """Return the function that updates variable and slots."""
        names, change = _stored(self._traced, FULL), self._traced.change
        lines = self._up_to(FULL, [change, *(self._traced.slots[name] for name in names)])
        lines += self._store(FULL, names)
        lines += [f"    Store(C(w + {_name(change)}), variable + i);", "  }"]
        return _text(lines)

    def sums(self, pass_: Pass) -> str:
        """Return the function of sums. The whole, the matrix and the row go into `sums`, one after the other; other
        results go to more streams.
        """
        whole, by_column = [*pass_.into(ONE), *pass_.into(MATRICES), *pass_.into(ROWS)], pass_.into(COLUMNS)
        results = [*((v.operands[0], "+=") for v in by_column), *((v, "=") for v in pass_.kept)]
        lines = [f"  Wide<T> t{k}[kTerms];" for k in range(len(whole))]
        first = len(self._streams[pass_.over])
        lines += [f"  double* __restrict a{k} = static_cast<double*>(slots[{first + k}]);" for k in range(len(results))]
        lines += self._up_to(pass_.over, [*(total.operands[0] for total in pass_.sums), *pass_.kept])
        lines += [f"    t{k}[i] = {_name(total.operands[0])};" for k, total in enumerate(whole)]
        lines += [f"    a{k}[i] {how} {_name(value)};" for k, (value, how) in enumerate(results)]
        lines += ["  }", *(f"  sums[{k}] += Sum(t{k}, size);" for k in range(len(whole)))]
        return _text(lines)

    def stores(self, dims: frozenset[str]) -> str:
        """Return the function for the slots that have these dims."""
        names = _stored(self._traced, dims)
        return _text([*self._up_to(dims, [self._traced.slots[n] for n in names]), *self._store(dims, names), "  }"])

    def _store(self, over: frozenset[str], names: Sequence[str]) -> list[str]:
        at = {value.args[0]: k for k, value in enumerate(self._streams[over]) if value.op == "slot"}
        return [f"    Store(C({_name(self._traced.slots[name])}), s{at[name]} + i);" for name in names]

    def _up_to(self, over: frozenset[str], results: Sequence[Value]) -> list[str]:
        """Return the statements that compute `results` of one element, row or column; the loop stays open."""
        streams, scalars = self._streams[over], self._scalars[over]
        at = {value.number: k for k, value in enumerate(streams)}
        scalar_at = {value.number: k for k, value in enumerate(scalars) if value.number not in at}
        used = _used(self._traced, results, {*at, *scalar_at})
        lines = ["  using C = Wide<T>;"]
        lines += [
            f"  const C {_name(v)} = static_cast<C>(scalars[{scalar_at[v.number]}]);"
            for v in used
            if v.number in scalar_at
        ]
        operations = [value for value in used if value.operands and value.number not in {*at, *scalar_at}]
        inner = {value.number for value in operations if kind_of(value) == over or over == ONE}
        lines += [f"  {_statement(value)}" for value in operations if value.number not in inner]
        types = {"slot": "T", "power": "C"}  # results for rows or columns are float64
        kinds = [types.get(value.op, "double") if kind_of(value) == over else "double" for value in streams]
        lines += [f"  {kind}* __restrict s{k} = static_cast<{kind}*>(slots[{k}]);" for k, kind in enumerate(kinds)]
        arrays = [*(["gradient", "variable"] if over == FULL else []), *(f"s{k}" for k in range(len(streams)))]
        lines.append(f"  DTOPT_ELEMENTS({', '.join(arrays)}) {{")
        if over == FULL:
            lines += ["    const C g = DTOPT_GRADIENT;", "    const C w = DTOPT_VARIABLE;"]
        lines += [f"    const C {_name(v)} = Load(s{at[v.number]}[i]);" for v in used if v.number in at]
        return lines + [f"    {_statement(value)}" for value in operations if value.number in inner]


def _text(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _used(traced: Trace, results: Sequence[Value], inputs: Collection[int]) -> list[Value]:
    """Return the values that the results depend on, operands first; not what `inputs` depend on, as all sums
    are."""
    needed: set[int] = set()
    pending = list(results)
    while pending:
        value = pending.pop()
        if value.number not in needed:
            needed.add(value.number)
            pending.extend(() if value.op == "sum" or value.number in inputs else value.operands)
    return [value for value in traced.graph.values if value.number in needed]


def _name(value: Value) -> str:
    if value.op == "constant":
        return _constant(value.args[0])
    return {"gradient": "g", "variable": "w"}.get(value.op, f"v{value.number}")


def _constant(text: str) -> str:
    special = {"inf": "C(INFINITY)", "-inf": "C(-INFINITY)", "nan": "C(NAN)"}
    return special.get(text, f"C({text})")


def _statement(value: Value) -> str:
    kind = "bool" if value.is_bool else "C"
    return f"const {kind} {_name(value)} = {_expression(value)};"


def _expression(value: Value) -> str:
    names = [_name(operand) for operand in value.operands]
    if value.op == "same":
        return names[0]
    if value.op == "where":
        return f"{names[0]} ? {names[1]} : {names[2]}"
    if value.op in INFIX:
        return f"{names[0]} {INFIX[value.op]} {names[1]}"
    return f"{CALLS[value.op]}({', '.join(names)})"


def source(programs: Iterable[Program]) -> str:
    """Return one C++ file with all of them, each once."""
    by_name = {program.name: program for program in programs}
    return '#include "math.h"\n\n' + "\n".join(by_name[name].code for name in sorted(by_name))


def builtin_programs() -> list[Program]:
    """Return the programs of all rules in `optim/rules`, in every combination of their yes-or-no choices."""
    every = [rule for cls in rules.every() for rule in _variants(cls)]
    programs = [program_for(rule, rank) for rule in every for rank in ((2,) if rule.elementwise else range(4))]
    programs += [program_for(rule, is_sum=True) for rule in every]
    return list({program.name: program for program in programs if program is not None}.values())


def _variants(cls: Any) -> list[Any]:
    choices = [field.name for field in fields(cls) if field.type in (bool, "bool", "bool | None")]
    variants = []
    for values in itertools.product((False, True), repeat=len(choices)):
        try:
            variants.append(cls(**dict(zip(choices, values, strict=True))))
        except (TypeError, ValueError):  # an invalid combination of choices
            continue
    return variants

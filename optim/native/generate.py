"""C++ from traces: one function for each variant of a rule and each dtype, and what names it.

A function updates a run of elements. Its C signature, `DtoptUpdate` in `abi.h`, is the same for all rules. A rule that
adds something up over the whole variable has another one, `DtoptSums`, which is called before, for all elements: the
sums are scalars of the update. So are slots that are one number, of which `DtoptSingles` computes the new ones.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

from optim import rules
from optim.native.trace import GIVEN, Trace, UntraceableError, Value, trace
from optim.rule import Rule

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


@dataclass(frozen=True)
class Program:
    """A rule as the kernel knows it."""

    name: str
    """Of its function: the class of the rule, and a digest of what it computes."""
    slots: tuple[str, ...]
    """Those that are shaped like the variable, and behind them its singles."""
    scalars: tuple[str, ...]
    """Which coefficients it takes, in order."""
    is_identity_at_zero: bool
    has_sums: bool
    code: str
    singles: int = 0
    """How many slots are one number."""

    @property
    def functions(self) -> tuple[str, ...]:
        has = {"_sums": self.has_sums, "_singles": self.singles > 0}
        return (self.name, *(f"{self.name}{end}" for end, is_there in has.items() if is_there))


def program_for(rule: Rule | None) -> Program | None:
    """None if the rule has no kernel; `why_none` tells why."""
    try:
        return _program(trace(rule))
    except UntraceableError:
        return None


def why_none(rule: Rule | None) -> str:
    """Why there is no kernel for a rule; empty if there is."""
    try:
        trace(rule)
    except UntraceableError as error:
        return str(error)
    return ""


@lru_cache(maxsize=1024)
def _program(traced: Trace) -> Program:
    body, sums, singles = _body(traced), _sums(traced), _singles(traced)
    digest = hashlib.sha256((body + sums + singles).encode()).hexdigest()[:12]
    name = f"{traced.rule}_{digest}"
    if not name.isidentifier() or not name.isascii():
        name = f"Rule_{digest}"
    code = f"template <typename T>\nDTOPT_UPDATE({name}) {{\n{body}}}\nDTOPT_EXPORT({name})\n"
    if sums:
        code += f"template <typename T>\nDTOPT_SUMS({name}) {{\n{sums}}}\nDTOPT_EXPORT_SUMS({name})\n"
    if singles:
        code += f"template <typename T>\nDTOPT_SINGLES({name}) {{\n{singles}}}\nDTOPT_EXPORT_SINGLES({name})\n"
    slots, count = (*traced.slot_names, *traced.singles), len(traced.singles)
    return Program(name, slots, traced.scalars, traced.is_identity_at_zero, bool(sums), code, count)


def _body(traced: Trace) -> str:
    """The function's statements: pointers, what is the same for all elements, and the loop."""
    own = {name: value for name, value in traced.slots.items() if name in traced.slot_names}
    lines = _up_to(traced, [traced.change, *own.values()])
    for name, value in own.items():
        lines.append(f"    Store(C({_name(value)}), s{traced.slot_names.index(name)} + i);")
    lines += [f"    Store(C(w + {_name(traced.change)}), variable + i);", "  }"]
    return "".join(f"{line}\n" for line in lines)


def _sums(traced: Trace) -> str:
    """The statements of the function that adds up; empty if nothing is."""
    if not traced.sums:
        return ""
    terms = [total.operands[0] for total in traced.sums]
    lines = [f"  Wide<T> t{k}[kTerms];" for k in range(len(terms))] + _up_to(traced, terms)
    lines += [f"    t{k}[i] = {_name(term)};" for k, term in enumerate(terms)] + ["  }"]
    lines += [f"  sums[{k}] += Sum(t{k}, size);" for k in range(len(terms))]
    return "".join(f"{line}\n" for line in lines)


def _singles(traced: Trace) -> str:
    """The statements of the function that computes slots that are one number; empty if there are none."""
    new = {name: value for name, value in traced.slots.items() if name in traced.singles}
    lines = _uniform(_used(traced, list(new.values())), traced) if traced.singles else []
    for name, value in new.items():
        lines.append(f"  Store(C({_name(value)}), static_cast<T*>(singles[{traced.singles.index(name)}]));")
    return "".join(f"{line}\n" for line in lines)


def _uniform(used: Sequence[Value], traced: Trace) -> list[str]:
    """What computes those of the values `used` that are the same for all elements."""
    lines = ["  using C = Wide<T>;"]
    for position, value in enumerate(traced.given):
        if any(value is other for other in used):
            lines.append(f"  const C {_name(value)} = static_cast<C>(scalars[{position}]);")
    return lines + [f"  {_statement(v)}" for v in used if v.uniform and v.op not in ("constant", *GIVEN)]


def _up_to(traced: Trace, results: Sequence[Value]) -> list[str]:
    """What computes `results` of one element: the loop is left open."""
    used = _used(traced, results)
    lines = _uniform(used, traced)
    lines += [f"  T* __restrict s{k} = static_cast<T*>(slots[{k}]);" for k in range(len(traced.slot_names))]
    streams = ", ".join(["gradient", "variable", *(f"s{k}" for k in range(len(traced.slot_names)))])
    lines += [f"  DTOPT_ELEMENTS({streams}) {{", "    const C g = DTOPT_GRADIENT;", "    const C w = DTOPT_VARIABLE;"]
    for value in used:
        if value.op == "slot":
            lines.append(f"    const C {_name(value)} = Load(s{traced.slot_names.index(value.args[0])}[i]);")
        elif not value.uniform and value.operands:
            lines.append(f"    {_statement(value)}")
    return lines


def _used(traced: Trace, results: Sequence[Value]) -> list[Value]:
    """What the results depend on, operands first; not what sums are of, which are given."""
    wanted: set[int] = set()
    pending = list(results)
    while pending:
        value = pending.pop()
        if value.number not in wanted:
            wanted.add(value.number)
            pending.extend(value.operands if value.op != "sum" else ())
    return [value for value in traced.graph.values if value.number in wanted]


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
    if value.op == "where":
        return f"{names[0]} ? {names[1]} : {names[2]}"
    if value.op in INFIX:
        return f"{names[0]} {INFIX[value.op]} {names[1]}"
    return f"{CALLS[value.op]}({', '.join(names)})"


def source(programs: Iterable[Program]) -> str:
    """One C++ file with all of them, each once."""
    by_name = {program.name: program for program in programs}
    return '#include "math.h"\n\n' + "\n".join(by_name[name].code for name in sorted(by_name))


def builtin_programs() -> list[Program]:
    """Of all rules in `optim/rules`, in every combination of their yes-or-no choices."""
    found = (program_for(rule) for cls in rules.every() for rule in _variants(cls))
    return [program for program in found if program is not None]


def _variants(cls: Any) -> list[Any]:
    choices = [field.name for field in fields(cls) if field.type in (bool, "bool", "bool | None")]
    made = []
    for values in itertools.product((False, True), repeat=len(choices)):
        try:
            made.append(cls(**dict(zip(choices, values, strict=True))))
        except (TypeError, ValueError):  # a combination that the rule refuses
            continue
    return made

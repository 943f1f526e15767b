"""A plan of Spark's, done by the driver over few rows: what Spark would make, before it has planned its jobs.

Spark says what a table is, and builds it where there is much; here its own plan is walked, step by step, with pyarrow.
What is not known here is left to Spark. A test compares the two over all tables.
"""

# pyarrow's type stubs leave most types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeArgument=false, reportUnknownLambdaType=false

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from agentpost.pipeline.kernels import FUNCTIONS, as_array, list_of, literal
from agentpost.pipeline.plans import COLUMN, Expression, Step, Unknown
from agentpost.pipeline.silver.merging import joined_bits

__all__ = ["walk"]

# Arrays have as many values as there are rows; a scalar stands for the same value in each.
Value = Any
# How pyarrow adds up the values of a group.
_SUMS: Final = {"Sum": "sum", "Min": "min", "Max": "max", "Count": "count", "CollectList": "list", "BitOrAgg": "list"}


class Rows:
    """Columns by their numbers, made when they are asked for, and all that was computed of them."""

    def __init__(self, count: int, columns: Mapping[int, Callable[[], Value]]) -> None:
        self.count = count
        self.numbers = tuple(columns)
        self._columns = columns
        self._values: dict[Expression | int, Value] = {}

    def column(self, number: int) -> pa.Array:
        if number not in self._values:
            self._values[number] = as_array(self._columns[number](), self.count)
        return self._values[number]

    def value(self, of: Expression) -> Value:
        if of.kind == COLUMN:
            return self.column(of.detail)
        if of not in self._values:
            self._values[of] = self._computed(of)
        return self._values[of]

    def array(self, of: Expression) -> pa.Array:
        return as_array(self.value(of), self.count)

    def keep(self, of: Expression, value: pa.Array) -> None:
        """Take a value as known."""
        self._values[of] = value

    def taken(self, places: pa.Array) -> dict[int, Callable[[], Value]]:
        """These columns, with the rows at these places; null where a place is."""
        return {number: lambda number=number: self.column(number).take(places) for number in self.numbers}

    def _computed(self, of: Expression) -> Value:
        match of.kind:
            case "Literal":
                return literal(of)
            case "Coalesce":
                return self._first_told(of.arguments)
            case "ArrayFilter":
                lists, function = cast("pa.ListArray", self.array(of.arguments[0])), of.arguments[1]
                condition, variable = function.arguments
                each = Rows(len(lists.flatten()), {variable.detail: lists.flatten})
                return list_of(lists, each.array(condition))
            case kind if kind in FUNCTIONS:
                return FUNCTIONS[kind](of, *[self.value(each) for each in of.arguments])
            case kind:
                raise Unknown(kind)

    def _first_told(self, arguments: Sequence[Expression]) -> Value:
        """What comes after one that is never null is not computed."""
        told: list[Value] = []
        for each in arguments:
            told.append(self.value(each))
            if isinstance(told[-1], pa.Array) and not told[-1].null_count:
                break
        return pc.coalesce(*told)


def walk(plan: Step, tables: Sequence[pa.Table], schema: pa.Schema) -> pa.Table:
    """The rows of a plan. Its inputs are known by their columns."""
    inputs = {tuple(table.column_names): table.combine_chunks() for table in tables}
    found = _walked(plan, inputs)
    columns = [found.column(number) for number in found.numbers]
    return pa.table(columns, names=schema.names).cast(schema)


def _walked(step: Step, inputs: Mapping[tuple[str, ...], pa.Table]) -> Rows:
    if step.kind == "Input":
        return _input(step, inputs)
    before = [_walked(each, inputs) for each in step.steps]
    return _STEPS[step.kind](step, *before)


def _input(step: Step, inputs: Mapping[tuple[str, ...], pa.Table]) -> Rows:
    names = tuple(each.name for each in step.gives)
    if names not in inputs:
        raise Unknown(f"an input with the columns {', '.join(names)}")
    table = inputs[names]
    return Rows(table.num_rows, {each.number: lambda name=each.name: _joined(table[name]) for each in step.gives})


def _project(step: Step, rows: Rows) -> Rows:
    return Rows(rows.count, {each.number: lambda value=each.value: rows.value(value) for each in step.gives})


def _filter(step: Step, rows: Rows) -> Rows:
    mask = cast("pa.BooleanArray", rows.array(step.by[0]))
    if mask.true_count == rows.count:
        return rows
    return Rows(
        mask.true_count, {number: lambda number=number: rows.column(number).filter(mask) for number in rows.numbers}
    )


def _union(_step: Step, *parts: Rows) -> Rows:
    columns: dict[int, Callable[[], Value]] = {}
    for place, number in enumerate(parts[0].numbers):
        columns[number] = lambda place=place: pa.concat_arrays([each.column(each.numbers[place]) for each in parts])
    return Rows(sum(each.count for each in parts), columns)


def _aggregate(step: Step, rows: Rows) -> Rows:
    if not step.by:
        raise Unknown("an aggregate of all rows")
    sums = list(dict.fromkeys(each for one in step.gives for each in _sums_in(one.value)))
    told: list[Any] = [(f"value {n}", _how(each)) for n, each in enumerate(sums)]
    keys = {f"key {n}": _Key(rows.array(key)) for n, key in enumerate(step.by)}
    columns = {name: key.values for name, key in keys.items()}
    columns |= {f"value {n}": _added_up(each, rows) for n, each in enumerate(sums)}
    if any(pa.types.is_floating(values.type) for values in columns.values()):
        raise Unknown("floating numbers, whose sum depends on their order")
    found = pa.table(columns).group_by(list(keys), use_threads=False).aggregate(told)
    known = {by: key.original(_joined(found[name])) for by, (name, key) in zip(step.by, keys.items(), strict=True)}
    known |= {each: _told(each, _joined(found[f"value {n}_{_how(each)}"])) for n, each in enumerate(sums)}
    groups = Rows(found.num_rows, {key.detail: lambda key=key: known[key] for key in step.by if key.kind == COLUMN})
    for expression, values in known.items():
        groups.keep(expression, values)
    return _project(step, groups)


def _added_up(aggregate: Expression, rows: Rows) -> pa.Array:
    """The values that an aggregate is over: null, which counts for none of them, where its filter leaves a row out."""
    function, *conditions = aggregate.arguments
    values = rows.array(function.arguments[0])
    return pc.if_else(rows.array(conditions[0]), values, pa.scalar(None, values.type)) if conditions else values


class _Key:
    """What rows are grouped by. pyarrow cannot do it by lists: those are numbered."""

    def __init__(self, values: pa.Array) -> None:
        self.values = values
        self._lists: pa.Array | None = None
        if isinstance(values, pa.ListArray):
            numbers: dict[Any, int] = {}
            told = [None if each is None else tuple(each) for each in values.to_pylist()]
            self.values = pa.array([numbers.setdefault(each, len(numbers)) for each in told], pa.int64())
            self._lists = pa.array(list(numbers), values.type)

    def original(self, values: pa.Array) -> pa.Array:
        return values if self._lists is None else self._lists.take(values)


def _told(aggregate: Expression, values: pa.Array) -> pa.Array:
    """What pyarrow gives, as Spark has it."""
    match aggregate.arguments[0].kind:
        case "CollectList":
            lists = cast("pa.ListArray", values)
            return list_of(lists, lists.flatten().is_valid())
        case "BitOrAgg":
            return joined_bits(cast("pa.ListArray", values))
        case _:
            return values


def _sums_in(expression: Expression) -> Iterator[Expression]:
    if expression.kind == "AggregateExpression":
        yield expression
    else:
        for each in expression.arguments:
            yield from _sums_in(each)


def _how(aggregate: Expression) -> str:
    function = aggregate.arguments[0]
    if function.kind not in _SUMS or len(function.arguments) != 1:
        raise Unknown(function.kind)
    return _SUMS[function.kind]


def _join(step: Step, left: Rows, right: Rows) -> Rows:
    pairs = [_sides(each, left) for each in _conjuncts(step.by[0])]
    keys = [left.array(one) for one, _ in pairs]
    others = [right.array(other) for _, other in pairs]
    if len(pairs) == 1 and len(others[0].unique()) == right.count:
        places = pc.index_in(keys[0], value_set=others[0], skip_nulls=True)
        if step.is_outer:
            return Rows(left.count, {**_columns(left), **right.taken(places)})
        kept = pa.array(np.flatnonzero(np.asarray(places.is_valid())))
        return _paired(left, kept, right, places.drop_null())
    names = [f"key {n}" for n in range(len(pairs))]
    here = pa.table([*keys, pa.array(np.arange(left.count))], names=[*names, "left"])
    there = pa.table([*others, pa.array(np.arange(right.count))], names=[*names, "right"])
    found = here.join(there, names, join_type="left outer" if step.is_outer else "inner", use_threads=False)
    return _paired(left, _joined(found["left"]), right, _joined(found["right"]))


def _paired(left: Rows, ours: pa.Array, right: Rows, theirs: pa.Array) -> Rows:
    return Rows(len(ours), {**left.taken(ours), **right.taken(theirs)})


def _columns(rows: Rows) -> dict[int, Callable[[], Value]]:
    return {number: lambda number=number: rows.column(number) for number in rows.numbers}


def _conjuncts(condition: Expression) -> Iterator[Expression]:
    if condition.kind == "And":
        for each in condition.arguments:
            yield from _conjuncts(each)
    else:
        yield condition


def _sides(condition: Expression, left: Rows) -> tuple[Expression, Expression]:
    """What of the left is compared with what of the right."""
    if condition.kind != "EqualTo":
        raise Unknown(f"a join by {condition.kind}")
    one, other = condition.arguments
    return (one, other) if _numbers(one) <= set(left.numbers) else (other, one)


def _numbers(expression: Expression) -> set[int]:
    if expression.kind == COLUMN:
        return {expression.detail}
    return set[int]().union(*map(_numbers, expression.arguments))


def _generate(step: Step, rows: Rows) -> Rows:
    generator = step.by[0]
    lists = cast("pa.ListArray", rows.array(generator.arguments[0]))
    values, parents = lists.flatten(), pc.list_parent_indices(lists)
    match generator.kind:
        case "Inline":
            found = cast("pa.StructArray", values).flatten()
        case "Explode":
            found = [values]
        case "PosExplode":
            starts = np.asarray(lists.offsets)[np.asarray(parents)] - lists.offsets[0].as_py()
            found = [pa.array(np.arange(len(values)) - starts, pa.int32()), values]
        case kind:
            raise Unknown(kind)
    made = {each.number: lambda column=column: column for each, column in zip(step.gives, found, strict=True)}
    return Rows(len(values), {**rows.taken(parents), **made})


_STEPS: Final[Mapping[str, Callable[..., Rows]]] = {
    "Project": _project,
    "Filter": _filter,
    "Union": _union,
    "Aggregate": _aggregate,
    "Join": _join,
    "Generate": _generate,
}


def _joined(column: pa.ChunkedArray) -> pa.Array:
    found = column.combine_chunks()
    return pa.concat_arrays(found.chunks) if isinstance(found, pa.ChunkedArray) else found

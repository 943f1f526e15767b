"""What Spark's expressions mean, in pyarrow and numpy: nulls, overflows and types as Spark has them.

What could come out otherwise is refused: an overflow raises, as it does in Spark, and whoever asked lets Spark decide.
"""

# pyarrow's type stubs leave most types open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeArgument=false, reportUnknownLambdaType=false

from collections.abc import Callable, Mapping
from functools import lru_cache, reduce
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from agentpost.pipeline.hashes import hash_of_texts
from agentpost.pipeline.plans import Expression, Unknown

__all__ = ["FUNCTIONS", "as_array", "list_of", "literal"]

Value = Any
_TYPES: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
}


def literal(of: Expression) -> pa.Scalar:
    """A value that stands in the plan."""
    kind = _type(of)
    if of.value is None or pa.types.is_string(kind):
        return pa.scalar(of.value, kind)
    if pa.types.is_boolean(kind):
        return pa.scalar(of.value == "true")
    return pa.scalar(float(of.value) if pa.types.is_floating(kind) else int(of.value), kind)


def as_array(value: Value, count: int) -> pa.Array:
    """A value for each row."""
    return cast("Any", pa).repeat(value, count) if isinstance(value, pa.Scalar) else value


def list_of(lists: pa.ListArray, is_kept: Value) -> pa.ListArray:
    """The lists with only those of their values that are kept."""
    parents = np.asarray(pc.list_parent_indices(lists))[np.asarray(is_kept)]
    return _lists(np.bincount(parents, minlength=len(lists)), lists.flatten().filter(is_kept))


def _type(of: Expression) -> pa.DataType:
    if not isinstance(of.detail, str) or of.detail not in _TYPES:
        raise Unknown(f"the type {of.detail}")
    return _TYPES[of.detail]


def _cast(of: Expression, value: Value) -> Value:
    if not (_is_number(value) or pa.types.is_boolean(value.type)) or pa.types.is_string(_type(of)):
        raise Unknown(f"{value.type} as {of.detail}")
    return value.cast(_type(of))


def _is_number(value: Value) -> bool:
    return pa.types.is_integer(value.type) or pa.types.is_floating(value.type)


def _case(_of: Expression, *values: Value) -> Value:
    """Conditions and values by turns, then what is left."""
    conditions, chosen = values[0 : len(values) // 2 * 2 : 2], values[1::2]
    return pc.case_when(pc.make_struct(*conditions), *chosen, *values[len(conditions) * 2 :])


def _is_same(one: Value, other: Value) -> Value:
    return pc.coalesce(pc.equal(one, other), pc.and_(pc.is_null(one), pc.is_null(other)))


def _is_in(value: Value, *others: Value) -> Value:
    return reduce(pc.or_kleene, [pc.equal(value, other) for other in others])


def _divided(_of: Expression, one: Value, other: Value) -> Value:
    if pc.any(pc.equal(_as_array(other), pa.scalar(0, other.type))).as_py():
        raise Unknown("a division by zero")
    return pc.divide(one, other)


def _bit_count(_of: Expression, value: Value) -> Value:
    numbers = _as_array(value)
    bits = np.asarray(numbers.cast(pa.int64()).fill_null(0)).view(np.uint64)
    return pa.array(np.bitwise_count(bits).astype(np.int32), mask=np.asarray(numbers.is_null()))


def _each(function: Callable[[Any], Any], kind: pa.DataType, value: Value) -> Value:
    """A function of Python's for each value that there is; the same ones come again and again."""
    coded = _as_array(value).dictionary_encode()
    return pa.array([function(each.as_py()) for each in coded.dictionary], kind).take(coded.indices)


def _hex(_of: Expression, value: Value) -> Value:
    if not pa.types.is_int64(value.type):
        raise Unknown(f"hex of {value.type}")
    return _each(lambda number: f"{number & (1 << 64) - 1:X}", pa.string(), value)


def _lower(_of: Expression, value: Value) -> Value:
    if pc.any(pc.invert(pc.string_is_ascii(_as_array(value)))).as_py():
        raise Unknown("letters beyond ASCII")
    return pc.ascii_lower(value)


def _hashed(of: Expression, *values: Value) -> Value:
    if not all(pa.types.is_string(each.type) for each in values):
        raise Unknown("a hash of something else than texts")
    columns = [_as_array(each).to_pylist() for each in values]
    return pa.array([_hash(of.detail, texts) for texts in zip(*columns, strict=True)], pa.int64())


@lru_cache(maxsize=100_000)
def _hash(seed: int, texts: tuple[str | None, ...]) -> int:
    return hash_of_texts(texts, seed)


def _joined_texts(_of: Expression, separator: Value, *texts: Value) -> Value:
    return pc.binary_join_element_wise(*texts, separator, null_handling="skip")


def _item(_of: Expression, lists: pa.ListArray, place: Value) -> Value:
    """Null for a place that a list does not have."""
    offsets, nth = np.asarray(lists.offsets), _as_array(place)
    wanted = np.asarray(nth.cast(pa.int64()).fill_null(-1))
    is_there = np.asarray(lists.is_valid()) & (wanted >= 0) & (wanted < np.diff(offsets))
    places: Any = pa.array(offsets[:-1] + wanted, mask=~is_there)
    return lists.values.take(places)


def _sorted(_of: Expression, lists: pa.ListArray, is_ascending: pa.BooleanScalar) -> Value:
    values = lists.flatten()
    if values.null_count or lists.null_count or not pa.types.is_integer(values.type) or not is_ascending.as_py():
        raise Unknown("an order of something else than whole numbers")
    order: Any = np.lexsort((np.asarray(values), np.asarray(pc.list_parent_indices(lists))))
    return _lists(np.asarray(pc.list_value_length(lists)), values.take(order))


def _list(_of: Expression, *values: Value) -> Value:
    """Several columns as one of lists."""
    count, width = max(len(each) for each in values if isinstance(each, pa.Array)), len(values)
    by_row: Any = np.arange(count * width).reshape(width, count).T.ravel()
    columns = pa.concat_arrays([as_array(each, count) for each in values])
    return _lists(np.full(count, width), columns.take(by_row))


def _struct(_of: Expression, *values: Value) -> Value:
    return pc.make_struct(*values[1::2], field_names=[name.as_py() for name in values[::2]])


def _lists(lengths: npt.NDArray[np.integer], values: pa.Array) -> pa.ListArray:
    """Values that stand one after the other, as lists of these lengths."""
    ends = np.concatenate(([0], np.cumsum(lengths)))
    return pa.ListArray.from_arrays(cast("Any", pa.array(ends, pa.int32())), values)


def _as_array(value: Value) -> pa.Array:
    return as_array(value, 1)


def _contains(_of: Expression, text: Value, part: Value) -> Value:
    if not isinstance(part, pa.Scalar) or part.as_py() is None:
        raise Unknown("a part of a text that is not the same for all")
    return pc.match_substring(text, part.as_py())


def _shifted(shift: Callable[..., Value]) -> Callable[..., Value]:
    """As Java shifts: by no more than the bits that there are."""

    def move(_of: Expression, value: Value, by: Value) -> Value:
        most = pa.scalar(value.type.bit_width - 1, by.type)
        places = pc.bit_wise_and(by, most)
        # pyarrow does not move anything into or out of the sign.
        if pc.any(pc.equal(_as_array(places), most)).as_py():
            raise Unknown("a shift by all bits")
        return shift(value, places)

    return move


def _compared(function: Callable[..., Value]) -> Callable[..., Value]:
    """Of what is no number, Spark says that it equals itself and is the largest; nobody else does."""

    def compare(of: Expression, *values: Value) -> Value:
        if any(pa.types.is_floating(value.type) for value in values):
            raise Unknown(f"{of.kind} of floating numbers")
        return function(*values)

    return compare


def _plain(function: Callable[..., Value]) -> Callable[..., Value]:
    return lambda _of, *values: function(*values)


FUNCTIONS: Final[Mapping[str, Callable[..., Value]]] = {
    "And": _plain(pc.and_kleene),
    "Or": _plain(pc.or_kleene),
    "Not": _plain(pc.invert),
    "IsNull": _plain(pc.is_null),
    "IsNotNull": _plain(pc.is_valid),
    "EqualTo": _compared(pc.equal),
    "EqualNullSafe": _compared(_is_same),
    "LessThan": _compared(pc.less),
    "LessThanOrEqual": _compared(pc.less_equal),
    "GreaterThan": _compared(pc.greater),
    "GreaterThanOrEqual": _compared(pc.greater_equal),
    "In": _compared(_is_in),
    "CaseWhen": _case,
    "If": _case,
    "Least": _compared(pc.min_element_wise),
    "Greatest": _compared(pc.max_element_wise),
    "Add": _plain(pc.add_checked),
    "Subtract": _plain(pc.subtract_checked),
    "Multiply": _plain(pc.multiply_checked),
    "Divide": _divided,
    "IntegralDivide": _plain(pc.divide_checked),
    "Floor": _plain(lambda value: pc.floor(value).cast(pa.int64())),
    "Ceil": _plain(lambda value: pc.ceil(value).cast(pa.int64())),
    "Cast": _cast,
    "BitwiseAnd": _plain(pc.bit_wise_and),
    "BitwiseOr": _plain(pc.bit_wise_or),
    "ShiftLeft": _shifted(pc.shift_left),
    "ShiftRight": _shifted(pc.shift_right),
    "BitwiseCount": _bit_count,
    "Hex": _hex,
    "Lower": _lower,
    "Length": _plain(pc.utf8_length),
    "Contains": _contains,
    "Concat": _plain(lambda *texts: pc.binary_join_element_wise(*texts, "")),
    "ConcatWs": _joined_texts,
    "XxHash64": _hashed,
    "Size": _plain(pc.list_value_length),
    "GetArrayItem": _item,
    "SortArray": _sorted,
    "CreateArray": _list,
    "CreateNamedStruct": _struct,
}

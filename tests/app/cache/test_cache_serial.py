"""Values as frames: what comes back, where it lies, and what can't be written."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from forage.app.cache import dumps, loads

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=10,
)
ARRAYS = hnp.arrays(
    st.one_of(
        hnp.scalar_dtypes(),
        hnp.unicode_string_dtypes(min_len=1),
        hnp.array_dtypes(hnp.integer_dtypes() | hnp.floating_dtypes()),
    ),
    hnp.array_shapes(min_dims=0, max_dims=4, min_side=0),
)
TENSOR_DTYPES = [
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.float8_e4m3fn,
    torch.complex64,
    torch.int8,
    torch.int64,
    torch.uint16,
    torch.bool,
]


def copied(value: Any) -> Any:
    """Return `value` after its way through a message."""
    return loads(dumps(value).to_bytes())


@given(PLAIN)
def test_plain_values_come_back(value: Any) -> None:
    assert copied(value) == value


@given(ARRAYS, st.sampled_from(["C", "F", "reversed", "transposed", "strided"]))
def test_arrays_of_any_layout_come_back_read_only(array: Any, layout: str) -> None:
    if layout in "CF":
        array = np.array(array, order=layout)
    elif layout == "transposed":
        array = array.T
    elif array.ndim:
        array = array[::-1] if layout == "reversed" else array[::2]
    copy = copied(array)
    assert (copy.shape, copy.dtype) == (array.shape, array.dtype)
    assert copy.tobytes() == array.tobytes()
    assert not copy.flags.writeable
    with pytest.raises(ValueError, match="cannot set WRITEABLE"):
        copy.flags.writeable = True


@pytest.mark.parametrize("wrap", [lambda a: a, lambda a: {"deep": [a]}, lambda a: (a, a[1:])])
def test_arrays_lie_in_the_frame(wrap: Any) -> None:
    frame = bytearray(dumps(wrap(np.arange(1000.0))).to_bytes())
    copy = loads(frame)
    array = copy["deep"][0] if isinstance(copy, dict) else copy[0] if type(copy) is tuple else copy
    assert np.shares_memory(array, np.frombuffer(frame, np.uint8))


def test_an_array_of_objects_and_a_masked_array_come_back() -> None:
    assert copied(np.array([1, "two", None], dtype=object)).tolist() == [1, "two", None]
    assert copied(np.ma.masked_equal([1, 2, 3], 2)).tolist() == [1, None, 3]


@pytest.mark.parametrize("dtype", TENSOR_DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (4, 5)], ids=str)
def test_tensors_of_any_dtype_come_back_bit_for_bit(dtype: Any, shape: tuple[int, ...]) -> None:
    nbytes = math.prod(shape) * dtype.itemsize
    bits = torch.randint(0, 2 if dtype is torch.bool else 256, (nbytes,), dtype=torch.uint8)
    tensor = bits.view(dtype).reshape(shape)
    copy = copied({"weight": tensor})["weight"]
    assert (copy.dtype, copy.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(copy.reshape(-1).view(torch.uint8), bits)


def test_a_tensor_lies_in_the_frame() -> None:
    frame = bytearray(dumps(torch.ones(1000, dtype=torch.bfloat16)).to_bytes())
    start = np.frombuffer(frame, np.uint8).ctypes.data
    assert start < loads(frame).data_ptr() < start + len(frame)


def test_a_view_moves_only_its_own_elements() -> None:
    assert dumps(torch.zeros(1_000_000)[:10]).nbytes < 1000
    assert torch.equal(copied(torch.arange(6).reshape(2, 3).T), torch.arange(6).reshape(2, 3).T)
    assert torch.equal(copied(torch.tensor([1 + 2j]).conj()), torch.tensor([1 - 2j]))


def test_a_tensor_keeps_its_gradient_flag_and_attributes() -> None:
    tensor = torch.ones(3, requires_grad=True)
    tensor.role = "query"  # type: ignore[attr-defined]
    copy = copied(tensor)
    assert copy.requires_grad
    assert copy.role == "query"
    parameter = copied(torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16)))
    assert isinstance(parameter, torch.nn.Parameter)
    assert copied(tensor * 2).tolist() == [2, 2, 2]


def test_a_module_and_a_sparse_tensor_come_back() -> None:
    linear = torch.nn.Linear(3, 2)
    assert torch.equal(copied(linear)(torch.ones(3)), linear(torch.ones(3)))
    sparse = torch.eye(3).to_sparse()
    assert torch.equal(copied(sparse).to_dense(), torch.eye(3))


def test_functions_travel_by_value() -> None:
    offset = 3
    assert copied(lambda x: x + offset)(4) == 7


class Holder:
    def __init__(self) -> None:
        self.name = "holder"
        self.lock = threading.Lock()


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (threading.Lock(), r"batch \(a _thread\.lock\)"),
        ([1, {"a": Holder()}], r"batch\[1\]\['a'\]\.lock \(a _thread\.lock\)"),
        ((i for i in range(3)), r"batch \(a builtins\.generator\)"),
        ((lambda lock: lambda: lock)(threading.Lock()), r"batch's variable 'lock'"),
    ],
)
def test_what_cannot_be_pickled_is_named(value: Any, named: str) -> None:
    with pytest.raises(TypeError, match=f"^can't pickle {named}.*; leave it out") as caught:
        dumps(value, "batch")
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is not None


class Guarded(Holder):
    """Has a lock, which isn't why it can't be pickled."""

    def __reduce__(self) -> Any:
        raise RuntimeError("one per process")


def test_what_decides_its_own_pickling_is_named_itself() -> None:
    with pytest.raises(TypeError, match=r"^can't pickle value\[0\] .*Guarded\): one per process"):
        dumps([Guarded()])


def test_a_value_that_contains_itself_is_named_once() -> None:
    value: dict[str, Any] = {"lock": threading.Lock()}
    value["self"] = value
    with pytest.raises(TypeError, match=r"^can't pickle value\['lock'\]"):
        dumps(value)


def test_a_torn_frame_is_refused_wherever_it_is_torn() -> None:
    frame = dumps([np.arange(50), torch.ones(3), "text"]).to_bytes()
    for length in range(len(frame)):
        with pytest.raises(ValueError, match="a torn value|not a value"):
            loads(frame[:length])


def test_neither_numpy_nor_torch_is_imported_for_other_values() -> None:
    program = (
        "import sys; from forage.app.cache import dumps, loads;"
        "loads(dumps({'a': [1, b'x']}).to_bytes());"
        "assert not {'numpy', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)

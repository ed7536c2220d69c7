"""Arrays that the native part reads and writes. It asks each array itself where its numbers are, just before it copies them."""

from __future__ import annotations

from typing import Any


def array_of(array: Any, length: int | None = None, *, writable: bool = True) -> tuple[Any, int]:
    """A contiguous array of 32-bit floats in main memory, of NumPy or PyTorch, and its length. Of others that have DLPack: a view by NumPy,
    which keeps their memory."""
    kind = type(array).__name__
    if hasattr(array, "data_ptr"):
        if str(array.dtype) != "torch.float32" or array.device.type != "cpu" or not array.is_contiguous():
            raise TypeError(
                f"a contiguous tensor of torch.float32 on the CPU is needed; this one is {array.dtype} on {array.device}"
            )
        address, count = array.data_ptr(), array.numel()
    else:
        if not hasattr(array, "__array_interface__"):
            if not hasattr(array, "__dlpack__"):
                raise TypeError(f"an array of 32-bit floats is needed, of NumPy or with __dlpack__; this is a {kind}")
            array = _view(array)
        face = array.__array_interface__
        if face["typestr"][1:] != "f4" or face["typestr"][0] == ">" or face.get("strides") is not None:
            raise TypeError(f"a contiguous array of 32-bit floats is needed; this one has type {face['typestr']}")
        address, read_only = face["data"]
        if writable and read_only:
            raise TypeError(f"this {kind} cannot be written to; keep the parameters in a NumPy array, such as numpy.array(x)")
        count = 1
        for size in face["shape"]:
            count *= size
    if count and address % 4 != 0:
        raise ValueError(f"this {kind} does not begin at a multiple of 4 bytes in memory: give a copy, such as numpy.array(x)")
    if length is not None and count != length:
        raise ValueError(f"the array has {count} numbers, where {length} are expected")
    return array, count


def _view(array: Any) -> Any:
    """The memory of another framework's array. What is written to a copy would be lost, so an exporter that copies is refused: it has
    other memory each time."""
    import numpy

    view, again = numpy.from_dlpack(array), numpy.from_dlpack(array)
    if view.size and view.__array_interface__["data"][0] != again.__array_interface__["data"][0]:
        raise TypeError(
            f"__dlpack__ of this {type(array).__name__} gives a copy, so what a round writes would be lost: keep the parameters in a NumPy array"
        )
    return view

"""The numbers of an array, as an address that the native part reads and writes."""

from __future__ import annotations

from typing import Any


def address_of(array: Any, length: int | None = None, *, writable: bool = True) -> tuple[int, int]:
    """Address and length of a contiguous array of 32-bit floats in main memory: of NumPy, PyTorch, or one with DLPack."""
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
            import numpy

            array = numpy.from_dlpack(array)
        face = array.__array_interface__
        if face["typestr"][1:] != "f4" or face["typestr"][0] == ">" or face.get("strides") is not None:
            raise TypeError(f"a contiguous array of 32-bit floats is needed; this one has type {face['typestr']}")
        address, read_only = face["data"]
        if writable and read_only:
            raise TypeError(f"this {kind} cannot be written to; keep the parameters in a NumPy array, such as numpy.array(x)")
        count = 1
        for size in face["shape"]:
            count *= size
    if length is not None and count != length:
        raise ValueError(f"the array has {count} numbers, where {length} are expected")
    return address, count

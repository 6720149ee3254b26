# SPDX-License-Identifier: BSD-3-Clause
"""Memory of the host's. Inside the host `Buffer` is the native type; here is its face, for tooling and elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, Optional, Sequence, Union

from ._errors import NotInHost

try:
    import _bulkhead
except ImportError:  # not in the host: NotInHost says so when it matters
    _bulkhead = None  # type: ignore[assignment]

__all__ = ["Buffer"]


class Buffer:
    """Memory of the host's: what Buffer.allocate() makes, and what ops return as a buffer.

    Ops take it without a copy and without Python's help. Others read and write it through the buffer protocol
    (memoryview(x), numpy.asarray(x)) and DLPack (torch.from_dlpack(x)); the memory of a device through DLPack and
    __cuda_array_interface__ alone. It goes when the last reference, export and task that uses it have gone; that of a
    device may be freed before, by an op or with its plugin, and then says so.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise TypeError("a Buffer is made by Buffer.allocate(shape, dtype) or by an op")

    @classmethod
    def allocate(cls, shape: Union[int, Sequence[int]], dtype: Any = "float32", alignment: int = 64) -> Buffer:
        """A new Buffer of zeros, C-contiguous.

        `shape`: an int, or a tuple of at most 8. `dtype`: float16 float32 float64 bfloat16, int8 … int64, uint8 …
        uint64, bool, complex64 complex128, by name or as numpy and torch have them. `alignment`: of the first byte, a
        power of two from 1 to 2 MiB. ValueError, TypeError for what is none of these; MemoryError when there is not
        so much; NotInHost outside bulkheadd.
        """
        raise NotInHost("host.none", {"asked": f"Buffer.allocate({shape!r})"})

    shape: tuple[int, ...]
    """Elements of each dimension."""
    ndim: int
    """How many dimensions."""
    dtype: str
    """The elements' type, as "float32"."""
    itemsize: int
    """Bytes of an element."""
    nbytes: int
    """Bytes of all elements."""
    device: str
    """"cpu", or "cuda:0" and so on for the memory of a device."""
    address: int
    """Where the first byte lies."""
    alignment: int
    """The largest power of two, up to 2 MiB, that divides the address."""
    readonly: bool
    """Whether it may only be read."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """A device's memory for CuPy, Numba and others, version 3.

        AttributeError for the host's memory, and for elements that it has no name for (bfloat16: use DLPack);
        BufferError when the memory has been freed.
        """
        self._nowhere()

    def __len__(self) -> int:
        """Elements of the first dimension."""
        return self._nowhere()

    def __dlpack__(
        self,
        stream: Optional[int] = None,
        *,
        max_version: Optional[tuple[int, int]] = None,
        dl_device: Optional[tuple[int, int]] = None,
        copy: Optional[bool] = None,
    ) -> Any:
        """A capsule with the memory for DLPack's consumers; it keeps the memory alive.

        `stream`: None for the host's memory; for a device's also -1, 1, 2 or a stream's address: nothing has to wait, as
        a task's outcome is told after the device is done with it.
        """
        self._nowhere()

    def __dlpack_device__(self) -> tuple[int, int]:
        """(1, 0): the CPU; (2, n): the CUDA device n; (3, 0): pinned by CUDA."""
        self._nowhere()

    if TYPE_CHECKING:

        def __buffer__(self, flags: int, /) -> memoryview: ...

    def _nowhere(self) -> NoReturn:
        raise NotInHost("host.none", {"asked": "a Buffer"})


if not TYPE_CHECKING:
    if _bulkhead is not None:
        Buffer = _bulkhead.Buffer

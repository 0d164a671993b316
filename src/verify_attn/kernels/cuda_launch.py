"""A CUDA kernel that is launched again and again with the same grid, at little cost to the host."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any


def check_status(status: int, call: str) -> None:
    """Raise ``RuntimeError`` with the driver's name of an error."""
    if status != 0:
        from cuda.bindings import driver

        raise RuntimeError(f"{call} failed: {driver.CUresult(status)!r}")


@cache
def launcher() -> Any:
    """The driver's ``cuLaunchKernelEx``.

    Not by cuda.bindings, which makes the structure of a launch anew for each: that took the host
    about as long as the launch.
    """
    function = ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx
    function.argtypes, function.restype = [ctypes.c_void_p] * 4, ctypes.c_int
    return function


class Launch:
    """One kernel with its grid.

    ``function``  its handle
    ``shared``    dynamic shared memory, bytes a block
    ``params``    its only parameter; the driver copies it at each launch
    ``overlaps``  it may be started while the kernel before it ends (from sm_90 on)
    """

    def __init__(
        self,
        name: str,
        function: int,
        grid: tuple[int, int, int],
        threads: int,
        shared: int,
        params: ctypes.Array[ctypes.c_char],
        overlaps: bool = False,
    ) -> None:
        from cuda.bindings import driver

        how = driver.CUlaunchConfig()
        how.gridDimX, how.gridDimY, how.gridDimZ = grid
        how.blockDimX, how.blockDimY, how.blockDimZ = threads, 1, 1
        how.sharedMemBytes = shared
        if overlaps:
            attribute = driver.CUlaunchAttribute()
            names = driver.CUlaunchAttributeID
            attribute.id = names.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            attribute.value.programmaticStreamSerializationAllowed = 1
            how.attrs, how.numAttrs = [attribute], 1
        self.name, self._how, self._stream, self._launch = name, how, 0, launcher()
        self._params = (ctypes.c_void_p * 1)(ctypes.addressof(params))
        self._kept = params
        self._arguments = how.getPtr(), function, ctypes.addressof(self._params), None

    def __call__(self, stream: int) -> None:
        """Launch on the stream of that handle; raises ``RuntimeError`` where the driver refuses."""
        if stream != self._stream:
            self._how.hStream = self._stream = stream
        if status := self._launch(*self._arguments):
            check_status(status, f"launching {self.name}")

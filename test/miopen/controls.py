"""Controls that tests set in the stub of MIOpen and read from it (control.cpp)."""

import ctypes
from pathlib import Path


class Stub:
    """Controls of a loaded stub, named without `stub_`: `Stub(path).runs(85)`."""

    _TEXT, _ID, _POINTER, _INT = ctypes.c_char_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_int
    _CONTROLS = {  # name: (result, arguments)
        "reset": (None,),
        "inject": (None, _TEXT, _INT, _INT),
        "use_registry": (None, _TEXT),
        "set_applicable": (None, _TEXT),
        "set_mlir": (None, _INT),
        "expect_stream": (None, _POINTER),
        "expect_stream_of_thread": (None, _POINTER),
        "fail_blas_in_capture": (None, _INT),
        "calls": (ctypes.c_int64, _TEXT),
        "calls_of_thread": (ctypes.c_int64, _TEXT),
        "failures": (ctypes.c_int64,),
        "compilations": (ctypes.c_int64, _ID),
        "runs": (ctypes.c_int64, _ID),
        "last_run": (_TEXT,),
        "last_stream": (_POINTER,),
        "live_handles": (ctypes.c_int64,),
        "live_tensors": (ctypes.c_int64,),
        "live_convolutions": (ctypes.c_int64,),
    }
    _DIRECTIONS = ("Forward", "BackwardData", "BackwardWeights")

    def __init__(self, path: Path) -> None:
        self.library = ctypes.CDLL(str(path))
        for name, (result, *arguments) in self._CONTROLS.items():
            function = getattr(self.library, f"stub_{name}")
            function.restype, function.argtypes = result, arguments

    def __getattr__(self, name: str):
        if name not in self._CONTROLS:
            raise AttributeError(name)
        function = getattr(self.library, f"stub_{name}")

        def call(*arguments):
            result = function(*(a.encode() if isinstance(a, str) else a for a in arguments))
            return result.decode() if isinstance(result, bytes) else result

        return call

    def queries(self, of_thread: bool = False) -> int:
        """Number of workspace queries."""
        return self._of_directions("GetSolutionWorkspaceSize", of_thread)

    def looks_at_solutions(self) -> int:
        """Number of queries for MIOpen's own choice of a solver."""
        return self._of_directions("GetSolution") + self._of_directions("GetSolutionCount")

    def _of_directions(self, function: str, of_thread: bool = False) -> int:
        count = self.calls_of_thread if of_thread else self.calls
        return sum(count(f"miopenConvolution{direction}{function}") for direction in self._DIRECTIONS)

"""Tensors of plans as bytes, for later processes. PyTorch pickles and loads plans while fake tensors are traced."""

from __future__ import annotations

import pickle

from ..ir.fake_tensors import real_tensors


class Constants(list):
    """A list that pickles with the elements of its tensors, and loads with them, in any mode. Those of a GPU are copied
    to the host and back, of which fake tensors have nothing."""

    def __reduce__(self):
        with real_tensors():
            return _constants, (pickle.dumps([*self]),)


def _constants(data: bytes) -> Constants:
    with real_tensors():
        return Constants(pickle.loads(data))

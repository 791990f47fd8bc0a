"""Maps of axes, and index maps with such terms."""

import itertools
import math
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from marks import needs_aten

from torch_reformer.compiler.codegen.map_tables import MapTable, table_of
from torch_reformer.compiler.decompositions.tracing import tracing
from torch_reformer.compiler.fusion.group import FusionGroup, has_too_many_strided
from torch_reformer.compiler.ir.access import Access, Term, access_of, composed, fill_bits
from torch_reformer.compiler.ir.axis_map import AxisMap
from torch_reformer.compiler.ir.index_maps import index_map_of
from torch_reformer.compiler.ir.iteration_space import IterationSpace, find_space, fits
from torch_reformer.compiler.ir.layout import Layout
from torch_reformer.compiler.lowering.resampled import _of_pool, _of_upsampling

ROLL = AxisMap.choosing(5, [3, 4, 0, 1, 2])
PAD = AxisMap.choosing(3, [-1, 0, 1, 2, 3])


def matrix(axis_map: AxisMap) -> torch.Tensor:
    dense = torch.zeros(len(axis_map.rows), axis_map.size, dtype=torch.float64)
    for i, row in enumerate(axis_map.rows):
        for place, weight in row:
            dense[i, place] = weight
    return dense


rows = st.lists(
    st.dictionaries(st.integers(0, 3), st.sampled_from([1.0, 0.5, -2.0]), max_size=3), min_size=1, max_size=5
)
maps = rows.map(lambda rows: AxisMap.of(4, (tuple(sorted(row.items())) for row in rows)))


@given(maps, maps)
def test_products_and_transposes(first, second):
    assert torch.equal(matrix(first.transposed()), matrix(first).T)
    assert first.transposed().transposed() is first
    if len(first.rows) == second.size:
        assert torch.equal(matrix(first.then(second)), matrix(second) @ matrix(first))
    assert torch.equal(matrix(first.times(0.5)), matrix(first) * 0.5)


def test_properties():
    assert ROLL.only_chooses and not ROLL.has_gaps and not ROLL.is_identity and ROLL.touched == 5
    assert PAD.has_gaps and PAD.touched == 3 and PAD.only_chooses
    assert ROLL.then(ROLL.transposed()).is_identity
    assert AxisMap.choosing(5, [3, 4, 0, 1, 2]) is ROLL
    assert sorted([ROLL, PAD]) == [PAD, ROLL]
    pool = _of_pool(6, 3, 2, 1, False, True)
    assert pool.taps == 3 and pool.has_weights and [len(row) for row in pool.rows] == [2, 3, 3]
    assert _of_upsampling("upsample_bilinear2d", 2, 4, 4, (False,), None).is_identity


def taps(access: Access, numel: int, offset: int = 0) -> list[dict[int, float]]:
    """Addresses and weights of each element."""
    found = []
    for i in range(numel):
        base = offset + sum(i // inner % count * stride for inner, count, stride in access.digits)
        of_terms = []
        for term in access.terms:
            position = sum(i // inner % count * each for inner, count, each in term.digits)
            of_terms.append([(place * term.stride, weight) for place, weight in term.map.rows[position]])
        total: dict[int, float] = {}
        for combination in itertools.product(*of_terms):
            address = base + sum(place for place, _ in combination)
            total[address] = total.get(address, 0.0) + math.prod(weight for _, weight in combination)
        found.append(total)
    return found


SIZES = (2, 6, 5, 4)


def example() -> tuple[Access, Layout]:
    """An access of a [2, 6, 3, 4] tensor, whose result is [2, 6, 5, 4], and the result's layout."""
    flipped = AxisMap.choosing(6, range(6)[::-1])
    source, result = Layout.row_major((2, 6, 3, 4)), Layout.row_major(SIZES)
    return access_of(result, source, (None, flipped, PAD, None), 0.0), result


def test_access():
    access, result = example()
    memory = torch.arange(2.0 * 6 * 3 * 4).view(2, 6, 3, 4)
    expected = torch.nn.functional.pad(memory.flip(1), (0, 0, 1, 1), value=-1).flatten().tolist()
    found = [next(iter(one), -1) for one in taps(access, result.numel)]
    assert found == expected
    assert access.elements == 2 * 6 * 3 * 4 and access.only_chooses and access.number == 0
    assert Access(fill_bits(-0.0), (), ()) != Access(fill_bits(0.0), (), ())


VIEWS = {
    "as it is": lambda x: x,
    "windows": lambda x: x.view(2, 2, 3, 5, 4).permute(0, 1, 3, 2, 4),
    "transposed": lambda x: x.permute(0, 2, 1, 3),
    "merged": lambda x: x.view(12, 20).t(),
    "slice": lambda x: x[1:, 2:5],
    "steps": lambda x: x[:, ::2, 1::2],
    "repeated": lambda x: x[:, :, None].expand(-1, -1, 3, -1, -1),
    "columns": lambda x: x[..., 1:3],
    "diagonal": lambda x: x.view(2, 6, 20)[:, :5, ::5].diagonal(dim1=1, dim2=2),
}


@pytest.mark.parametrize("view", VIEWS)
def test_composed(view):
    """The index map of a view of an access' result, and the access, as one; or refused."""
    access, result = example()
    places = VIEWS[view](torch.arange(result.numel).view(SIZES))
    layout = Layout(tuple(places.shape), places.stride(), places.storage_offset())
    dense = Layout.row_major(layout.sizes)
    found = composed(access, result, index_map_of(dense, layout), layout.offset, dense.numel)
    if view == "diagonal":
        assert found is None
        return
    again, offset = found
    before = taps(access, result.numel)
    assert taps(again, dense.numel, offset) == [before[place] for place in places.flatten().tolist()]


@settings(max_examples=50)
@given(st.permutations(range(4)), st.tuples(*[st.integers(0, 1)] * 4), st.tuples(*[st.integers(1, 2)] * 4))
def test_composed_slices(order, starts, steps):
    access, result = example()
    places = (
        torch.arange(result.numel)
        .view(SIZES)[tuple(slice(start, None, step) for start, step in zip(starts, steps, strict=True))]
        .permute(order)
    )
    layout = Layout(tuple(places.shape), places.stride(), places.storage_offset())
    dense = Layout.row_major(layout.sizes)
    found = composed(access, result, index_map_of(dense, layout), layout.offset, dense.numel)
    if found is not None:
        again, offset = found
        before = taps(access, result.numel)
        assert taps(again, dense.numel, offset) == [before[place] for place in places.flatten().tolist()]


def test_spaces():
    access, result = example()
    space = find_space(result.numel, {access}, set())
    assert space == IterationSpace(1, 4, 60, 1, True) and space.kind(access) == "full" and space.is_strided(access)
    assert not IterationSpace(2, 6, 5, 4, False).is_strided(access)  # rows of NCHW are no lines of adjacent channels
    assert not fits(space, {access}, set(), whole_rows=False)  # an epilogue of a convolution
    transposed = index_map_of(Layout.row_major((60, 4)), Layout((60, 4), (1, 60)))
    assert fits(IterationSpace(1, 4, 60, 1, True), {access}, set(), transposes=True)
    assert not fits(IterationSpace(1, 8, 64, 1, True), {transposed, access}, set())
    columns = access_of(
        Layout.row_major((4, 6)), Layout.row_major((4, 6)), (None, AxisMap.choosing(6, range(6)[::-1])), 0
    )
    assert find_space(24, {columns}, set()) == IterationSpace(1, 6, 4, 1, True)
    both = access_of(Layout.row_major((6,)), Layout((6,), (0,)), (None,), 0)  # one element for all columns
    assert find_space(6, {both}, set()) is None
    inputs = [(None, None, access)] * 3  # three tensors and six maps
    assert not has_too_many_strided(space, inputs) and has_too_many_strided(space, inputs * 2)
    assert FusionGroup(0, space).numel == result.numel


def test_tables():
    access, _ = example()
    space = IterationSpace(1, 4, 60, 1, True)
    of_rows, of_columns = access.terms if access.terms[0].map is PAD else access.terms[::-1]
    table, layout = table_of(of_rows, space, torch.device("cpu"))
    assert table.tensor().flatten().tolist() == [-1, 0, 4, 8, -1] and table.alignment == 4 and table.kind == "places"
    assert (layout.sizes[-1], layout.strides[-1]) == (1, 1)
    weighted = AxisMap.of(3, [((0, 0.5), (2, 0.25)), ()])
    table, layout = table_of(Term(((1, 2, 1),), weighted, 3), IterationSpace(1, 2, 1, 1, True), torch.device("cpu"))
    numbers = table.tensor()
    assert table.kind == "weighted" and numbers[:, ::2].tolist() == [[0, 6], [-1, -1]]
    assert numbers[:, 1::2].contiguous().view(torch.float32).tolist() == [[0.5, 0.25], [0.0, 0.0]]
    assert pickle.loads(pickle.dumps(table)) == table and isinstance(table, MapTable)
    assert of_columns.stride == 12
    for places, run in [
        ([-1] * 8 + [*range(16)], 8),
        ([*range(4, 8), *range(4)], 4),
        ([1, 2, 3, 4], 1),
        ([0, 1, 2], 1),
    ]:
        rows = AxisMap.choosing(16, places).rows
        assert MapTable(rows, 1, 1, False, torch.device("cpu")).run == run


@needs_aten
def test_plans_with_tables_are_pickled(monkeypatch):
    from against_eager import without_dynamo  # noqa: F401  registers the operators
    from torch.fx.experimental.proxy_tensor import make_fx

    from torch_reformer.compiler import pipeline
    from torch_reformer.compiler.ir import through_maps

    monkeypatch.setattr(through_maps, "DEVICES", {"cpu"})

    def function(x):
        return [torch.roll(x, 2, 1) * 2]

    x = torch.randn(4, 6)
    with tracing():
        module = make_fx(function, tracing_mode="fake")(x)
    executable = pipeline.plan(module)
    again = pickle.loads(pickle.dumps(executable))
    again.start()
    assert len(again.tables) == 1
    for run in (executable, again):
        assert torch.equal(run([x])[0], function(x)[0])

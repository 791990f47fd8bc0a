"""find-db text: reading, writing, and rows with special cases."""

import bz2
import lzma
import math
import os
from pathlib import Path

import pytest
from cases import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from marks import slow

from torch_reformer import ConvProblem
from torch_reformer.selector.timings import Record, Timing, read_timings, summary, write_timings

HERE = Path(__file__).parent
SAMPLE = HERE / "data/sample.fdb.txt"
REAL = HERE.parent.parent / "shared/data/miopen"


def real_database(name: str) -> Path:
    path = REAL / f"{name}.fdb.txt.xz"
    if not path.exists():
        pytest.skip(f"MIOpen's database {name} is not beside the repository (../shared/data/miopen)")
    return path


names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True)
timing = st.builds(
    Timing,
    solver=names,
    ms=st.floats(min_value=0, allow_nan=False, allow_infinity=False),
    workspace=st.integers(0, 2**50),
    algorithm=names,
)
timing_lists = st.lists(timing, min_size=1, max_size=6).map(lambda ts: tuple(sorted(ts, key=lambda t: t.ms)))
keys = st.builds(
    lambda n, c, hw, k, direction, layout, dtype: str(
        ConvProblem(n, c, hw, hw, k, 1, 1, direction=direction, layout=layout, dtype=dtype)
    ),
    *(st.integers(1, 999) for _ in range(4)),
    st.sampled_from("FBW"),
    st.sampled_from(["NCHW", "NHWC"]),
    st.sampled_from(["FP32", "BF16", "INT8"]),
)


@pytest.mark.parametrize("suffix", ["", ".xz", ".bz2"])
@settings(max_examples=examples(25))
@given(records=st.lists(st.builds(Record, keys, timing_lists), unique_by=lambda record: record.key, max_size=5))
def test_round_trip(tmp_path_factory, suffix, records):
    path = tmp_path_factory.mktemp("db") / f"db.txt{suffix}"
    write_timings(path, records)
    assert read_timings(path) == records


def test_compressed_by_suffix(tmp_path):
    records = read_timings(SAMPLE)
    text = SAMPLE.read_bytes()
    for suffix, decompress in (("", bytes), (".xz", lzma.decompress), (".bz2", bz2.decompress)):
        write_timings(tmp_path / f"db{suffix}", records)
        assert decompress((tmp_path / f"db{suffix}").read_bytes()) == text


def test_sample():
    records = read_timings(SAMPLE)
    nhwc, grouped = records[1], records[2]
    assert nhwc.problem == ConvProblem(32, 64, 56, 56, 64, 3, 3, 1, 1, direction="B", dtype="BF16", layout="NHWC")
    assert nhwc.timings[0] == Timing("ConvDirectNaiveConvBwd", 0.0, 0, "miopenConvolutionBwdDataAlgoDirect")
    assert nhwc.times == {"GemmBwdRest": 5.93634}  # 0 ms means not measured
    assert grouped.problem.groups == 32 and grouped.problem.input_size == (8, 32, 28, 28)


def test_summary():
    text = summary(read_timings(SAMPLE))
    assert (text.records, text.zero_times, text.single, text.int8) == (5, 1, 1, 1)
    assert len(text.impossible) == 1 and "the filter is larger than the padded input" in text.impossible[0]
    assert str(text).startswith("5 records: 1 with times of 0, 1 with a single entry, 1 of INT8, 1 of impossible")


def test_order_of_entries_does_not_matter(tmp_path):
    slow_first = Record("key", (Timing("slow", 2.0, 0, "a"), Timing("fast", 1.0, 0, "a")))
    assert min(slow_first.times, key=slow_first.times.get) == "fast"
    write_timings(tmp_path / "db", [slow_first])
    assert (tmp_path / "db").read_text() == "key=fast:1.0,0,a;slow:2.0,0,a\n"


def test_form_of_older_miopen(tmp_path):
    line = "key=miopenConvolutionFwdAlgoDirect:ConvAsm1x1U,0.5,16,miopenConvolutionFwdAlgoDirect,<unused>\n"
    (tmp_path / "db").write_text(line)
    (record,) = read_timings(tmp_path / "db")
    assert record.timings == (Timing("ConvAsm1x1U", 0.5, 16, "miopenConvolutionFwdAlgoDirect"),)


@pytest.mark.parametrize(
    "line",
    [
        "key=solver:fast,0,a",
        "key=solver:1.0,0",
        "key=solver:-1.0,0,a",
        "key=solver:nan,0,a",
        "key=solver:inf,0,a",
        "key=solver:1.0,-5,a",
        "key=:1.0,0,a",
        "key=solver",
        "key=solver:1.0,0,a;",  # cut off
    ],
)
def test_malformed_entry(tmp_path, line):
    path = tmp_path / "db"
    path.write_text(f"good=solver:1.0,0,a\n\n{line}\n")
    with pytest.raises(ValueError, match=f"{path}, line 3: an entry is solver:ms,workspace,algorithm"):
        read_timings(path)


def test_a_problem_without_right_results(tmp_path):
    """`collect` leaves out times of wrong results, which may be all."""
    path = tmp_path / "db.txt"
    write_timings(path, [Record("key", ())])
    assert read_timings(path) == [Record("key", ())]


@pytest.mark.parametrize("line", ["solver:1.0,0,a", "=solver:1.0,0,a"])
def test_malformed_line(tmp_path, line):
    (tmp_path / "db").write_text(line)
    with pytest.raises(ValueError, match="db, line 1: a find-db line is key=solver"):
        read_timings(tmp_path / "db")


def test_problem_twice(tmp_path):
    (tmp_path / "db").write_text("key=a:1.0,0,a\nkey=b:1.0,0,a\n")
    with pytest.raises(ValueError, match="db, line 2: key occurs twice"):
        read_timings(tmp_path / "db")


@pytest.mark.parametrize(
    ("name", "data", "kind"),
    [
        ("db.xz", b"not xz", "xz-compressed text"),
        ("db.xz", lzma.compress(b"key=a:1.0,0,a\n" * 100)[:60], "xz-compressed text"),
        ("db.bz2", b"not bz2", "bz2-compressed text"),
        ("db.txt", b"\xff\xfe\x00", "text"),
    ],
)
def test_damaged_file(tmp_path, name, data, kind):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=f"{name} is not {kind}, or is damaged"):
        read_timings(tmp_path / name)


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "db"
    path.write_text("old")

    def disk_full(handle):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", disk_full)
    with pytest.raises(OSError, match="no space"):
        write_timings(path, read_timings(SAMPLE))
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["db"]


@pytest.mark.parametrize("name", ["gfx942", *slow("gfx908", "gfx90a")])
def test_real_database(tmp_path, name):
    """Reading and writing MIOpen's own databases gives equal bytes, and keys are parsed and printed without changes."""
    path = real_database(name)
    records = read_timings(path)
    actual = summary(records)
    write_timings(tmp_path / "db", records)
    assert (tmp_path / "db").read_text() == lzma.open(path, "rt").read()
    assert all(math.isfinite(t.ms) and t.ms >= 0 for record in records for t in record.timings)
    different = 0
    for record in records:
        try:
            different += str(record.problem) != record.key
        except ValueError:
            pass
    assert different == 0
    expected = {
        "gfx908": (102305, 461, 344, 44, 250),
        "gfx90a": (110754, 456, 120, 44, 250),
        "gfx942": (8388, 0, 0, 0, 0),
    }
    assert (actual.records, actual.zero_times, actual.single, actual.int8, len(actual.impossible)) == expected[name]

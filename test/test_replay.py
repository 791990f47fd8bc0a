"""`replay`: its output, and the files that it reads beside the database."""

import json

import pytest
from selectors_for_tests import learnable, record

from torch_reformer import ConvProblem
from torch_reformer.__main__ import main
from torch_reformer.selector import replay
from torch_reformer.selector.timings import Record, write_timings


def test_replay_says_what_it_is_of(trained, tmp_path, capsys):
    whole = learnable(90)
    single = record(ConvProblem(1, 4, 8, 8, 4, 3, 3), slow=1.0)
    impossible = Record(single.key.replace("6-6", "7-7"), whole[0].timings)
    write_timings(tmp_path / "db", [*whole, single, impossible])
    arguments = ["replay", "--weights", str(trained), "--timings"]
    assert main([*arguments, f"gfx90a={tmp_path}/db"]) == 0
    done = capsys.readouterr()
    assert "warning: " in done.err and "is for gfx906" in done.err
    head = done.out.partition("\n")[0]
    assert head.startswith(f"{trained} on {len(whole)} problems, those trained on included, device gfx90a; left out: ")
    assert "1 record with fewer than 2 times above 0" in head and "1 record of impossible geometry" in head
    assert main([*arguments, f"{tmp_path}/db", "--held-out", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["held_out"] and report["device"] == "gfx906"
    assert report["problems"] + sum(report["left_out"].values()) == len(whole) + 2


@pytest.mark.parametrize("content", ["{}", "[]", '{"device', '{"device": "foo"}', '{"device": 1}'])
def test_damaged_sidecar_is_named(content, trained, tmp_path, capsys):
    write_timings(tmp_path / "db", learnable(30))
    (tmp_path / "db.meta.json").write_text(content)
    assert main(["replay", "--timings", f"{tmp_path}/db", "--weights", str(trained)]) == 2
    assert f"{tmp_path}/db.meta.json is damaged" in capsys.readouterr().err


def test_peers_times_that_no_kernel_takes_are_ignored(tmp_path):
    path = tmp_path / "peer.csv"
    path.write_bytes(b"\xef\xbb\xbfkey,ms,note\na,1.5\nb,0,x\nc,-1,x\nd,nan\ne,inf\nf,2,x,y\n")
    assert replay.read_peer(path) == replay.Peer({"a": 1.5, "f": 2.0}, 4)


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("key,solver\na,b\n", "has no column ms: a peer's are key and ms"),
        ("", "has no column key and ms"),
        ("key,ms\na,1\nb\n", "line 3: a row has a key and its milliseconds, got None"),
        ("key,ms\na,fast\n", "line 2: a row has a key and its milliseconds, got 'fast'"),
        ("key,ms\na,1\nb,1\na,nan\n", "line 4: a occurs twice"),
    ],
)
def test_malformed_peer(tmp_path, text, sentence):
    (tmp_path / "peer.csv").write_text(text)
    with pytest.raises(ValueError, match=rf"peer\.csv.*{sentence}"):
        replay.read_peer(tmp_path / "peer.csv")

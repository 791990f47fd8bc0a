"""Mistakes planted in the TMA GEMM kernels' synchronisation: the emulator finds each of them."""

import shutil

import pytest

import emulator
from emulator import conv_programs
from emulator.plans import Problem
from emulator.tma_gemm import COLUMNS, check_gemm, planner, with_program
from torch_reformer import program
from torch_reformer.program import Program

pytestmark = [emulator.needed, emulator.without_sanitizers]

MEMORY, PROGRAM, STORE, TILES = (f"tma_gemm/tma_{name}.h" for name in ("memory", "program", "store", "tiles"))
OVERWRITTEN = "was written to after (it|the product) was started"
STUCK = "none of them can go on"
WRONG = "Tensor-likes are not (close|equal)"
ANY = f"{WRONG}|{STUCK}|{OVERWRITTEN}|more arrive in a phase"

SUM = conv_programs.BIASED + program.full("full")
TESTED = Program(program.store(SUM), program.store(program.full("half") * SUM))
GRADIENT = program.acc() * program.full("full") + 1
REDUCING = Program(program.store(GRADIENT), program.sum(GRADIENT))

# What is planted: the file, its text, what takes its place, and what is found.
PLANTED = {
    "a consumer does not wait for its turn": (
        TILES, "if constexpr (kTakesTurns) tma::wait(memory.turn(group), turn);", "", ANY),
    "a turn is not passed on": (TILES, "if (lane_id() == 0) tma::arrive(memory.turn(1 - group));", ";", STUCK),
    "both begin": (TILES, "turn = 1 - group;", "turn = 1;", ANY),
    "a turn is passed to itself": (TILES, "memory.turn(1 - group)", "memory.turn(group)", STUCK),
    "the other's tiles don't move the ring": (TILES, "state.advance(work.steps_of(tile, steps));", "", ANY),
    "the ring's parity stays": (MEMORY, "parity ^= stage / kStages & 1;", "", ANY),
    "a stage is released too early": (TILES, "wgmma::wait<1>();", "", ANY),
    "a stage is not released": (TILES, "sums.finish();", "sums.finish(); return;", STUCK),
    "boxes are not waited for": (
        STORE, "tma::wait(memory.full_boxes(group, slot), slots.next.parity);", ";", ANY),
    "boxes are loaded over what is read": (
        TILES, "tma::wait(memory.empty_boxes(group, state.stage), state.parity ^ 1);", "", ANY),
    "boxes are not released": (
        STORE, "if (slots.last >= 0) tma::arrive(memory.empty_boxes(group, slots.last));", "", STUCK),
    "slots are released that were not stored": (STORE, "if (slots.last >= 0) tma::arrive(", "tma::arrive(", ANY),
    "slots are released before they are stored": (
        STORE, "tma::wait_for_reads<Memory::kEpilogue.stored>();", "", OVERWRITTEN),
    "a slot is released with its own store": (
        STORE, "tma::arrive(memory.empty_boxes(group, slots.last));", "tma::arrive(memory.empty_boxes(group, slot));",
        ANY),
    "the loader forgets the other's tiles": (
        TILES, "for_each_tile_of(group, load, [](const Tile&) {});", "work.for_each_tile(first, load);", ANY),
    "stores are not waited for": (
        STORE, "if (starts) tma::wait_for_reads<0>();", "", OVERWRITTEN),
    "results are stored before all have written": (
        STORE, "tma::group_barrier(1 + group, 128);\n    if (starts) {", "if (starts) {", OVERWRITTEN),
    "the second tensor takes the first one's box": (
        PROGRAM, "tensors[i], to + i * kTmaBoxBytes", "tensors[i], to", WRONG),
    "rows that don't exist are reduced": (PROGRAM, "add(values[e], rows - first)", "add(values[e], kRows)", WRONG),
    "a warp's part of a reduction is lost": (PROGRAM, "warp < 4; ++warp", "warp < 3; ++warp", WRONG),
    "both consumers write the same part": (
        TILES, "part * kGroups + group, work.column", "part * kGroups, work.column", WRONG),
    "a part is combined before all have written": (
        PROGRAM, "tma::group_barrier(1 + group, 128);\n    for (int at", "for (int at", WRONG),
    "both blocks of a cluster load the same half": (
        TILES, "const int line = (Tile::kAlongDepth ? outer : depth) + lines;",
        "const int line = Tile::kAlongDepth ? outer : depth;", WRONG),
}  # fmt: skip


def run():
    """A product of more steps than the ring has stages, with two tensors that are loaded and two that are stored; the
    same without a program; and an input gradient with a sum of columns."""
    problem = conv_programs.problem_of((1, 520, 1, 640, 200, 1, 1), {}, "bf16")
    for seed in range(3):
        kernel = with_program(problem, "128x128_6_pingpong", row_blocks=1)
        conv_programs.check(TESTED, problem, kernel, seed=seed)
    for seed in range(3):
        problem = Problem("forward", "bf16", 1, 520, 1, 640, 200, 1, 1)
        check_gemm(problem, "128x128_6_pingpong", row_blocks=1, shared=COLUMNS, seed=seed)
    problem = conv_programs.problem_of((1, 200, 1, 600, 328, 1, 1), {}, "bf16", "input_grad")
    for seed in range(3):
        kernel = with_program(problem, "128x192_4_pingpong", row_blocks=1, shared=COLUMNS)
        conv_programs.check(REDUCING, problem, kernel, seed=seed, reduces_result=True)


def test_nothing_planted():
    run()


@pytest.mark.parametrize("planted", PLANTED)
def test_planted(planted, tmp_path, monkeypatch):
    file, text, instead, found = PLANTED[planted]
    shutil.copytree(emulator.ROOT / "csrc/hip", tmp_path / "csrc/hip", ignore=shutil.ignore_patterns("*.cpp"))
    path = tmp_path / "csrc/hip" / file
    assert path.read_text().count(text) == 1
    path.write_text(path.read_text().replace(text, instead))
    planner()  # of the kernels as they are
    monkeypatch.setattr(emulator, "ROOT", tmp_path)
    with pytest.raises((emulator.KernelError, AssertionError), match=found):
        run()

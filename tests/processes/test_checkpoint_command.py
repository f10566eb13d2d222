"""`checkpoint list|inspect|verify|extract`: what it shows, what it writes, what it says to wrong words."""

from __future__ import annotations

import itertools
import json
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from launcher import Env
from launcher.checkpoint import loading
from launcher.checkpoint import saving as checkpoint
from launcher.checkpoint.checkpointer import Checkpointer
from launcher.cli import commands
from launcher.errors import LauncherError
from launcher.runs.directory import Run
from tests.processes.workload_ranks import run_ranks
from tests.unit.plans import bare_plan, plan_of, with_fields

ALONE = Env(0, 0, 1, 1, 0, 1, (), "here", "gloo", torch.device("cpu"), "test", (0,))
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """Runs `checkpoint` with the run `a` in tmp_path/runs: exit code, what it printed, its error."""
    monkeypatch.setenv("LAUNCHER_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.chdir(tmp_path)

    def run(line: str) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            code, problem = commands.main(["checkpoint", *line.split()]), ""
        except LauncherError as error:
            code, problem = error.exit_code, str(error)
        return code, capsys.readouterr().out, problem

    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the checkpoints of the run `a`."""
    (tmp_path / "runs").mkdir()
    run = Run.create(tmp_path / "runs" / "a")
    place = run.path / "checkpoints"
    run.write_record(
        with_fields(plan_of(), checkpoint={"dir": str(place), "keep": 2, "best": "accuracy"}),
        {},
        {"launcher": "1", "token": "t"},
    )
    return place


def state(value: float) -> dict[str, Any]:
    return {
        "model": {"weight": torch.full((4, 8), value), "bias": torch.full((3,), value, dtype=torch.bfloat16)},
        "optimizer": {"state": {0: {"step": torch.tensor(value)}}, "lr": value, "betas": (0.9, 0.99)},
    }


@pytest.fixture
def three(folder: Path) -> Iterator[Path]:
    """Steps 10, 20, 30; 10 is the best."""
    checkpointer = Checkpointer(folder, ALONE, identity={"model": {"width": 8}}, keep=3)
    for step, accuracy in ((10, 0.9), (20, 0.5), (30, 0.6)):
        checkpointer.save(
            step, state(float(step)), rank_state={"seed": step}, extra={"cursor": 128 * step},
            metrics={"accuracy": accuracy}, wait=True,
        )  # fmt: skip
    checkpointer.close()
    yield folder


def save_large(config: str, env: Env) -> dict[str, Any]:
    checkpoint.SMALL = 0
    checkpointer = Checkpointer(Path(config), env, identity={})
    checkpointer.save(10, state(10.0), rank_state={"rank": env.rank}, wait=True)
    checkpointer.close()
    return {}


def read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    """What `safetensors.save` has written."""
    data = bytearray(path.read_bytes())
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    types = {short: getattr(torch, name) for name, short in loading._TYPES.items() if hasattr(torch, name)}
    found = {}
    for name, entry in header.items():
        if name != "__metadata__":
            first, last = (8 + length + offset for offset in entry["data_offsets"])
            part = (
                torch.frombuffer(data[first:last], dtype=torch.uint8)
                if last > first
                else torch.empty(0, dtype=torch.uint8)
            )
            found[name] = part.view(types[entry["dtype"]]).view(entry["shape"])
    return found


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[500] ^= 1
    path.write_bytes(data)


def test_list_shows_what_is_there_and_why(call: Call, three: Path) -> None:
    code, out, _ = call("list a")
    head, *lines = [line.split() for line in out.splitlines()]
    assert (code, head) == (0, ["STEP", "AGE", "SIZE", "RANKS", "KEPT", "AS", "SIZES", "METRICS"])
    assert [line[0] for line in lines] == ["30", "20", "10"]
    assert [" ".join(line[5:]) for line in lines] == [
        "newest right accuracy=0.6",
        "newest right accuracy=0.5",
        "best right accuracy=0.9",
    ]
    assert all(len(line) <= 80 for line in out.splitlines())


@pytest.mark.parametrize("name", [".aside-step-10-attempt-0-ab12", "copy"])
def test_a_checkpoint_named_by_its_folder_is_the_one_that_is_read(call: Call, three: Path, name: str) -> None:
    named = (three / "step-000000010").rename(three / name)
    assert call(f"inspect {named}")[1].startswith("step 10, saved ")
    assert call(f"verify {named}") == (0, f"{name}: sound\n", "")
    code, _, problem = call(f"verify {named} 20")
    assert (code, problem) == (2, f"{named} is one checkpoint: leave out 20, or name the folder {three}")
    call(f"extract {named} -o out.pt")
    assert torch.load("out.pt", weights_only=True)["model"]["weight"][0, 0] == 10
    flip(named / "state.pt")
    code, out, _ = call(f"verify {named}")
    assert (code, out.splitlines()[0]) == (1, f"{name}: damaged")


def test_list_shows_the_files_that_a_program_saves_by_itself(call: Call, tmp_path: Path) -> None:
    run, work = Run.create(tmp_path / "runs" / "b"), tmp_path / "work"
    folder = run.path / "checkpoints"
    workload = {"kind": "Program", "params": {"checkpoint": None}}
    plan = with_fields(bare_plan(workdir=str(work), workload=workload), checkpoint={"dir": str(folder), "keep": 2})
    run.write_record(plan, {}, {"launcher": "1", "token": "t"})
    assert call("list b") == (0, f"no checkpoints in {folder}\n", "")
    work.mkdir()
    for age, path in enumerate(
        (folder / "epoch" / "state.bin", work / "last.pt", *(work / f"{n}.ckpt" for n in range(20)))
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 2048)
        os.utime(path, (time.time() - 3600 * (age + 1),) * 2)
    (work / "notes.txt").touch()
    code, out, _ = call("list b")
    head, first, second, *_, last = [line.split() for line in out.splitlines()]
    assert (code, head, last) == (0, ["FILE", "AGE", "SIZE"], ["and", "2", "older", "files"])
    assert first[:2] == [str(folder / "epoch" / "state.bin"), "1h00m"] and second[0] == str(work / "last.pt")
    checkpointer = Checkpointer(folder, ALONE, identity={})
    checkpointer.save(10, state(10.0), wait=True)
    checkpointer.close()
    _, out, _ = call("list b")
    assert out.startswith("STEP ") and "step-0000" not in out and "\nFILE " in out
    rows = json.loads(call("list b --json")[1])
    assert [row["step"] for row in rows] == [10, *[None] * 20]
    assert rows[0].keys() == rows[1].keys() and rows[1]["path"] == str(folder / "epoch" / "state.bin")


def test_list_names_what_is_wrong(call: Call, three: Path) -> None:
    (three / "step-000000030" / "state.pt").unlink()
    (three / "step-000000020" / "manifest.json").unlink()
    code, out, _ = call("list a")
    assert code == 0
    assert "step 30: state.pt is missing" in out and "step-000000020 has no manifest.json" in out
    _, out, _ = call("list a --json")
    rows = {row["step"]: row for row in json.loads(out)}
    assert rows[10]["kept_as"] == ["newest", "best"] and rows[30]["kept_as"] == [] and rows[20]["bytes"] is None


def test_list_without_checkpoints(call: Call, folder: Path) -> None:
    assert call("list a") == (0, f"no checkpoints in {folder}\n", "")


def test_inspect_shows_all_that_belongs_to_it(call: Call, three: Path) -> None:
    code, out, _ = call("inspect a 20")
    assert code == 0
    for line in (
        "step 20, saved ", "metrics\n  accuracy: 0.5\n", "identity\n  model.width: 8\n", "extra\n  cursor: 2560\n",
        "values\n  optimizer.lr: 20.0\n  optimizer.betas: (0.9, 0.99)\n",
    ):  # fmt: skip
        assert line in out
    table = [line.split() for line in out.splitlines()[-4:]]
    assert table == [
        ["TENSOR", "TYPE", "SHAPE", "SHARDS"],
        ["model.bias", "bfloat16", "3", "1"],
        ["model.weight", "float32", "4x8", "1"],
        ["optimizer.state.0.step", "float32", "scalar", "1"],
    ]
    code, out, _ = call("inspect a --json")
    assert code == 0 and json.loads(out)["step"] == 30 and json.loads(out)["tensors"][1]["shape"] == [4, 8]


def test_verify_finds_a_flipped_byte(call: Call, three: Path) -> None:
    assert call("verify a") == (0, "step 30: sound\nstep 20: sound\nstep 10: sound\n", "")
    flip(three / "step-000000020" / "state.pt")
    code, out, _ = call("verify a")
    assert code == 1
    assert out.splitlines()[1:3] == [
        "step 20: damaged",
        "  state.pt has changed since it was written: its checksum is wrong",
    ]
    assert call("verify a 30")[0] == 0 and call("verify a step-000000020")[0] == 1


def test_extract_makes_a_plain_file(call: Call, three: Path, tmp_path: Path) -> None:
    code, out, _ = call("extract a 20")
    output = tmp_path / "a-step-000000020.pt"
    assert code == 0 and out.startswith("a-step-000000020.pt: ")
    found = torch.load(output, weights_only=True)
    assert found["optimizer"] == {"state": {0: {"step": torch.tensor(20.0)}}, "lr": 20.0, "betas": (0.9, 0.99)}
    assert torch.equal(found["model"]["weight"], torch.full((4, 8), 20.0))
    assert stat.S_IMODE(output.stat().st_mode) == 0o600
    code, _, error = call("extract a 20")
    assert code == 2 and "exists already" in error
    call("extract a 20 -o part.pt --key model.weight --key optimizer.lr")
    found = torch.load(tmp_path / "part.pt", weights_only=True)
    assert found.keys() == {"model", "optimizer"} and found["optimizer"] == {"lr": 20.0} and len(found["model"]) == 1


def test_extract_makes_a_file_of_safetensors(call: Call, three: Path, tmp_path: Path) -> None:
    code, out, _ = call("extract a 20 --format safetensors")
    output = tmp_path / "a-step-000000020.safetensors"
    assert code == 0 and "3 tensors, by their dotted names" in out
    found = read_safetensors(output)
    assert {
        name: (str(tensor.dtype), tuple(tensor.shape), tensor.unique().tolist()) for name, tensor in found.items()
    } == {
        "model.weight": ("torch.float32", (4, 8), [20.0]),
        "model.bias": ("torch.bfloat16", (3,), [20.0]),
        "optimizer.state.0.step": ("torch.float32", (), [20.0]),
    }
    data = output.read_bytes()  # as the format's description says
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert (8 + length) % 8 == 0 and header["__metadata__"] == {"format": "pt", "step": "20"}
    ends = sorted(entry["data_offsets"] for name, entry in header.items() if name != "__metadata__")
    assert ends[0][0] == 0 and all(one[1] == two[0] for one, two in itertools.pairwise(ends))
    assert len(data) == 8 + length + ends[-1][1]
    assert stat.S_IMODE(output.stat().st_mode) == 0o600
    call("extract a 20 --format safetensors --key model.bias -o part.safetensors")
    assert list(read_safetensors(tmp_path / "part.safetensors")) == ["model.bias"]


def test_a_state_of_several_ranks_is_extracted_without_ranks(call: Call, folder: Path, tmp_path: Path) -> None:
    run_ranks(save_large, str(folder), 2)
    assert [line.split()[-1] for line in call("inspect a")[1].splitlines()[-3:]] == ["1", "1", "1"]
    assert call("extract a -o whole.pt")[0] == 0
    found = torch.load(tmp_path / "whole.pt", weights_only=True)
    assert (found["model"]["weight"] == 10).all() and found["optimizer"]["lr"] == 10.0
    flip(folder / "step-000000010" / "__1_0.distcp")
    code, _, error = call("extract a -o again.pt")
    assert code == 1 and "__1_0.distcp has changed" in error and not (tmp_path / "again.pt").exists()


def test_a_folder_does_as_well_as_a_run(call: Call, three: Path) -> None:
    assert len(call(f"list {three}")[1].splitlines()) == 4
    assert call(f"verify {three}/step-000000020") == (0, "step 20: sound\n", "")
    assert call(f"verify {three} 10") == (0, "step 10: sound\n", "")
    code, _, error = call(f"verify {three}/step-000000020 10")
    assert code == 2 and "is one checkpoint: leave out 10, or name the folder" in error


def test_a_folder_that_others_can_write_to_is_not_looked_into(call: Call, three: Path) -> None:
    (three / "step-000000030").chmod(0o777)
    for line in ("inspect a", "extract a -o x.pt"):
        code, _, error = call(line)
        assert code == 1 and "others can write to" in error


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        (
            "lits a",
            2,
            "there is no checkpoint command 'lits'. Did you mean list? Known: list, inspect, verify, extract",
        ),
        ("list", 2, "required: RUN"),
        ("list a 3", 2, "checkpoint list shows all steps"),
        ("list b", 2, "no run 'b'"),
        ("inspect a x", 2, "'x' is not a step"),
        ("inspect a 21", 1, "no checkpoint of step 21. The steps are 30, 20, 10"),
        ("verify a --key model", 2, "--key goes with checkpoint extract"),
        ("verify a --json", 2, "--json goes with checkpoint list and checkpoint inspect"),
        ("extract a --kye model", 2, "there is no option '--kye'. Did you mean --key?"),
        ("extract a --key model.wieght", 1, "has no 'model.wieght'. Did you mean model.weight"),
        ("extract a -o no/x.pt", 2, "there is no folder no"),
    ],
)
def test_wrong_words(call: Call, three: Path, line: str, code: int, words: str) -> None:
    found, out, error = call(line)
    assert (found, out) == (code, "")
    assert words in error

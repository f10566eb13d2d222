"""Files of checkpoints: what any Python wrote is read, at any size, and nothing else."""

from __future__ import annotations

import base64
import errno
import pickle
import zlib
from pathlib import Path, PosixPath
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import metadata as dcp_metadata

from launcher import Env, io_bounds
from launcher.checkpoint import Checkpointer, saving, storage
from launcher.checkpoint import format as checkpoints
from launcher.checkpoint import loading as inspection
from launcher.checkpoint.collectives import Peers
from launcher.checkpoint.folder import CheckpointFolder, Retention
from launcher.checkpoint.format import CannotRead, CheckpointError, Damaged
from launcher.checkpoint.loading import read_contents
from launcher.runs import lease_and_locks
from launcher.runs.directory import Events
from tests.fakes.checkpoint_files import changed
from tests.unit.faults import FileServer
from tests.unit.runs.test_lease_and_locks import Cluster

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")

ALONE = Env(0, 0, 1, 1, 0, 1, (), "here", "gloo", torch.device("cpu"), "test", (0,))

# A .metadata of torch 2.13 for a `weight` of 2 x 3 bfloat16 and a `bias` of 3 float32, as each Python pickles it.
GOLDEN = {
    "3.11.0 to 3.11.3": (
        "eNp9U99PE0EQvkDLCRRDgkYfDZEIiZz9ITU8morY1LYESpQHs9m73etuuN7V2z0EEhN9oAnJvrH+v87uHRzGaB8uvZlvvvnmm7kflV/rFcf+"
        "1IZM0oB5hAuZcj+TlHgBo8HpNOGx9CZUYoIl1upB//bvjd76qb/rTbUmJJYUER5IdAc0idokITTyvlE+ZlIzRz0e0Vgk6RH0wmP6N9PSNE2m"
        "NJWcCgNfzeEHZdAiN1XVigUxfhglWDbakFBr+QSCphxH/BJLnsRaLaMxlSjCF0kmDWqlQMGUhBJ9pQ/1NfBkPJI8Flq5AMdSpoAFBY9Qf6+P"
        "3g8P+29HaG/QGb7rDvYNzZPR8LDzAXWGg1F3/3h4fFSA9MwQSu2riuCXVN9JrRyZ1xvdm+vNz2xbtRCwLD4V+ovt1DEv/3TGTcJQUAm2bPSc"
        "nlMwVE0PG7tjzXyc+Wopd97nGLKLOQersYfGPbaqXGtbq2mGfHrNnhnBbB1o5q8sCdsCTS+LslemZRFvlRjbKFO1aYTjmKboduvMVVXbHQYs"
        "Nj/T7A37qCpWzkxDkcjnLIsctXI7dDcm9LycfD78GmtDym2856iF3Is/rICZX/z3gkMeUXEhJJ1oVUOFz904TMpOKymN4GrOKJpiyQwM1VHd"
        "EgZTzU5M64jGY8j1txYyn40Khz7BeJ97DjspnYIsKrI+C9gJFDBiq+5Nbz4Ws/vle2u/J6dUjziByzSqIu5rtXiQCH5+YETCKc4Fp/k1uAKD"
        "dgN93mjuNJs0bG2/9nfhQeqt7d1mWN9u+812C++Q3TBsQAFcATEFA+XCyjJwCI4RrHTPaCrs51NteHWvDjHvNwWhmv8="
    ),
    "3.10, 3.11 and 3.12": (
        "eNp9U99P1EAQbrg7KnAYEjDxwZiYSISYq707AvhoEJVcDi78eDK6btvp7YbSnt0tAomJPkBCsm+uf6n/gLPbQjFG+9TOfPPN981MvzV//mo4"
        "9lHLMstD5kVcyJwHhYTICxmEx5OMp9I7AUkjKqlW94Y3rz/06nf9Va+oRSGpBBLxUJJboEm0T7IIEu8L8DGTmjnqwSGkIssPsBcdw99Ms5M8"
        "m0AuOQgDXyjhozpokSuqZcWimCBOMiq765hQi6UDATmnCb+gkmepVnNkDJIk9DwrpEHNVyh0GUGkL/W+vsZWS2S4PSRv9vaHrw7J9u7W3uud"
        "3beIHzgWIXWgmoJfgL7t3Twwn4iYGjSuLI+aDlmRHgv9wYhf2jIf/7TqZnEsQKLPJwNn4FQMLdPDxm5Zi4AWgZotRxlwitmZkoO12X0zDrag"
        "XDuHfg/52cNr9sgIZo+RpnFpSdgyalqpyp6bllX8RY2xjQrVniQ0TSEnN2tkrmrZ7miwWuWVZn32TjWtnCuNRaL0WRc5av7G9E4awVntvBF/"
        "TrUh5TY+cNR0OYs/RoGen/33JGOegDgXEk60apNqzjtpnNWd5nNI8AxOgUyoZAZGfOJbwnCi2ZFpnUA6xtxwdboI2Kia0AHaOxw47KieFGbf"
        "V9mPjLAjLGCfbNUd9+b6ze7n7qz9jpxaPeGRVq5RlfBAq5lRJvjZyIjEE50Kj8trcAVF7Qb6FPyXwWa8EXd8n0JnzV/b6NB1P+5sbnQDGsV+"
        "rx/1sACvIDIFu8rFlRU4ITxGHKV7Crmw/0Or6/mejzHvNwAvihI="
    ),
    "3.13": (
        "eNp9U11L3EAUDe6XH7siaKEPpfTBohY2xFXUPhZrRZbVxd2ngh0myc3OYEy2mYlVodA+KAjz1uk/7Q/onUk0ltLmKbkf555z7s23+s9fNcc+"
        "6rVMs4C5IRcy434uIXQDBsH5NOWJdC9A0pBKqtXs4OH1h974rr/qdbUsJJVAQh5I8lhoEu2LNITY/QJ8wqRmjno2hkSk2Qhn0Qn8jTQ/zdIp"
        "ZJKDMOVLRfmwCtrKddWwZJGMH8UplZs7mFDLhQIBGacxv6GSp4lWC2QCksT0Os2lqeqUVagyhFDf6lN9j6NWyOBgQD6cnA7ejcnB8f7J+6Pj"
        "Q6zvO7ZCal/VBb8BzZZUfWReMDfTr91ZBNUMWJ6cC31maK/sm49/imylUSRAosJXfafvlAgNg25jj6i5T3NfzRcm+pxidq7AYG22aIxAMi3r"
        "wFYP8dnze/bCUGUvEaZ2a0HYKnJaK9vemJFl3K1q7KBctacxTRLIyMMCWUs17HQUWC7xTrMeO1R1S+dOY5ModFZNjuo8iD5KQriqlNeiz4k2"
        "oNzG+45qFl78YQVqXvvvMUY8BnEtJFxo1Salz0dJlFaTOhnEeACXQKZUMlNGPOJZwGCq2diMjiGZYG6w0cx9dlI6dIryRn2HjSunMPuxzJ6x"
        "T2yMDYzYrifqzd2b3S88WfsTOhV7wkOtFg2rmPsuidOAor1zw1Twq6Hhijc6E5wXR9ESFCWYjlXw3vp70W7U9TwK3W1ve7dLd7you7e76dMw"
        "8npbYQ8b8BhC03CsWri5HI3Cm0RHW5eQCftDNDZdz/Uw5v4GDM2JzQ=="
    ),
}


@pytest.mark.parametrize("python", GOLDEN)
def test_metadata_that_any_python_wrote_is_read(python: str, tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(zlib.decompress(base64.b64decode(GOLDEN[python])))
    metadata = storage.read_metadata(tmp_path)
    found = metadata.state_dict_metadata
    assert {name: (entry.properties.dtype, tuple(entry.size)) for name, entry in found.items()} == {
        "model.weight": (torch.bfloat16, (2, 3)), "model.bias": (torch.float32, (3,))
    }  # fmt: skip
    (entry,) = {type(each.properties.memory_format) for each in metadata.state_dict_metadata.values()}
    assert entry is torch.memory_format
    assert {info.relative_path for info in metadata.storage_data.values()} == {"__0_0.distcp"}
    assert type(metadata.storage_meta.checkpoint_id) is PosixPath


class Member:
    """A pickle of getattr(of, name), as Python 3.11.0 to 3.11.3 write a member of an enum."""

    def __init__(self, of: Any, name: Any) -> None:
        self._call = of, name

    def __reduce__(self) -> Any:
        return getattr, self._call


@pytest.mark.parametrize("name", dcp_metadata._MEM_FORMAT_ENCODING.__members__)
def test_getattr_is_taken_for_the_members_of_one_enum(name: str, tmp_path: Path) -> None:
    entry = dcp_metadata.Metadata({"encoding": Member(dcp_metadata._MEM_FORMAT_ENCODING, name)})  # type: ignore[dict-item]
    (tmp_path / ".metadata").write_bytes(pickle.dumps(entry))
    assert storage.read_metadata(tmp_path).state_dict_metadata["encoding"] is dcp_metadata._MEM_FORMAT_ENCODING[name]


@pytest.mark.parametrize(
    ("of", "name"),
    [
        (dcp_metadata._MEM_FORMAT_ENCODING, "__class__"),
        (dcp_metadata._MEM_FORMAT_ENCODING, "mro"),
        (dcp_metadata._MEM_FORMAT_ENCODING, "_member_map_"),
        (dcp_metadata._MEM_FORMAT_ENCODING, "__reduce_ex__"),
        (dcp_metadata._MEM_FORMAT_ENCODING, "TORCH_CONTIGUOUS_FORMAT.__class__"),
        (dcp_metadata._MEM_FORMAT_ENCODING, 0),
        (dcp_metadata.Metadata, "__init__"),
        (Member(dcp_metadata._MEM_FORMAT_ENCODING, "TORCH_CONTIGUOUS_FORMAT"), "__class__"),
        (torch.Size, "__subclasses__"),
        (torch.serialization._get_layout, "__globals__"),
        (getattr, "__self__"),
        ("text", "format"),
    ],
)
def test_getattr_is_taken_for_nothing_else(of: Any, name: Any, tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(pickle.dumps(dcp_metadata.Metadata({"x": Member(of, name)})))  # type: ignore[dict-item]
    with pytest.raises(Damaged, match="getattr of something other than a member"):
        storage.read_metadata(tmp_path)


@pytest.mark.parametrize(
    "call", [(getattr, ()), (setattr, ("text", "x", 1)), (eval, ("1",)), (vars, ()), (exec, ("",))]
)
def test_no_other_builtin_is_taken(call: Any, tmp_path: Path) -> None:
    class Call:
        def __reduce__(self) -> Any:
            return call

    (tmp_path / ".metadata").write_bytes(pickle.dumps(Call()))
    with pytest.raises(Damaged, match="is not used"):
        storage.read_metadata(tmp_path)


@pytest.mark.parametrize("small", [0, 1 << 30], ids=["sharded", "single"])
def test_files_of_tensors_have_no_bound(small: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "SMALL", small)
    monkeypatch.setattr(io_bounds, "RECORD_BYTES", 1 << 14)  # more than the manifest has
    tensors = {str(index): torch.full((40,), float(index)) for index in range(100)}
    state = {"model": tensors, "text": "x" * 20_000}
    own = {"random": list(range(20_000))}
    checkpointer = Checkpointer(tmp_path / "checkpoints", ALONE, identity={}, read_timeout=0)
    checkpointer.save(1, state, rank_state=own, wait=True)
    path = tmp_path / "checkpoints" / "step-000000001"
    manifest = checkpoints.read(path)
    assert all(file.size > io_bounds.RECORD_BYTES for name, file in manifest.files.items())
    into = {"model": {name: torch.zeros(40) for name in tensors}, "text": ""}
    loaded = checkpointer.load(into)
    checkpointer.close()
    assert loaded is not None and loaded.values["text"] == state["text"] and loaded.rank_state == own
    assert all(torch.equal(into["model"][name], tensor) for name, tensor in tensors.items())
    assert changed(path) == [] and len(inspection.entries(read_contents(path, manifest))) == 100
    assert inspection.whole(path, manifest)["text"] == state["text"]


@pytest.mark.parametrize("error", [checkpoints.Misfit("it does not fit"), ValueError("a bug")])
def test_a_refusal_on_all_ranks_has_one_traceback_and_another_error_that_of_its_cause(error: Exception) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(CheckpointError) as raised:
        Peers(0, 1, 1, own_group=False).on_all(fail)
    assert raised.value.__cause__ is (error if isinstance(error, ValueError) else None)


@pytest.mark.parametrize(
    ("size", "kind"), [(-1, checkpoints.SINGLE), (0, checkpoints.SINGLE), (1, checkpoints.SHARDED)]
)
@pytest.mark.parametrize("ranks", [1, 64, 32_768])
def test_the_states_of_single_ranks_are_one_file_only_while_they_are_small_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int, size: int, kind: str
) -> None:
    """Each rank reads all of that file: at 32,768 ranks the states of their generators have 500 MB."""
    monkeypatch.setattr(saving, "SMALL", 1 << 20)
    folder, peers = CheckpointFolder(tmp_path, 0, Retention(), 0), Peers(0, ranks, 1, own_group=False)
    writer = saving.Writer(folder, peers, {}, True, lambda: None, Events(None, "checkpoint"))
    save = saving.Save(1)
    own = {"r": torch.zeros((1 << 20) // ranks + size - 1, dtype=torch.uint8)}
    content = save.take({"w": torch.zeros(2)}, own, {}, {})
    save.copying = saving.Staging().start(content.tensors)
    offer, _ = writer._offer(save)
    assert (offer.fault, offer.rank_state is None) == (None, kind == checkpoints.SHARDED)
    assert writer._agree([offer] * ranks, tmp_path / "saving").kind == kind
    big = saving._Offer(1, offer.size, small=False, names=offer.names, values=offer.values)
    assert writer._agree([*[offer] * (ranks - 1), big], tmp_path / "other").kind == checkpoints.SHARDED


def test_two_runs_that_save_in_one_folder_do_not_remove_each_others_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, folder = Cluster(monkeypatch, tmp_path), tmp_path / "checkpoints"
    first = cluster.run("a", "7")
    checkpointer = Checkpointer(folder, ALONE, identity={}, read_timeout=0)
    checkpointer.save(1, {"w": torch.zeros(2)}, wait=True)
    being_written = folder / checkpoints.temporary(2, 5)  # of a later attempt than that of the run which takes over
    being_written.mkdir()
    cluster.run("b", "8")
    cluster.beating = [first]
    with pytest.raises(
        CheckpointError, match=r"/checkpoints is used by the run in .*/a, .*: set another checkpoint.dir"
    ):
        Checkpointer(folder, ALONE, identity={})
    assert being_written.exists()
    first.unlink()  # the run is over, or so it seems
    Checkpointer(folder, ALONE, identity={}, read_timeout=0).close()
    assert not being_written.exists()
    cluster.run("a", "7")
    with pytest.raises(CheckpointError, match=r"step 2 was not saved: .* is used by the run in .*/b now"):
        checkpointer.save(2, {"w": torch.zeros(2)}, wait=True)
    with pytest.raises(CheckpointError, match="used by"):
        checkpointer.close()
    assert [path.name for path in folder.glob("step-*")] == [checkpoints.name_of(1)]


def test_a_folder_of_which_the_user_is_unknown_is_not_prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, folder = Cluster(monkeypatch, tmp_path), CheckpointFolder(tmp_path, 0, Retention(), 0)
    cluster.run("a", "7")
    folder.prepare()
    cluster.run("b", "8")
    server = FileServer(monkeypatch)
    server.fail(tmp_path / "a")
    with pytest.raises(CannotRead):
        folder.prepare()
    server.recover()
    (tmp_path / "a" / "lease").unlink()
    for number, error in ((errno.EIO, CannotRead), (errno.EDQUOT, CheckpointError)):
        server.fail(f"{lease_and_locks.RUN_FILE}.", number=number)  # the file cannot be written
        with pytest.raises(error) as raised:
            folder.prepare()
        assert type(raised.value) is error
    server.fail(f"{lease_and_locks.RUN_FILE}.", times=1)
    patient = CheckpointFolder(tmp_path, 0, Retention(), 10)
    patient.prepare()
    assert (tmp_path / lease_and_locks.RUN_FILE).read_text().startswith(f"{tmp_path / 'b'}\n")


def test_a_module_that_cannot_be_imported_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: Any, **__: Any) -> Any:
        raise ModuleNotFoundError("No module named 'torch.utils.serialization'")  # its file server does not answer

    storage.save_file(tmp_path / "values", {"step": 1}, {})
    monkeypatch.setattr(torch, "load", load)
    with pytest.raises(CannotRead, match=r"cannot be read now: No module named 'torch\.utils\.serialization'"):
        storage.load_file(tmp_path / "values")

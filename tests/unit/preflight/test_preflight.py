"""A preflight finds the bad node, by what is wrong with it, and never hangs."""

from __future__ import annotations

import contextlib
import errno
import json
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from launcher import errors, io_bounds
from launcher.agent import preflight_checks as checks
from launcher.agent.preflight import CheckedNode, PreflightVerdict, decide, nodes_of
from launcher.agent.preflight_checks import MIB, CheckLevel, CheckProblem, NodeCheck, RankChecks, check
from launcher.failures.codes import PreflightThen
from launcher.files.json_types import from_json
from launcher.rendezvous import rounds
from launcher.rendezvous.rounds import Member
from launcher.runs import event_files
from launcher.runs.events import NodeFinding, Observation, Preflighted
from tests.unit.plans import bare_plan

pytestmark = pytest.mark.root

# -- the verdict

NODES = [CheckedNode(f"node{number}", f"node{number}", (number,), (2 * number, 2 * number + 1)) for number in range(4)]
FINE = [NodeCheck("device", found="cpu")]
BROKEN = NodeCheck("device", CheckLevel.FAILED, "computes wrong")
FULL_TEXT = "TMPDIR=/tmp/x is not there"
FULL = NodeCheck("space", CheckLevel.FAILED, FULL_TEXT)
SILENT_TEXT = "reported nothing within 40 s: does a device or a file system hang there?"
LOST = "Connection closed by peer"
GONE = NodeCheck("all_reduce", CheckLevel.FAILED, LOST, symptom=True)
ODD = NodeCheck("clock", CheckLevel.WARNING, "clock off")


def wrong(*ranks: int) -> NodeCheck:
    return NodeCheck("all_reduce", CheckLevel.FAILED, "wrong elements", accused=ranks)


def unseen(*members: int, looked: int = 2) -> NodeCheck:
    return NodeCheck("run_dir", CheckLevel.FAILED, "not shared", accused=members, looked=looked)


def unreached(*members: int) -> NodeCheck:
    return NodeCheck("reach", CheckLevel.FAILED, "not reached", accused=members, looked=3)


@pytest.mark.parametrize(
    ("reports", "then", "lost"),
    [
        ([FINE, FINE, FINE, FINE], PreflightThen.GO, ()),
        ([FINE, FINE, [ODD], FINE], PreflightThen.GO, ()),
        ([FINE, FINE, [*FINE, BROKEN], FINE], PreflightThen.WITHOUT, (2,)),
        ([[FULL], FINE, FINE, FINE], PreflightThen.WITHOUT, (0,)),
        ([FINE, FINE, None, FINE], PreflightThen.WITHOUT, (2,)),
        ([FINE, [BROKEN], None, FINE], PreflightThen.WITHOUT, (1, 2)),
        ([[GONE], [BROKEN], [GONE], [GONE]], PreflightThen.WITHOUT, (1,)),  # the others' errors come of that one
        ([[GONE], [GONE], None, [GONE]], PreflightThen.WITHOUT, (2,)),
        ([[GONE], [GONE], [GONE], [GONE]], PreflightThen.FAIL, ()),
        ([[GONE], FINE, [GONE], FINE], PreflightThen.FAIL, ()),
        ([[wrong(5)]] * 4, PreflightThen.WITHOUT, (2,)),
        ([[wrong(5)], [wrong(5, 7)], FINE, [wrong(5)]], PreflightThen.WITHOUT, (2,)),
        ([FINE, FINE, [wrong(0, 1, 2, 3)], FINE], PreflightThen.WITHOUT, (2,)),  # it alone sees it
        ([[unseen(2)], [unseen(2)], [unseen(0, 3)], FINE], PreflightThen.WITHOUT, (2,)),  # a folder of its own
        ([FINE, [unseen(2)], FINE, FINE], PreflightThen.WITHOUT, (2,)),  # node 1 sees node 0, and not node 2
        ([[unseen(1, 2)], [unseen(0, looked=3)], [unseen(0)], [unseen(0)]], PreflightThen.WITHOUT, (0,)),
        ([[GONE, unreached(3)], [GONE, unreached(3)], [GONE, unreached(3)], [GONE]], PreflightThen.WITHOUT, (3,)),
        ([[GONE], [GONE], [GONE], [GONE, unreached(0, 1, 2)]], PreflightThen.WITHOUT, (3,)),
        ([[BROKEN], [BROKEN], FINE, FINE], PreflightThen.WITHOUT, (0, 1)),
        ([[BROKEN], [BROKEN], [BROKEN], FINE], PreflightThen.FAIL, (0, 1, 2)),  # two are needed
        ([[FULL]] * 4, PreflightThen.FAIL, (0, 1, 2, 3)),
    ],
)
def test_the_bad_node_is_found(reports: list[Any], then: PreflightThen, lost: tuple[int, ...]) -> None:
    verdict = decide(NODES, dict(enumerate(reports)), least=2, scheduler="slurm", settings={}, timeout=40)
    assert (verdict.then, verdict.lost) == (then, lost)
    assert [each.name for each in verdict.bad] == [f"node{number}" for number in lost]


@pytest.mark.parametrize(
    ("bad", "spares", "then"),
    [
        ((1,), 0, PreflightThen.FAIL),
        ((1,), 1, PreflightThen.WITHOUT),
        ((1, 2), 1, PreflightThen.FAIL),
        ((0, 1, 2, 3), 4, PreflightThen.FAIL),  # nobody is left to lead the next round
    ],
)
def test_spare_nodes_replace_bad_ones(bad: tuple[int, ...], spares: int, then: PreflightThen) -> None:
    reports = {number: [BROKEN] if number in bad else FINE for number in range(4)}
    assert decide(NODES, reports, least=4, spares=spares, scheduler="slurm", settings={}, timeout=40).then is then


@pytest.mark.parametrize("check", [FULL, wrong(*range(1024)), wrong(), unseen(*range(64), looked=64), ODD])
def test_a_verdict_on_4096_nodes_takes_moments_and_its_event_can_be_read_again(check: NodeCheck) -> None:
    nodes = [
        CheckedNode(f"node{number} ({number})", f"node{number}", (number,), tuple(range(8 * number, 8 * number + 8)))
        for number in range(4096)
    ]
    check, began = replace(check, found=200 * "\N{BULLET}"), time.process_time()
    verdict = decide(
        nodes, {number: [check] * 8 for number in range(4096)}, least=9, scheduler="slurm", settings={}, timeout=40
    )
    assert time.process_time() - began < 10  # the others wait for the leader's heartbeats
    event = Preflighted(round=0, then=verdict.then, nodes=4096, seconds=1.0, bad=verdict.bad, warnings=verdict.warnings)
    assert len(json.dumps(event_files.entry(event))) < io_bounds.EVENT_BYTES
    assert len(verdict.bad) + len(verdict.warnings) > 10


def test_a_node_does_not_try_to_reach_thousands_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    class Doors(dict[str, str]):
        def wait(self, *_: object) -> None: ...

        def check(self, keys: list[str]) -> bool:
            return keys[0] in self

        def get(self, key: str) -> bytes:  # type: ignore[override]
            return self[key].encode()

    heads = [Member(index, index, f"node{index}", 8) for index in range(4096)]
    ranks = RankChecks.__new__(RankChecks)
    ranks._heads, ranks._own = heads, heads[4090]
    ranks._store = Doors({f"door/{index}": "x 1" for index in range(4096)})
    monkeypatch.setattr(checks, "reach", lambda addresses, names: list(addresses))
    assert ranks._reach_others() == [*range(4091, 4096), *range(59)]
    ranks._heads = heads[4088:4092]
    assert ranks._reach_others() == [4091, 4088, 4089]


def shown(verdict: PreflightVerdict) -> str:
    """The text about a verdict, as another agent shows it."""
    received = from_json(json.loads(json.dumps(asdict(verdict))), PreflightVerdict)
    assert received == verdict
    failure: str = received.failure
    return failure


@pytest.mark.parametrize(
    ("reports", "scheduler", "cause", "code"),
    [
        (
            [FINE, [FULL], FINE, FINE], "slurm",
            f"preflight: node1: {FULL_TEXT}. Resume the run with cluster.exclude=node1, or give it spare nodes "
            "(min_nodes less than nodes)", 1,
        ),
        (
            [FINE, [FULL], None, FINE], "pbs",
            f"preflight: node1: {FULL_TEXT}; node2: {SILENT_TEXT}. Give the run spare nodes (min_nodes less than "
            "nodes), so that it starts without bad ones", 1,
        ),
        ([[FULL]] * 4, "slurm", f"preflight: all 4 nodes fail: {FULL_TEXT}", errors.NO_RETRY),
        ([None] * 4, "slurm", f"preflight: all 4 nodes fail: {SILENT_TEXT}", 1),  # whatever it is may pass
        (
            [[GONE]] * 4, "slurm", "preflight: 4 of 4 nodes lost the others, and the bad node is unknown: "
            "Connection closed by peer", 1,
        ),
    ],
)  # fmt: skip
def test_what_is_told_when_too_few_are_left(reports: list[Any], scheduler: str, cause: str, code: int) -> None:
    verdict = decide(NODES, dict(enumerate(reports)), least=4, scheduler=scheduler, settings={}, timeout=40)
    assert (verdict.then, verdict.exit_code) == (PreflightThen.FAIL, code)
    assert shown(verdict) == cause


def test_nodes_that_the_run_excludes_stay_excluded() -> None:
    reports = dict(enumerate([FINE, [FULL], FINE, FINE]))
    verdict = decide(NODES, reports, least=4, scheduler="slurm", settings={"exclude": "node9"}, timeout=40)
    assert "with \"cluster.exclude='node9,node1'\"" in shown(verdict)


def test_of_a_single_node_nobody_else_is_advised() -> None:
    verdict = decide(NODES[:1], {0: [FULL]}, least=1, scheduler="slurm", settings={}, timeout=40)
    assert (verdict.then, verdict.exit_code) == (PreflightThen.FAIL, 1)
    assert shown(verdict) == f"preflight: node0: {FULL_TEXT}"


def test_warnings_are_kept() -> None:
    verdict = decide(
        NODES, dict(enumerate([FINE, [ODD], FINE, [FULL]])), least=3, scheduler="slurm", settings={}, timeout=40
    )
    assert verdict.warnings == (NodeFinding("node1", NODES[1].host, ODD.name, Observation(ODD.found)),)


def test_a_node_of_several_agents_is_left_out_as_a_whole() -> None:
    members = [Member(index, index // 2, f"host{index // 2}", 1) for index in range(4)]
    nodes = nodes_of(members)
    assert nodes == [
        CheckedNode("host0 (node 0)", "host0", (0, 1), (0, 1)), CheckedNode("host1 (node 1)", "host1", (2, 3), (2, 3))
    ]  # fmt: skip
    verdict = decide(
        nodes, {0: FINE, 1: FINE, 2: FINE, 3: [BROKEN]}, least=2, scheduler="slurm", settings={}, timeout=40
    )
    assert (verdict.then, verdict.lost) == (PreflightThen.WITHOUT, (2, 3))


MISMATCH = Observation("NCCL uses sockets")


def test_a_verdict_is_read_as_it_was_written() -> None:
    bad, warnings = (NodeFinding("a", "b", "c", MISMATCH),), (NodeFinding("e", "f", "g", Observation(ODD.found)),)
    verdict = PreflightVerdict(PreflightThen.FAIL, bad, (3,), warnings, "all nodes fail", 93)
    assert from_json(json.loads(json.dumps(asdict(verdict))), PreflightVerdict) == verdict


# -- the checks


@pytest.mark.parametrize(
    ("error", "level", "message", "symptom"),
    [
        (RuntimeError("[/x.cc:1] Connection closed by peer [127.0.0.1]:1"), CheckLevel.FAILED, None, True),
        (RuntimeError("Timed out after 30 s"), CheckLevel.FAILED, None, True),
        (RuntimeError("CUDA error: ECC error\nand more"), CheckLevel.FAILED, "CUDA error: ECC error", False),
        (KeyError(), CheckLevel.FAILED, "KeyError", False),
        (RuntimeError("NCCL error\nncclInvalidUsage: x\nLast error:\nDuplicate GPU detected"), CheckLevel.FAILED,
         "NCCL error: Duplicate GPU detected", False),
    ],
)  # fmt: skip
def test_any_error_is_the_outcome_of_a_check(
    error: Exception, level: CheckLevel, message: str | None, symptom: bool
) -> None:
    def look() -> str:
        raise error

    found = check("device", look)
    assert (found.level, found.symptom) == (level, symptom)
    assert message is None or found.found == message
    assert found.ms >= 0


def test_a_problem_is_the_outcome_of_a_check() -> None:
    def look() -> str:
        raise CheckProblem(ODD.found, CheckLevel.WARNING, accused=(1,), looked=2)

    found = check("clock", look)
    assert replace(found, ms=0.0) == NodeCheck("clock", CheckLevel.WARNING, ODD.found, accused=(1,), looked=2)


@contextlib.contextmanager
def problem(pattern: str) -> Iterator[pytest.ExceptionInfo[CheckProblem]]:
    """Expects a Problem with this text."""
    with pytest.raises(CheckProblem) as raised:
        yield raised
    assert re.search(pattern, raised.value.found), raised.value.found


@pytest.mark.parametrize(
    ("keys", "there", "fine"),
    [
        ({"gpus_per_node": 8}, 8, True),
        ({"gpus_per_node": 8}, 7, False),
        ({"gpus_per_node": 8}, 0, False),
        ({"gpus_per_node": 8, "launch": {"mode": "tasks"}}, 1, True),  # a rank may see its own alone
        ({"gpus_per_node": 8, "launch": {"mode": "tasks"}}, 0, False),
        ({"gpus_per_node": 8, "workload": {"device": "cpu"}}, 0, True),
        ({"gpus_per_node": 0}, 0, True),
        ({"gpus_per_node": 0, "workload": {"device": "cuda"}}, 0, False),
    ],
)
def test_missing_gpus_are_seen(keys: dict[str, Any], there: int, fine: bool) -> None:
    with contextlib.nullcontext() if fine else problem(f"torch sees {there} GPUs"):
        checks.require_devices(bare_plan(**keys), there)


def test_a_device_that_computes_wrong_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks.compute(torch.device("cpu")) == "cpu"
    matmul = torch.Tensor.__matmul__
    monkeypatch.setattr(
        torch.Tensor, "__matmul__", lambda a, b: matmul(a, b) + (a.dtype is torch.float32) * torch.eye(checks.SIDE)
    )
    with problem(f"computes wrong: {checks.SIDE} of {checks.SIDE**2} elements"):
        checks.compute(torch.device("cpu"))


@pytest.mark.parametrize(
    ("free", "files", "level"),
    [
        (MIB * 5000, 10**6, None),
        (MIB * 5000, -1, None),  # not counted there
        (MIB * 100, 10**6, CheckLevel.WARNING),
        (MIB, 10**6, CheckLevel.FAILED),
        (MIB * 5000, 0, CheckLevel.FAILED),
    ],
)
def test_little_space_is_told_and_none_fails(free: int, files: int, level: CheckLevel | None) -> None:
    def look() -> str:
        return checks.judge_space("runs_dir", "/runs", free, files, checks.LEAST, checks.ENOUGH)

    if level is None:
        assert look() == "/runs has 5,000 MiB free"
        return
    with problem("set runs_dir to another file system") as raised:
        look()
    assert raised.value.level is level


def test_a_folder_that_is_yet_to_be_made_is_judged_by_the_one_above(tmp_path: Path) -> None:
    found = checks.space("it", tmp_path / "a" / "b", 1, 1)
    assert found.startswith(f"{tmp_path} has ")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with problem("file is no folder: set it to one"):
        checks.space("it", tmp_path / "file" / "b", 1, 1)


@pytest.fixture
def full(tmp_path: Path) -> Any:
    """A file system of 64 KiB that is full."""
    folder = tmp_path / "full"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a file system")
    with contextlib.suppress(OSError):
        (folder / "file").write_bytes(bytes(1 << 20))
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_file_system_is_seen(full: Path) -> None:
    with problem(r"cannot be written to \(its file system is full\): set it to a folder that can"):
        checks.space("it", full, 1, 1)


def test_the_newest_checkpoint_that_can_be_read_tells_the_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from launcher.checkpoint import format as checkpoints

    plan = bare_plan(checkpoint={"dir": str(tmp_path)})
    assert checks.newest_checkpoint(plan) == 0
    for step in range(3):
        (tmp_path / f"step-{step:09}").mkdir()
    looked: list[str] = []

    def read(path: Path) -> checkpoints.Manifest:
        looked.append(path.name)
        if path.name == "step-000000002":
            raise checkpoints.Damaged("it is damaged")
        return checkpoints.Manifest(1, "single", 1, 0, {}, {}, {}, {"state.pt": checkpoints.File(1 << 60, ())})  # type: ignore[arg-type]

    monkeypatch.setattr(checkpoints, "read", read)
    assert checks.newest_checkpoint(plan) == 1 << 60
    assert looked == ["step-000000002", "step-000000001"], "at no more than the newest"


def test_a_folder_for_temporary_files_that_is_not_there_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "none"))
    with problem("none is not there"):
        checks.temporary()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert checks.temporary().startswith(f"{tmp_path} has ")
    assert checks.shared_memory(0).startswith("/dev/shm has ")


@pytest.mark.parametrize(
    ("owner", "mode", "words"),
    [(1000, 0o600, ""), (65534, 0o600, "belongs to user 65534"), (1000, 0o666, "has mode 666")],
)
def test_a_file_must_be_its_writers_own(owner: int, mode: int, words: str) -> None:
    with problem(words) if words else contextlib.nullcontext():
        checks.judge_owner(Path("/runs/x"), owner, 1000, mode)


def test_files_of_other_nodes_are_waited_for_and_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "preflight"
    checks.write_mine(folder, 0, "zero")
    assert (folder / "member-0").stat().st_mode & 0o777 == 0o600 and folder.stat().st_mode & 0o777 == 0o700
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        if now > 20:
            checks.write_mine(folder, 1, "one")

    monkeypatch.setattr(checks, "time", SimpleNamespace(monotonic=lambda: now, sleep=sleep))
    assert checks.see(folder, {0: "zero", 1: "one"}, timeout=30) == "2 files of other nodes seen"
    with problem("does not show what other nodes write within 30 s") as raised:
        checks.see(folder, {0: "zero", 1: "another", 2: "two"}, timeout=30)
    assert 50 < now < 51
    assert (raised.value.accused, raised.value.looked) == ((1, 2), 3)
    (tmp_path / "file").touch()
    with problem("cannot be written to"):
        checks.write_mine(tmp_path / "file" / "preflight", 0, "")


@pytest.mark.parametrize(
    ("mine", "theirs", "ahead", "error"),
    [
        ([(10.0, 10.5)], [10.25], 0.0, 0.25),
        ([(10.0, 12.0), (20.0, 20.002)], [41.0, 50.001], -30.0, 0.001),  # the shortest exchange tells most
        ([(105.0, 105.2)], [100.0], 5.1, 0.1),
    ],
)
def test_the_offset_of_a_clock(mine: Any, theirs: list[float], ahead: float, error: float) -> None:
    assert checks.offset(mine, theirs) == pytest.approx((ahead, error))


def test_clocks_that_differ_are_a_warning() -> None:
    assert checks.judge_clock(0.9, 0.1) == "its clock is 0.900 s ahead of the first node's (± 0.100 s)"
    assert "0.900 s behind" in checks.judge_clock(-0.9, 0.1)
    assert checks.judge_clock(1.4, 0.5)
    for ahead in (1.2, -100.0):
        with problem("have the nodes' clocks synchronised") as raised:
            checks.judge_clock(ahead, 0.1)
        assert raised.value.level is CheckLevel.WARNING


IF_INET6 = """\
00000000000000000000000000000001 01 80 10 80       lo
fe8000000000000000fc00fffe000001 04 40 20 80     ib0
fd000000000000000000000000000002 04 40 00 82     ib0
"""


@pytest.fixture
def ipv6_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No interface has an IPv4 address, and the host's name has one that nobody else reaches."""

    def none(*_: object) -> bytes:
        raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")

    (tmp_path / "if_inet6").write_text(IF_INET6)
    monkeypatch.setattr(rounds, "IPV6_TABLE", tmp_path / "if_inet6")
    monkeypatch.setattr(rounds.fcntl, "ioctl", none)


def test_an_interface_with_ipv6_alone_has_addresses(ipv6_only: None) -> None:
    assert rounds.addresses("ib0") == ["fd00::2", "fe80::fc:ff:fe00:1%ib0"]
    assert rounds.addresses("lo") == ["::1"]
    assert rounds.addresses("eth9") == []


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_a_node_is_reached_on_an_interface_with_ipv6_alone(ipv6_only: None) -> None:
    server, told = checks.open_port("lo")
    assert server
    with server:
        assert told.startswith("::1 ")
        assert checks.reach({1: told}, {1: "node1"}) == "1 other node reached"


def test_a_host_without_any_address_opens_no_port_and_does_not_fail(
    monkeypatch: pytest.MonkeyPatch, ipv6_only: None
) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(checks.socket, "getaddrinfo", unknown)
    assert checks.open_port("eth9") == (None, "")


def test_doors_that_do_not_open_are_accused() -> None:
    server, told = checks.open_port("lo")
    closed, address = checks.open_port("no such interface" * 3)
    assert server and closed
    closed.close()
    assert checks.reach({1: told}, {1: "node1"}) == "1 other node reached"
    with problem("node2 and 1 more cannot be reached .*refused.* at ") as raised:
        checks.reach({1: told, 2: address, 3: ""}, {1: "node1", 2: "node2", 3: "node3"})
    assert (raised.value.accused, raised.value.looked) == ((2, 3), 3)
    with problem(r"node3 cannot be reached \(it has opened no port\): is there a firewall"):
        checks.reach({3: ""}, {3: "node3"})
    server.close()


# -- all of it, with agents that are processes


def fine(index: int) -> None:
    pass

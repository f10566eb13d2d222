"""Every bound is in launcher/io_bounds.py; tests/unit/test_io_bounds.py tries each."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Iterator
from functools import cache

import pytest

from launcher import io_bounds
from tests.launch import ROOT
from tests.unit.repository.trees import nodes, tree

LARGE = 1 << 12  # smaller numbers bound nothing that could grow
OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.LShift: operator.lshift, ast.Mult: operator.mul, ast.Pow: operator.pow, ast.Add: operator.add,
    ast.Sub: operator.sub,
}  # fmt: skip

# Large numbers of launcher/ that bound neither what is written nor what is read, by what they are.
NO_BOUNDS = {
    "how much is read, written, copied or hashed at once; the rest follows": {
        "agent/workers.READ", "agent/workers.MOST", "checkpoint/memory_format.BLOCK", "checkpoint/format.BLOCK",
        "checkpoint/memory_copies.PIECE",
        "checkpoint/format._BUFFER", "checkpoint/state._PIECE", "checkpoint/saving.AT_ONCE",
        "checkpoint/saving.AT_ONCE_ALL", "checkpoint/storage._PIECE", "environment/archives.PIECE",
        "environment/code_files.PIECE",
        "rendezvous/signed_channel._READ", "rendezvous/store.READ", "runs/event_files._END_BYTES",
        "runs/event_files._PIECE_BYTES",
        "runs/output_files.BLOCK",
    },
    "how much a command shows, or reads of a log of others for it": {
        "agent/workers.TAIL", "runs/output_files.TAIL",
        "reports/collect.LOG_BYTES", "reports/figures.POINTS", "reports/page.MOST_POINTS",
        "runs/output_files.LONGEST_STATE",
        "runs/event_files._CHECKED_BYTES", "worker/debugger.SCREEN", "worker/devices.NCCL_LOG_BYTES",
        "remote/ssh._MOST_ERRORS",
    },
    "where one way is chosen, or a warning given, instead of another": {
        "checkpoint/memory_format.MOST_SHARED", "checkpoint/saving.SMALL", "checkpoint/saving.SLACK",
        "remote/ssh.LARGE", "cli/doctor.FEW_INODES",
        "cli/doctor.LEAST_FILES", "runs/event_files._JOINT_PARSE_LIMIT", "search/progress.LARGEST_SHUFFLED",
    },
    "a unit, a number of the kernel or of a protocol, the size of a probe or of a table": {
        "processes.LARGE", "agent/workers.PIPE", "checkpoint/collectives._RANKS", "checkpoint/state.BUCKETS",
        "checkpoint/memory_format.AREA", "checkpoint/memory_format.HEADER", "worker/shared_with_agent._MEMORY_SIZE",
        "cli/doctor.MIB", "cli/doctor.GIB",
        "diagnose/advice.GIB",
        "agent/preflight_checks.MIB", "agent/preflight_checks.WRITTEN", "agent/preflight_checks.ELEMENTS",
        "remote/ssh.CHUNK",
        "rendezvous/rounds._SIOCGIFADDR", "worker/process_group.PORTS", "worker/stop._RANKS",
    },
    "memory of a queue, or of what a person types; more is dropped": {
        "worker/debugger.LONGEST", "worker/tracking.QUEUE",
    },
    "of texts that are cut when they are written, in a module that runs without our packages": {
        "worker/user_script.LONGEST_MESSAGE", "worker/user_script.LONGEST_TRACEBACK",
    },
}  # fmt: skip


def value_of(node: ast.expr) -> int | None:
    """Returns the value of an expression of whole numbers (`1 << 20`); of a tuple the largest; None: it is another."""
    if isinstance(node, ast.Constant):
        return node.value if type(node.value) is int else None
    if isinstance(node, ast.Tuple):
        return max((value for each in node.elts if (value := value_of(each)) is not None), default=None)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        left, right = value_of(node.left), value_of(node.right)
        return None if left is None or right is None else OPERATORS[type(node.op)](left, right)
    return None


def large_constants(module: ast.Module) -> Iterator[str]:
    """Yields the names in upper case that a module or a class of it gives to large numbers."""
    classes = [each for each in module.body if isinstance(each, ast.ClassDef)]
    for statement in [*module.body, *(each for kind in classes for each in kind.body)]:
        if not isinstance(statement, ast.Assign | ast.AnnAssign) or statement.value is None:
            continue
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        for target in targets:
            pairs = (
                zip(target.elts, statement.value.elts, strict=True)
                if isinstance(target, ast.Tuple) and isinstance(statement.value, ast.Tuple)
                else [(target, statement.value)]
            )
            for name, value in pairs:
                if isinstance(name, ast.Name) and name.id.isupper() and (value_of(value) or 0) >= LARGE:
                    yield name.id


def compared(nodes: Iterable[ast.AST]) -> Iterator[int]:
    """Yields large powers of two that are compared with something, and are no constant with a name."""
    for node in nodes:
        if isinstance(node, ast.Compare):
            for each in (node.left, *node.comparators):
                if (
                    isinstance(each, ast.BinOp)
                    and (value := value_of(each))
                    and value.bit_count() == 1
                    and value >= LARGE
                ):
                    yield node.lineno


MODULES = {
    path.relative_to(ROOT / "launcher").with_suffix("").as_posix(): path
    for path in sorted((ROOT / "launcher").rglob("*.py"))
    if path.name != "io_bounds.py"
}


@cache
def texts() -> list[str]:
    return [path.read_text() for path in MODULES.values()]


def test_a_bound_is_in_the_module_of_bounds() -> None:
    found = {f"{module}.{name}" for module, path in MODULES.items() for name in large_constants(tree(path))}
    known = set().union(*NO_BOUNDS.values())
    assert found - known == set(), "a bound on what is written or read belongs into launcher/io_bounds.py"
    assert known - found == set(), "these are gone"


def test_a_bound_has_a_name() -> None:
    found = {f"{module}:{line}" for module, path in MODULES.items() for line in compared(nodes(path))}
    # how the kernel says that there is no limit
    assert {each.partition(":")[0] for each in found} == {"binding/hardware"}


@pytest.mark.parametrize("bound", [name for name in vars(io_bounds) if name.isupper()])
def test_each_bound_is_used_by_its_module(bound: str) -> None:
    assert any(f"io_bounds.{bound}" in text for text in texts()), "take it from the module of bounds"


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("LIMIT = 1 << 20", ["LIMIT"]),
        ("MOST: int = 10_000", ["MOST"]),
        ("class A:\n    FIRST, LAST = 1, 4 * 1024", ["LAST"]),
        ("SMALL = 100\nlower = 1 << 20\nTEXT = 'x'", []),
    ],
)
def test_a_bound_is_found(source: str, found: list[str]) -> None:
    assert list(large_constants(ast.parse(source))) == found


@pytest.mark.parametrize(("source", "lines"), [("if len(a) > 1 << 20: pass", [1]), ("x < 5\ny < LIMIT", [])])
def test_a_bound_without_a_name_is_found(source: str, lines: list[int]) -> None:
    assert list(compared(ast.walk(ast.parse(source)))) == lines

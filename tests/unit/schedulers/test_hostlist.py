"""Node lists: what Slurm writes is read, in its order; what a job's hosts are is known to all its ranks."""

from __future__ import annotations

import contextlib
import subprocess
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher import io_bounds
from launcher.schedulers.topology import expand, expand_counts, hosts_in, variable


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node1", ["node1"]),
        ("a,b", ["a", "b"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[1-2,7]", ["n1", "n2", "n7"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("n[098-101]", ["n098", "n099", "n100", "n101"]),
        ("n[9-10]", ["n9", "n10"]),
        ("n[3]-ib", ["n3-ib"]),
        ("n[1-2]-ib,gpu-a[1-2]", ["n1-ib", "n2-ib", "gpu-a1", "gpu-a2"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("r[1-2]c[0,5]n[01-02]x", ["r1c0n01x", "r1c0n02x", "r1c5n01x", "r1c5n02x",
                                   "r2c0n01x", "r2c0n02x", "r2c5n01x", "r2c5n02x"]),
        ("[1-2]", ["1", "2"]),
        ("n2,n1,n[3-4],n1", ["n2", "n1", "n3", "n4", "n1"]),
        ("node1.example.org", ["node1.example.org"]),
        (" a , b ", ["a", "b"]),
        ("", []),
    ],
)  # fmt: skip
def test_lists_are_expanded(text: str, hosts: list[str]) -> None:
    assert expand(text) == hosts


@pytest.mark.parametrize(
    "text", ["n[1-2", "n1-2]", "n[[1]]", "n]1[", "n[]", "n[a-b]", "n[3-1]", "n[1-]", "n[-1]", "n[1,]"]
)
def test_what_is_no_list_is_refused_with_the_list_in_the_text(text: str) -> None:
    with pytest.raises(ValueError, match="node list") as refusal:
        expand(text)
    assert repr(text) in str(refusal.value)


def test_ten_thousand_nodes_are_all_there() -> None:
    hosts = expand("n[00000-09999]")
    assert hosts == [f"n{number:05}" for number in range(10000)]
    assert expand("rack[001-100]node[001-100]")[::101] == [f"rack{n:03}node{n:03}" for n in range(1, 101)]
    assert expand(",".join(hosts)) == hosts


def compress(prefix: str, numbers: list[int], width: int, suffix: str) -> str:
    """As Slurm writes hosts that differ in one number."""
    runs = []
    for _, group in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        members = [number for _, number in group]
        low, high = f"{members[0]:0{width}}", f"{members[-1]:0{width}}"
        runs.append(low if low == high else f"{low}-{high}")
    return f"{prefix}[{','.join(runs)}]{suffix}"


names = st.from_regex(r"[a-z][a-z-]{0,5}", fullmatch=True)
families = st.tuples(
    names,
    st.lists(st.integers(0, 9999), min_size=1, max_size=20),
    st.integers(1, 5),
    st.sampled_from(["", "-ib", ".net"]),
)


@given(st.lists(families, min_size=1, max_size=4))
def test_expanding_gives_back_what_was_compressed(chosen: list[tuple[str, list[int], int, str]]) -> None:
    text = ",".join(compress(*family) for family in chosen)
    assert expand(text) == [
        f"{prefix}{number:0{width}}{suffix}" for prefix, numbers, width, suffix in chosen for number in numbers
    ]


@given(st.text("ab01[]-,", max_size=15))
def test_any_text_is_expanded_or_refused(text: str) -> None:
    try:
        hosts = expand(text)
    except ValueError as refusal:
        assert "node list" in str(refusal)
    else:
        assert all(hosts)
        assert not any(char in host for host in hosts for char in "[],")


@pytest.mark.parametrize(
    ("text", "counts"),
    [("1", [1]), ("2(x3),1", [2, 2, 2, 1]), ("4,4", [4, 4]), ("1(x2)", [1, 1]), ("8(x10000)", [8] * 10000)],
)
def test_repeated_counts_are_expanded(text: str, counts: list[int]) -> None:
    assert expand_counts(text) == counts


def names(count: int, length: int = 63) -> list[str]:
    return [
        f"node-{number * 7919 % 100_003:06}.{'rack-7.cluster.site.example.org' * 3}"[:length] for number in range(count)
    ]


@pytest.mark.parametrize("count", [1, 2, 4096, 10_000])
def test_the_hosts_of_a_job_fit_into_a_variable(count: int) -> None:
    environment = variable(names(count))
    assert hosts_in(environment) == names(count)
    subprocess.run(["/bin/true"], env=environment, check=True)


def test_a_variable_holds_as_much_as_the_kernel_says() -> None:
    for size, fits in ((io_bounds.VARIABLE_BYTES, True), (io_bounds.VARIABLE_BYTES + 1, False)):
        with contextlib.nullcontext() if fits else pytest.raises(OSError, match="too long"):
            subprocess.run(["/bin/true"], env={"A": "x" * (size - 2)}, check=True)


def test_no_hosts_are_none() -> None:
    assert hosts_in({}) == hosts_in({"LAUNCHER_HOSTS": ""}) == []

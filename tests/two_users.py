"""What another user of this machine can do: tests call a function as one, in a process of its own."""

from __future__ import annotations

import ctypes
import encodings.idna  # noqa: F401 -- connections load it, from a Python that he may not read
import os
import pickle
import traceback
from collections.abc import Callable
from typing import TypeVar

import pytest

SOMEBODY_ELSE = 65534  # nobody, who owns nothing here

T = TypeVar("T")


def as_somebody_else(function: Callable[[], T], namespace: str | None = None) -> T:
    """What the function returns in a process of another user; skips the test where only root could make one.

    Args:
        function: what he does.
        namespace: the network namespace in which he does it, as `ip netns` names it; None: this one.
    """
    if os.geteuid() != 0:
        pytest.skip("a process of another user can be made as root only")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if namespace is not None:
                with open(f"/run/netns/{namespace}") as file:
                    assert ctypes.CDLL(None).setns(file.fileno(), 0) == 0  # os.setns since Python 3.12
            os.setgroups([])
            os.setresgid(*[SOMEBODY_ELSE] * 3)
            os.setresuid(*[SOMEBODY_ELSE] * 3)
            with open(writing, "wb") as pipe:
                pickle.dump(function(), pipe)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writing)
    with open(reading, "rb") as answer:
        told = answer.read()
    os.waitpid(child, 0)
    assert told, "the other user's process failed"
    found: T = pickle.loads(told)  # this test's own process
    return found

"""The interpreter of tests (see the package): stands in for what imports torch, and becomes Python for the rest."""

import ctypes
import json
import os
import resource
import signal
import socket
import struct
import sys

# Fields of /proc/self/stat (man 5 proc) from 0: where each starts; the next one is its end
ARGUMENTS, ENVIRONMENT = 47, 49
LENGTH = struct.Struct("!I")  # of a request
ANSWER = struct.Struct("!i")  # the id of the fork, 0: there is none; then how it ended, as subprocess tells it
NAMESPACES = ("ipc", "net", "uts", "mnt")  # which a fork can enter, in this order
LIMITS = [number for name, number in vars(resource).items() if name.startswith("RLIMIT_")]
CATCHABLE = [each for each in signal.valid_signals() if each not in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD)]


NEED_TORCH = (
    b"import torch", b"from torch", b"torch.distributed", b"lightning", b"transformers", b"multiprocessing.spawn",
    b"import launcher", b"from launcher import", b"launcher.agent", b"launcher.worker", b"from workloads",
)  # fmt: skip


def facts():
    """What a fork of another process would have from that one, and must have from this one."""
    with open("/proc/self/cgroup") as cgroup:
        group = cgroup.read()
    return {
        "namespaces": [os.readlink("/proc/self/ns/" + each) for each in ("cgroup", "pid", "user")],
        "cgroup": group, "root": os.readlink("/proc/self/root"),
        "user": [os.getresuid(), os.getresgid()],
    }  # fmt: skip


def area(field):
    """Returns where the kernel reads /proc/PID/cmdline or environ from: first address, and the one behind."""
    with open("/proc/self/stat") as file:
        values = file.read().rpartition(")")[2].split()
    return int(values[field - 2]), int(values[field - 1])


def answer(server, if_gone):
    data = server.recv(ANSWER.size, socket.MSG_WAITALL)
    return ANSWER.unpack(data)[0] if len(data) == ANSWER.size else if_gone


def program(arguments):
    """Returns option (-c, -m or none), code or name, and arguments of a Python's program; None: none, other options."""
    words = list(arguments[1:])
    if words[:1] == ["-u"]:
        del words[0]
    if words[:1] in (["-c"], ["-m"]) and len(words) > 1:
        return words[0], words[1], words[2:]
    return None if not words or words[0].startswith("-") else ("", words[0], words[1:])


def needs_torch(python, *arguments):
    """Whether a program imports torch, for all that its text says."""
    option, target, words = program([python, *arguments]) or ("-c", "", [])
    if target == "tests.warm_python.server":
        return False
    if option == "-c":
        text = os.fsencode(" ".join([target, *words[:1]]))
    elif option == "-m":
        folders = [".", *os.environ.get("PYTHONPATH", "").split(":")]
        text = os.fsencode(target) + _text(f"{folder}/{target.replace('.', '/')}.py" for folder in folders)
    else:
        text = _text([target] if target.endswith(".py") else [])
    return any(word in text for word in NEED_TORCH)


def _text(paths):
    for path in paths:
        try:
            with open(path, "rb") as file:
                return file.read()
        except OSError:
            continue
    return b""


def main(python, *arguments):
    server = os.path.join(os.path.dirname(os.path.dirname(python)), "socket")
    if not os.access(server, os.W_OK) or not needs_torch(python, *arguments):
        os.execv(os.path.realpath("/proc/self/exe"), [python, *arguments])
    waiting, child = [], 0

    def hand_on(number, _):
        if child:
            os.kill(child, number)
        else:
            waiting.append(number)

    ignored = [each for each in CATCHABLE if signal.getsignal(each) == signal.SIG_IGN]
    before = {each: signal.signal(each, hand_on) for each in CATCHABLE}  # the fork may come to handle ignored ones, too
    descriptors = [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208  pathlib is slow to import
    answers = socket.socket(socket.AF_UNIX)
    descriptors = [each for each in descriptors if os.path.exists(f"/proc/self/fd/{each}") and each != answers.fileno()]
    umask = os.umask(0)
    os.umask(umask)
    request = {
        "facts": facts(), "arguments": [python, *arguments], "folder": os.getcwd(),
        "pid": os.getpid(), "processors": sorted(os.sched_getaffinity(0)), "environment": dict(os.environ),
        "descriptors": descriptors, "umask": umask, "nice": os.nice(0), "groups": os.getgroups(),
        "limits": {each: resource.getrlimit(each) for each in LIMITS}, "ignored": ignored,
        "blocked": list(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    }  # fmt: skip
    data = json.dumps(request).encode()
    # Who looks for the agent's marks in environments (`LAUNCHER_GUARD`) finds the agent alone.
    begin, end = area(ENVIRONMENT)
    ctypes.memset(begin, 0, end - begin)
    try:
        answers.connect(server)
        socket.send_fds(answers, [LENGTH.pack(len(data))], descriptors)
        answers.sendall(data)
        child = answer(answers, 0)
    except OSError as error:
        print(f"no fork of a warm Python: {error}", file=sys.stderr)
    if not child:
        for number, handler in before.items():
            signal.signal(number, handler)
        os.execve(os.path.realpath("/proc/self/exe"), [python, *arguments], request["environment"])
    for number in waiting:
        os.kill(child, number)
    code = answer(answers, 70)
    if code < 0:
        if -code in CATCHABLE:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main(*sys.argv)

"""The interpreter of tests (see the package): stands in for an agent, and becomes Python for everything else."""

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
NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
LIMITS = [number for name, number in vars(resource).items() if name.startswith("RLIMIT_")]
CATCHABLE = [each for each in signal.valid_signals() if each not in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD)]


def facts():
    """What a fork of another process would have from that one, and must have from this one."""
    with open("/proc/self/cgroup") as cgroup:
        group = cgroup.read()
    return {
        "namespaces": [os.readlink("/proc/self/ns/" + each) for each in NAMESPACES],
        "cgroup": group, "root": os.readlink("/proc/self/root"),
        "processors": sorted(os.sched_getaffinity(0)),
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


def main(python, *arguments):
    server = os.path.join(os.path.dirname(os.path.dirname(python)), "socket")
    if arguments[:2] != ("-u", "-c") or arguments[3:4] != ("launcher.agent",) or not os.path.exists(server):
        os.execv(os.path.realpath("/proc/self/exe"), [python, *arguments])
    waiting, child = [], 0

    def hand_on(number, _):
        if child:
            os.kill(child, number)
        else:
            waiting.append(number)

    ignored = [each for each in CATCHABLE if signal.getsignal(each) == signal.SIG_IGN]
    before = {each: signal.signal(each, hand_on) for each in CATCHABLE if each not in ignored}
    descriptors = [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208  pathlib is slow to import
    answers = socket.socket(socket.AF_UNIX)
    descriptors = [each for each in descriptors if os.path.exists(f"/proc/self/fd/{each}") and each != answers.fileno()]
    umask = os.umask(0)
    os.umask(umask)
    request = {
        "facts": facts(), "arguments": [python, *arguments], "folder": os.getcwd(), "environment": dict(os.environ),
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

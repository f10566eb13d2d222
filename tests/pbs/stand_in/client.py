"""The program of every command: `client.py SOCKET COMMAND ARGUMENT...`. The daemon executes all but pbsdsh."""

from __future__ import annotations

import os
import socket
import sys

sys.path.insert(0, os.path.abspath(f"{__file__}/../../../.."))

from tests.pbs.stand_in import wire


def main(address: str, command: str, argv: list[str]) -> int:
    if command == "pbsdsh":
        from tests.pbs.stand_in import pbsdsh

        return pbsdsh.main(address, argv)
    message = wire.pack({"command": command, "argv": argv, "cwd": working_directory(), "environ": dict(os.environ)})
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        sent = socket.send_fds(connection, [message], [0])
        if sent < len(message):
            connection.sendall(message[sent:])
        answer = wire.receive(connection)
    if answer is None:
        sys.exit(f"{command}: the stand-in's daemon has failed, see its daemon.log")
    sys.stdout.buffer.write(str(answer["out"]).encode(errors="surrogateescape"))
    sys.stdout.flush()
    sys.stderr.buffer.write(str(answer["err"]).encode(errors="surrogateescape"))
    return int(str(answer["status"]))


def working_directory() -> str:
    """Returns $PWD, which may contain symbolic links, if it names the working directory; else the real path."""
    named = os.environ.get("PWD", "")
    try:
        return named if os.path.isabs(named) and os.path.samefile(named, ".") else os.getcwd()
    except OSError:
        return os.getcwd()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))

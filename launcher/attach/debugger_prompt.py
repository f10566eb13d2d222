"""The prompt for a rank's debugger: lines are edited here, with readline; the rank computes completions."""

from __future__ import annotations

import sys
from typing import Any

from launcher.attach.connect import DebuggerConnection

LEFT = "the rank stays at its breakpoint; the same command attaches again"


def run_prompt(debugger: DebuggerConnection, rank: int) -> int:
    """Runs the prompt until the rank ends, or the user detaches (Ctrl-D at the prompt, Ctrl-C while the rank runs).

    Returns Exit code of `attach`: 1 if no message of the debugger arrived, else 0.
    """
    reached = runs = False
    complete = _Completions(debugger)
    try:
        while (message := debugger.receive()) is not None:
            reached = True
            if "text" in message:
                print(message["text"], end="", flush=True)
            elif "prompt" in message:
                runs, typed = False, _ask(str(message["prompt"]), complete)
                if typed is None:
                    print(f"launcher: {LEFT}")
                    return 0
                debugger.send(line=typed)
            elif "runs" in message:
                print(f"launcher: rank {rank} continues; its next breakpoint shows up here, Ctrl-C detaches")
                runs = True
            elif "bye" in message:
                print(f"launcher: {message['bye']}")
                return 0
    except KeyboardInterrupt:
        print("" if runs else f"\nlauncher: {LEFT}")
        return 0
    except OSError:
        pass
    if not reached:
        print(f"launcher: the debugger of rank {rank} cannot be reached", file=sys.stderr)
        return 1
    print(f"launcher: rank {rank} has ended")
    return 0


def _ask(prompt: str, complete: Any) -> str | None:
    while True:
        try:
            with complete:
                return input(prompt)
        except EOFError:
            print()
            return None
        except KeyboardInterrupt:
            print("\n--KeyboardInterrupt--")


class _Completions:
    """Inside a `with` block, completes names on the Tab key. The completions are requested from the rank's debugger."""

    def __init__(self, debugger: DebuggerConnection) -> None:
        self._debugger = debugger
        self._found: list[str] = []
        try:
            # Lazily: only a terminal has a line to edit
            import readline
        except ImportError:
            self._readline: Any = None
        else:
            self._readline = readline if sys.stdin.isatty() else None

    def __enter__(self) -> None:
        if self._readline:
            self._readline.set_completer(self._complete)
            self._readline.set_completer_delims(" \t\n`@#$%^&*()=+[{]}\\|;:'\",<>?")  # as in pdb
            self._readline.parse_and_bind("tab: complete")

    def __exit__(self, *_: object) -> None:
        if self._readline:
            self._readline.set_completer(None)

    def _complete(self, word: str, state: int) -> str | None:
        if state == 0:
            edited = self._readline
            self._debugger.send(complete=[word, edited.get_line_buffer(), edited.get_begidx(), edited.get_endidx()])
            self._found = []
            message = self._debugger.receive()
            if message is not None:
                self._found = [str(each) for each in message.get("completions", ())]
        return self._found[state] if state < len(self._found) else None

"""Determines whether a position in a shell script is within quotes, backquotes, arithmetic or a here-document."""

from __future__ import annotations

import re


class ShellContext:
    """A parser of shell text that is fed in pieces. `inside` describes the position after the text read so far."""

    BEGINS = re.compile(r"""\$'|['"`]|\$?\(\(?""")
    DOCUMENT = re.compile(r"""<<(-?)[ \t]*(?:'([^'\n]+)'|"([^"\n]+)"|\\?([^\s;&|<>()'"\\]+))""")

    def __init__(self) -> None:
        self._open: list[str] = []  # open quotes, comments (#) and parentheses, the innermost last: " ' $' ` # ( ((
        self._announced: list[tuple[str, str]] = []  # here-documents that start on the next line: "-" or "", delimiter
        self._documents: list[tuple[str, str]] = []  # here-documents that have started
        self._line = ""  # the line so far, in a here-document
        self._before = "\n"  # the last character

    @property
    def inside(self) -> str:
        """What encloses the next character, as text (`double quotes`); empty: nothing."""
        if self._documents:
            return "a here-document"
        if "`" in self._open:
            return "backquotes"
        if self._inner == "((":
            return "arithmetic"
        return {'"': "double quotes", "'": "single quotes", "$'": "single quotes"}.get(self._inner, "")

    @property
    def _inner(self) -> str:
        return self._open[-1] if self._open else ""

    def read(self, text: str) -> None:
        """Parses the next piece of the text."""
        position = 0
        while position < len(text):
            after = self._document(text, position) if self._documents else self._step(text, position)
            self._before = "_" if text[position] == "\\" else text[min(after, len(text)) - 1]
            position = after

    def _document(self, text: str, at: int) -> int:
        line, newline, _ = text[at:].partition("\n")
        self._line += line
        if newline:
            dash, last = self._documents[0]
            if (self._line.lstrip("\t") if dash else self._line) == last:
                del self._documents[0]
            self._line = ""
        return at + len(line) + len(newline)

    def _step(self, text: str, at: int) -> int:
        character, inner = text[at], self._inner
        if inner == "#" and character == "\n":
            self._open.pop()
            inner = self._inner
        if inner == "#":
            return at + 1
        if character == "\\" and inner != "'":
            return at + 2
        if inner in ('"', "'", "`", "$'") and character == inner[-1]:
            return self._close(at + 1)
        if inner in ("'", "$'"):
            return at + 1
        begins = self.BEGINS.match(text, at)
        if begins and (inner != '"' or begins[0] in ("`", "$(", "$((")):
            self._open.append(begins[0] if begins[0] == "$'" else begins[0].lstrip("$"))
            return begins.end()
        return at + 1 if inner == '"' else self._unquoted(text, at, inner)

    def _unquoted(self, text: str, at: int, inner: str) -> int:
        character, arithmetic = text[at], inner == "(("
        if (inner == "(" and character == ")") or (arithmetic and text.startswith("))", at)):
            return self._close(at + len(inner))
        if character == "\n":
            self._documents, self._announced = self._announced, []
            return self._close(at + 1) if arithmetic else at + 1  # arithmetic does not span lines
        if arithmetic:
            return at + 1
        if character == "#" and self._before in " \t\n;&|(":
            self._open.append("#")
        elif text.startswith("<<<", at):
            return at + 3
        elif document := self.DOCUMENT.match(text, at):
            self._announced.append((document[1], document[2] or document[3] or document[4]))
            return document.end()
        return at + 1

    def _close(self, after: int) -> int:
        self._open.pop()
        return after

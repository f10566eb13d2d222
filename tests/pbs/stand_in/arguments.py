"""The command line: glibc's getopt, job ids, the words of a `#PBS` line, date_time."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

SERVER = "pbs-srv"
JOB_ID = re.compile(r"\s*(\d{1,12}(?:\[[\d:-]*\])?)(?:\.([\w.-]+))?(?:@([\w.:-]+))?", re.ASCII)


@dataclass
class Options:
    """What getopt found.

    Attributes:
        pairs: each option's letter and value, in order.
        rest: what is no option.
        complaints: what getopt printed to stderr.
        moved: options came after what is none, so getopt moved them (an explicit `--` ends that).
        dashes: whether `--` stood in front of the rest.
    """

    pairs: list[tuple[str, str]] = field(default_factory=list)
    rest: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    moved: bool = False
    dashes: bool = False


def getopt(command: str, known: str, words: Sequence[str]) -> Options:
    """glibc's getopt: options anywhere, `-xVALUE`, clusters of letters; `--long` is the letters -, l, o, n, g."""
    found, words = Options(), list(words)
    while words:
        word = words.pop(0)
        if word == "--":
            found.dashes = True
            found.rest += words
            break
        if not word.startswith("-") or word == "-":
            found.rest.append(word)
            continue
        found.moved = found.moved or bool(found.rest)
        letters = word[1:]
        while letters:
            letter, letters = letters[0], letters[1:]
            place = -1 if letter == ":" else known.find(letter)
            if place < 0:
                found.complaints.append(f"{command}: invalid option -- '{letter}'")
            elif known[place + 1 : place + 2] != ":":
                found.pairs.append((letter, ""))
            elif letters or words:
                found.pairs.append((letter, letters or words.pop(0)))
                letters = ""
            else:
                found.complaints.append(f"{command}: option requires an argument -- '{letter}'")
    return found


def directive_words(line: str) -> list[str]:
    """The words of a `#PBS` line (cmds/qsub.c, make_argv): quotes of both kinds, backslash, no comments.

    Raises:
        ValueError: a quote is not closed.
    """
    words: list[str] = []
    word, begun, at = "", False, 0
    line = line.lstrip()
    while at < len(line):
        char = line[at]
        if char in "\"'":
            end = line.find(char, at + 1)
            if end < 0:
                raise ValueError("qsub: unmatched \0")
            word, begun, at = word + line[at + 1 : end], True, end + 1
        elif char == "\\":
            word, begun, at = word + line[at + 1 : at + 2], True, at + 2
        elif char.isspace():
            words.append(word)
            word, begun = "", False
            while line[at : at + 1].isspace():
                at += 1
        else:
            word, begun, at = word + char, True, at + 1
    return words + [word] * begun


def job_id(word: str) -> str | None:
    """`19[].pbs-srv` for 19[], 19[].pbs-srv and 19[]@pbs-srv; None when it is no id, or one of another server's."""
    match = JOB_ID.fullmatch(word)
    if match is None or any(name not in (None, SERVER) for name in match.groups()[1:]):
        return None
    return f"{match[1]}.{SERVER}"


def equals_pairs(text: str) -> list[tuple[str, str]]:
    """`a=1,b=2:3,4` as [("a", "1"), ("b", "2:3,4")] (Libcmds/parse_equal.c): a comma ends a value if a name follows.

    Raises:
        ValueError: this is not a list of names with values.
    """
    pairs: list[tuple[str, str]] = []
    while text := text.lstrip():
        match = re.match(r"([^\s=,][^\s=]*)\s*=\s*", text)
        if match is None:
            raise ValueError(text)
        value = text[match.end() :]
        if value[:1] in ("'", '"'):
            close = value.find(value[0], 1)
            if close < 0:
                raise ValueError(text)
            value = f"{value[1:close]} {value[close + 1 :]}"
        following = value.find("=")
        if following < 0:
            if value.rstrip().endswith(","):
                raise ValueError(text)
            return [*pairs, (match[1], value.rstrip())]
        comma = value.rfind(",", 0, following)
        if comma <= 0:
            raise ValueError(text)
        pairs.append((match[1], value[:comma].rstrip()))
        text = value[comma + 1 :]
    return pairs


def date_time(text: str, now: float) -> int:
    """[[[[CC]YY]MM]DD]hhmm[.SS] as seconds since 1970 (Libcmds/cvtdate.c).

    Raises:
        ValueError: it is none.
    """
    match = re.fullmatch(r"((?:\d\d){2,6})(?:\.([0-5]\d))?", text, re.ASCII)
    if match is None:
        raise ValueError(text)
    here = time.localtime(now)
    pairs = [int(match[1][at : at + 2]) for at in range(0, len(match[1]), 2)]
    minute, hour = pairs[-1], pairs[-2]
    day = pairs[-3] if len(pairs) > 2 else here.tm_mday
    month = pairs[-4] if len(pairs) > 3 else here.tm_mon
    year = here.tm_year
    if len(pairs) == 6:
        year = pairs[0] * 100 + pairs[1]
    elif len(pairs) == 5:
        year = pairs[0] + (1900 if pairs[0] > 68 else 2000)
    elif len(pairs) == 4:
        year += month < here.tm_mon
    elif len(pairs) == 3:
        month += day < here.tm_mday
    else:
        day += (hour, minute) <= (here.tm_hour, here.tm_min)
    if hour > 23 or minute > 59 or not 1 <= month <= 13 or not 1 <= day <= 32:
        raise ValueError(text)
    return int(time.mktime((year, month, day, hour, minute, int(match[2] or 0), 0, 0, -1)))

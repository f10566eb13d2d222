"""Parses command lines as OpenPBS's commands do: options (glibc's getopt), job ids, `#PBS` lines, dates."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

SERVER = "pbs-srv"
JOB_ID = re.compile(r"\s*(\d{1,12}(?:\[[\d:-]*\])?)(?:\.([\w.-]+))?(?:@([\w.:-]+))?", re.ASCII)


@dataclass
class Options:
    """The result of parsing a command line.

    Attributes:
        pairs: (letter, value) of each option, in order; the value is empty for an option without one.
        rest: the arguments that are no options.
        complaints: the error messages that getopt prints to stderr.
        moved: whether an option came after another argument, so that getopt moved it to the front.
        dashes: whether a `--` ended the options.
    """

    pairs: list[tuple[str, str]] = field(default_factory=list)
    rest: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    moved: bool = False
    dashes: bool = False


def getopt(command: str, known: str, words: Sequence[str]) -> Options:
    """Parses arguments as glibc's getopt does: options anywhere, `-xVALUE`, several letters behind one dash.

    `--long` counts as the options -, l, o, n and g.

    Args:
        command: the command's name, for error messages.
        known: the letters of the options; a colon follows a letter that needs a value.
        words: the arguments.
    """
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
    """Splits a `#PBS` line into arguments (cmds/qsub.c, make_argv), with both kinds of quotes and backslashes.

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
    """Returns the full id of a job: `19[].pbs-srv` for 19[], 19[].pbs-srv and 19[]@pbs-srv.

    None: the text is no job id, or the id of another server's job.
    """
    match = JOB_ID.fullmatch(word)
    if match is None or any(name not in (None, SERVER) for name in match.groups()[1:]):
        return None
    return f"{match[1]}.{SERVER}"


def equals_pairs(text: str) -> list[tuple[str, str]]:
    """Parses `a=1,b=2:3,4` into [("a", "1"), ("b", "2:3,4")]: a comma ends a value only if `NAME=` follows.

    The rules are those of Libcmds/parse_equal.c.

    Raises:
        ValueError: the text is not a list of names with values.
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
    """Returns a date [[[[CC]YY]MM]DD]hhmm[.SS] in seconds since the epoch (Libcmds/cvtdate.c).

    Args:
        text: the date. Missing parts are chosen so that it is the next such time.
        now: the present time, in seconds since the epoch.

    Raises:
        ValueError: the text is no such date.
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

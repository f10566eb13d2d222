"""The variables of a job: what `qsub -v` makes of its value on the way, and the list that qstat shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Variables = dict[str, str]


class CannotSend(Exception):
    """`qsub: cannot send environment with the job`."""


def chosen(text: str, environ: Mapping[str, str]) -> Variables:
    """The variables of `-v TEXT`: `NAME` takes its value from the environment, `NAME=value` goes through two copies.

    Each copy eats quotes and escapes what was in them (cmds/qsub.c: expand_varlist, then set_job_env), and the server
    takes one level of escapes away.

    Raises:
        CannotSend: a name is not set, or a quote is not closed.
    """
    first = ",".join(f"{name}={value}" for name, value in _expanded(text, environ))
    second: list[str] = []
    while first:
        name, equals, rest = first.partition("=")
        if not name or not equals:
            raise CannotSend
        value, first = _copy(rest, escape_all=False)
        second.append(f"{name}={value}")
    variables = (item.partition("=")[::2] for item in _unescaped_items(",".join(second)))
    return {name: value for name, value in variables if not name.startswith("PBS_O")}


def listed(variables: Mapping[str, str]) -> str:
    """The Variable_List as the server sends it (Libattr/attr_fn_arst.c, encode_arst_bs)."""
    return ",".join(f"{name}={escaped(value)}" for name, value in variables.items())


def escaped(text: str) -> str:
    """Backslashes before what separates or quotes."""
    return "".join(f"\\{char}" if char in "\"',\\" else char for char in text)


def _expanded(text: str, environ: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    for token in _comma_tokens(text):
        name, equals, value = token.partition("=")
        if equals:
            yield name, _copy(value, escape_all=False)[0]
        elif not name.startswith("PBS_O"):
            if name not in environ:
                raise CannotSend
            yield name, _copy(environ[name], escape_all=True)[0]


def _comma_tokens(text: str) -> Iterable[str]:
    """Split at commas that are neither quoted nor escaped (comma_token)."""
    start = at = 0
    quote = ""
    while at < len(text):
        char = text[at]
        if char in "\"'":
            quote = "" if char == quote else char
        elif char == "," and not quote:
            yield text[start:at]
            start = at + 1
        elif char == "\\" and at + 1 < len(text):
            at += 1
        at += 1
    if start < len(text):
        yield text[start:]


def _copy(text: str, *, escape_all: bool) -> tuple[str, str]:
    """One value and what follows its comma (copy_env_value); with escape_all the text is one value, commas and all."""
    made, quote, at = "", "", 0
    while at < len(text):
        char = text[at]
        if char in "\"'":
            if quote == char:
                quote = ""
            elif quote or escape_all:
                made += f"\\{char}"
            else:
                quote = char
        elif char == "\\":
            made += char if text[at + 1 : at + 2] == "," else char * 2
        elif char == ",":
            if quote or escape_all:
                made += "\\,"
            elif made.endswith("\\"):
                made += char
            else:
                break
        else:
            made += char
        at += 1
    if quote:
        raise CannotSend
    return made, text[at + 1 :]


def _unescaped_items(text: str) -> Iterable[str]:
    """Items between bare commas, one level of escapes taken away (Libattr/attr_fn_arst.c, parse_comma_string_bs)."""
    item, at = "", 0
    while at < len(text):
        char = text[at]
        if char == "\\" and at + 1 < len(text):
            at += 1
            item += text[at] if text[at] in "\"',\\" else f"\\{text[at]}"
        elif char == ",":
            yield item.strip()
            item = ""
        else:
            item += char
        at += 1
    if item:
        yield item.strip()

"""The variables of a job: the parsing and quoting of `qsub -v`, and the Variable_List that qstat shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

Variables = dict[str, str]


class CannotSend(Exception):
    """The value of `qsub -v` cannot be used: `qsub: cannot send environment with the job`."""


def chosen(text: str, environ: Mapping[str, str]) -> Variables:
    """Returns the variables that `qsub -v TEXT` passes to the job.

    `NAME` takes its value from the environment. `NAME=value` is copied twice (cmds/qsub.c: expand_varlist, then
    set_job_env). Each copy removes quotes and escapes the text in them; the server then removes one level of escapes.

    Raises:
        CannotSend: a variable is not set, or a quote is not closed.
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
    """Returns the Variable_List that the server sends for these variables (Libattr/attr_fn_arst.c, encode_arst_bs)."""
    return ",".join(f"{name}={escaped(value)}" for name, value in variables.items())


def escaped(text: str) -> str:
    """Returns text with a backslash before each quote, comma and backslash."""
    return "".join(f"\\{char}" if char in "\"',\\" else char for char in text)


def _expanded(text: str, environ: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    """Yields (name, value) of the variables in the value of -v, after the first copy (expand_varlist)."""
    for token in _comma_tokens(text):
        name, equals, value = token.partition("=")
        if equals:
            yield name, _copy(value, escape_all=False)[0]
        elif not name.startswith("PBS_O"):
            if name not in environ:
                raise CannotSend
            yield name, _copy(environ[name], escape_all=True)[0]


def _comma_tokens(text: str) -> Iterable[str]:
    """Splits text at commas that are neither quoted nor escaped (comma_token)."""
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
    """Copies a value, and returns it with the text after the comma that ends it (copy_env_value).

    Args:
        text: the text that starts with the value.
        escape_all: whether the whole text is the value, so that commas and quotes in it are escaped.

    Raises:
        CannotSend: a quote is not closed.
    """
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
    """Splits text at unescaped commas, and removes one level of escapes.

    The rules are those of Libattr/attr_fn_arst.c, parse_comma_string_bs.
    """
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

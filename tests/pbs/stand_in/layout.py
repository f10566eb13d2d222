"""The output formats of qstat (OpenPBS 23.06.06, cmds/qstat.c and lib/Libcmds/pbs_json.c)."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence

from tests.pbs.stand_in.jobs import Attribute
from tests.pbs.stand_in.resources import UNITS

TIMES = ("ctime", "etime", "stime", "obittime", "mtime", "qtime", "Execution_Time")
# Texts that strtod accepts as numbers.
NUMBER = re.compile(
    r"\s*[+-]?(inf(inity)?|nan(\(\w*\))?|0x([0-9a-f]+\.?[0-9a-f]*|\.[0-9a-f]+)(p[+-]?\d+)?|"
    r"(\d+\.?\d*|\.\d+)(e[+-]?\d+)?)\s*",
    re.IGNORECASE | re.ASCII,
)
Record = tuple[str, Sequence[Attribute]]


def shown(text: str) -> str:
    """Returns text with control characters as ^X, except newline and tab (Libutil/misc_utils.c, show_nonprint_chars).

    Chars are signed there, so every byte above 127 counts as a control character, and the result may not be UTF-8.
    """
    made = bytearray()
    for byte in text.encode(errors="surrogateescape"):
        if byte > 127 or (byte < 32 and byte not in b"\n\t"):
            made += b"^"
            byte = (byte + 64) % 256
        made.append(byte)
    return made.decode(errors="surrogateescape")


def values(attributes: Iterable[Attribute]) -> list[Attribute]:
    """Returns attributes with the times among them formatted as text."""
    return [
        (name, resource, time.ctime(int(value)) if name in TIMES else value) for name, resource, value in attributes
    ]


# -- -f


def full(title: str, record: Record) -> str:
    """Returns a record in the format of -f: `Job Id: ...`, and an indented line for each attribute, wrapped at 78."""
    name, attributes = record
    lines = [_wrapped(key if part is None else f"{key}.{part}", value) for key, part, value in values(attributes)]
    return f"{title}: {name}\n" + "".join(f"{line}\n" for line in lines) + "\n"


def _wrapped(name: str, value: str) -> str:
    """Returns the line of an attribute, wrapped after commas, or anywhere if a piece is too long (prt_attr)."""
    made, at = f"    {name} = ", len(name) + 7
    pieces = [piece for piece in value.split(",") if piece]
    for number, piece in enumerate(pieces):
        if len(piece) + at < 78:
            made, at = made + shown(piece), at + len(piece)
        else:
            if number:
                made, at = f"{made}\n\t", 9
            for char in piece:
                made, at = made + shown(char), at + 1
                if at > 78:
                    made, at = f"{made}\n\t", 8
        if number + 1 < len(pieces):
            made += ","
    return made


# -- -F json


def json_document(server: str, version: str, section: str, records: Sequence[Record], *, asked: bool) -> str:
    """Returns the output of `-F json`. It is not always JSON: values that look like numbers have no quotes.

    Args:
        server: the server's name.
        version: the version of PBS.
        section: the key of the records: Jobs, Queue or Server.
        records: the records.
        asked: whether the server answered with records; if not, the section and the final newline are missing.
    """
    lines = [f'    "timestamp":{int(time.time())}', f'    "pbs_version":"{version}"', f'    "pbs_server":"{server}"']
    if not asked:
        return "{\n" + ",\n".join(lines) + "\n}"
    inner = [f'        "{name}":{_object(values(attributes), 12)}' for name, attributes in records]
    lines.append(f'    "{section}":{{\n' + ",\n".join(inner) + "\n    }")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _object(attributes: Sequence[Attribute], indent: int) -> str:
    items: list[str] = []
    at = 0
    while at < len(attributes):
        name, resource, value = attributes[at]
        if name == "Variable_List":
            items.append(f'"{name}":{_object(_variables(value), indent + 4)}')
        elif resource is None:
            items.append(f'"{name}":{json_value(value)}')
        else:
            end = at
            while end < len(attributes) and attributes[end][0] == name:
                end += 1
            group = [(part or "", None, its) for _, part, its in attributes[at:end]]
            items.append(f'"{name}":{_object(group, indent + 4)}')
            at = end - 1
        at += 1
    inner = ",\n".join(" " * indent + item for item in items)
    return f"{{\n{inner}\n{' ' * (indent - 4)}}}"


def _variables(text: str) -> list[Attribute]:
    """Splits a Variable_List at commas without a backslash, and removes the backslashes before the other commas."""
    pairs = (item.partition("=")[::2] for item in re.split(r"(?<!\\),", text))
    return [(name.replace("\\,", ","), None, value.replace("\\,", ",")) for name, value in pairs]


def json_value(text: str) -> str:
    """Returns a value, unquoted if it looks like a number. Numbers from 1 on with a leading 0 are quoted, too."""
    if text.strip() and NUMBER.fullmatch(text) and (text[0] != "0" or not _at_least_one(text)):
        return text
    return f'"{shown(_escaped(text))}"'


def _at_least_one(text: str) -> bool:
    try:
        return not float(text) < 1
    except ValueError:  # hexadecimal
        return not float.fromhex(text.strip()) < 1


def _escaped(text: str) -> str:
    made, at = "", 0
    plain = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    while at < len(text):
        char = text[at]
        if char == '"':
            made += char if at == 0 or text[at - 1] == "\\" else f"\\{char}"
        elif char == "\\" and text[at + 1 : at + 2] in ("'", ","):
            at += 1
            made += text[at]
        elif char == "\\":
            made += text[at : at + 2]
            at += 1
        else:
            made += plain.get(char, char)
        at += 1
    return made


# -- tables


def cut(text: str, width: int) -> str:
    """Cuts text that is longer than `width` characters, and marks the cut by a star at the end."""
    return text if len(text) <= width else text[: width - 1] + "*"


def table(records: Sequence[Record], *, wide: bool, head: bool) -> str:
    """Returns the table of `qstat` without options; `wide` is -w, `head` whether to print the headings."""
    widths = (30, 15, 15, 8, 1, 15) if wide else (17, 16, 16, 8, 1, 16)
    made = ""
    if head and wide:
        made = "Job id                         Name            User             Time Use S Queue\n"
        made += "-----------------------------  --------------- ---------------  -------- - ---------------\n"
    elif head:
        made = "Job id            Name             User              Time Use S Queue\n"
        made += "----------------  ---------------- ----------------  -------- - -----\n"
    for name, attributes in records:
        get = getter(attributes)
        job_name = get("Job_Name")
        columns = (
            cut(name, widths[0]), job_name if len(job_name) < widths[1] else f"{job_name[: widths[1] - 1]}*",
            cut(get("Job_Owner").partition("@")[0], widths[2]), get("resources_used.cput") or "0", get("job_state"),
            cut(get("queue"), widths[5]),
        )  # fmt: skip
        a, b, c, d, e, f = (f"{text:{'>' if at in (3, 4) else '<'}{widths[at]}}" for at, text in enumerate(columns))
        made += f"{a} {b} {c}  {d} {e} {f}\n"
    return made


def alternate(
    server: str, records: Sequence[Record], *, wide: bool, head: bool, comments: bool, nodes: bool, one_line: bool
) -> str:
    """Returns the table of `qstat -u`, `-a`, `-s` and similar options.

    Args:
        server: the server's name.
        records: the jobs.
        wide: whether columns are wide (-w).
        head: whether to print the headings.
        comments: whether to print each job's comment (-s).
        nodes: whether to print each job's nodes (-n).
        one_line: whether nodes and comments follow in the same line (-1).
    """
    widths = (30, 15, 15, 15, 8, 4, 5) if wide else (15, 8, 8, 10, 6, 3, 3)
    made = ""
    if head:
        titles = ("Job ID", "Username", "Queue", "Jobname", "SessID", "NDS", "TSK")
        made = f"\n{server}: \n" + " " * (sum(widths) + 7) + "Req'd  Req'd   Elap\n"
        made += (
            " ".join(f"{title:{width}}" for title, width in zip(titles, widths, strict=True)) + " Memory Time  S Time\n"
        )
        made += " ".join("-" * width for width in widths) + " ------ ----- - -----\n"
    for name, attributes in records:
        get = getter(attributes, " -- ")
        tasks = get("Resource_List.ncpus")
        cpu = "Resource_List.cput" in {f"{key}.{part}" for key, part, _ in attributes}
        memory = get("Resource_List.mem")
        texts = (
            name, get("Job_Owner").partition("@")[0], get("queue"), get("Job_Name"), get("session_id"),
            get("Resource_List.nodect"), " -- " if tasks == "0" else tasks,
        )  # fmt: skip
        columns = [
            f"{cut(text, width)[:width]:{'<' if at < 4 else '>'}{width}}"
            for at, (text, width) in enumerate(zip(texts, widths, strict=True))
        ]
        which = "cput" if cpu else "walltime"
        made += " ".join(columns) + f" {_size(memory) if memory != ' -- ' else memory:>6.6} "
        made += f"{get(f'Resource_List.{which}'):>5.5} {get('job_state')} {get(f'resources_used.{which}'):>5.5}"
        made += " " if one_line else "\n"
        if nodes:
            made += _nodes(get("exec_host"), one_line=one_line)
        if comments:
            made += f"   {shown(_comment(get('comment'), wide=wide))}\n"
    return made


def getter(attributes: Iterable[Attribute], fallback: str = "") -> Callable[[str], str]:
    """Returns a function that looks up an attribute by `name` or `name.resource`; `fallback` is for missing ones."""
    known = {key if part is None else f"{key}.{part}": value for key, part, value in attributes}
    return lambda name: known.get(name, fallback)


def _comment(text: str, *, wide: bool) -> str:
    most = 114 if wide else 74
    return text if len(text) <= most else f"{text[: most - 4]}..."


def _size(text: str) -> str:
    """Returns a size in a unit in which it has at most four digits, rounded up (cnv_size)."""
    number, unit = re.fullmatch(r"(\d+)([kmgtp]?)[bw]?", text).groups()  # type: ignore[union-attr]
    amount, place = int(number), list(UNITS).index(unit)
    while amount > 9999:
        amount, place = (amount + 1023) >> 10, place + 1
    return f"{amount}{(' ', 'k', 'm', 'g', 't', 'p')[place]}b"[:5]


def _nodes(text: str, *, one_line: bool) -> str:
    """Returns exec_host in lines of at most 77 characters."""
    lines, line = [], ""
    for part in text.split("+"):
        if line and len(line) + len(part) >= 77:
            lines.append(line)
            line = ""
        line += f"{part}+"
    lines.append(line[:-1])
    return "".join(lines) + "\n" if one_line else "".join(f"   {one}\n" for one in lines)


# -- queues and the server


def queue_table(records: Sequence[Record], *, head: bool) -> str:
    made = ""
    if head:
        made = "Queue              Max   Tot Ena Str   Que   Run   Hld   Wat   Trn   Ext Type\n"
        made += "---------------- ----- ----- --- --- ----- ----- ----- ----- ----- ----- ----\n"
    for name, attributes in records:
        get = getter(attributes)
        switches = ("yes" if get(key) == "True" else "no" for key in ("enabled", "started"))
        made += f"{name:16} {0:>5} {get('total_jobs'):>5} " + " ".join(f"{one:>3}" for one in switches)
        made += f" {_counts(get('state_count'))} {get('queue_type')[:3]}*\n"
    return made


def server_table(records: Sequence[Record], *, head: bool) -> str:
    made = ""
    if head:
        made = "Server             Max   Tot   Que   Run   Hld   Wat   Trn   Ext Status\n"
        made += "---------------- ----- ----- ----- ----- ----- ----- ----- ----- -----------\n"
    for name, attributes in records:
        get = getter(attributes)
        counts = _counts(get("state_count"))
        made += f"{name:16} {0:>5} {get('total_jobs'):>5} {counts} {get('server_state'):10}\n"
    return made


def _counts(text: str) -> str:
    found = dict(part.split(":") for part in text.split())
    return " ".join(f"{found[name]:>5}" for name in ("Queued", "Running", "Held", "Waiting", "Transit", "Exiting"))

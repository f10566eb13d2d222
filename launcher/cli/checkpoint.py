"""`checkpoint`: lists, inspects and verifies checkpoints, and extracts plain files from them."""

from __future__ import annotations

import os
import time
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from launcher.checkpoint import format as checkpoints
from launcher.checkpoint.folder import best_of, newest_first
from launcher.checkpoint.format import Manifest
from launcher.cli.output import json_text, print_columns, terminal_width
from launcher.errors import FAILED, ConfigError, near
from launcher.formatting import brief, cut, flat, long_size, plural
from launcher.plan.plan import JobPlan
from launcher.runs import user_checkpoints
from launcher.runs.directory import require_private
from launcher.runs.lookup import find

FILES = 20  # of a program, the newest, are listed
# What `checkpoint list --json` prints of a checkpoint or file, as far as nothing is known
ROW: Mapping[str, Any] = {
    "step": None, "path": "", "age": None, "bytes": None, "world_size": None, "attempt": None, "metrics": {},
    "kept_as": [], "sizes": "unknown", "aside": False, "problems": [],
}  # fmt: skip


def run(arguments: Namespace) -> int:
    action = arguments.action
    if action == "list" and arguments.step is not None:
        raise ConfigError("checkpoint list shows all steps; checkpoint inspect shows one")
    place = _place(arguments.name, arguments.runs_dir, arguments.step)
    if action == "list":
        return _list(place, arguments.as_json)
    if action == "verify":
        return _verify(place)
    path = _chosen(place)[0]
    chosen = place.step is not None or place.own is not None
    newest = None if chosen else next(iter(checkpoints.sound(place.folder).items()), None)
    path, manifest = newest or (path, checkpoints.read(path))
    if action == "inspect":
        return _inspect(path, manifest, arguments.as_json)
    return _extract(place, path, manifest, arguments)


@dataclass(frozen=True)
class NamedCheckpoints:
    name: str  # id of the run, or name of the folder
    folder: Path
    step: int | None  # None: no step was named
    plan: JobPlan | None = None  # None: a folder was named
    own: Path | None = None  # the named checkpoint's folder, if it is not named like one: quarantined, or a copy


def _place(name: str, runs_dir: Path | None, step: str | None) -> NamedCheckpoints:
    wanted = None
    if step is not None:
        wanted = int(step) if step.isdecimal() else checkpoints.step_of(step)
        if wanted is None:
            raise ConfigError(f"{step!r} is not a step: give its number, as checkpoint list shows it")
    named = os.path.expanduser(name)
    if "/" in name and (path := Path(named).resolve()).is_dir() and not (path / "record.json").exists():
        own = checkpoints.step_of(path.name)
        if own is None and not (path / checkpoints.MANIFEST).exists():
            return NamedCheckpoints(path.name, path, wanted)
        if wanted not in (None, own):
            raise ConfigError(f"{path} is one checkpoint: leave out {step}, or name the folder {path.parent}")
        return NamedCheckpoints(path.parent.name, path.parent, own, own=path if own is None else None)
    found = find(name, runs_dir)
    plan = found.plan()
    return NamedCheckpoints(found.id, Path(plan.checkpoint.dir), wanted, plan)


def _chosen(place: NamedCheckpoints) -> list[Path]:
    if place.own is not None:
        return [place.own]
    found = checkpoints.candidates(place.folder)
    chosen = [path for path in found if place.step in (None, checkpoints.step_of(path.name))]
    if not found:
        raise checkpoints.CheckpointError(f"there are no checkpoints in {place.folder}")
    if not chosen:
        steps = [str(checkpoints.step_of(path.name)) for path in found]
        none = f"no checkpoint of step {place.step}.{near(str(place.step), steps)}"
        raise checkpoints.CheckpointError(f"{none} The steps are {', '.join(steps[:10])}")
    return chosen


def _list(place: NamedCheckpoints, as_json: bool) -> int:
    rows = list(_rows(place))
    files, more = _files(place.plan) if place.plan is not None and place.plan.own_code else ([], "")
    if as_json:
        print(json_text([*rows, *files]))
        return 0
    if not rows and not files:
        print(f"no checkpoints in {place.folder}")
    if rows:
        _print_rows(rows)
    if files:
        of_files = ((row["path"], brief(row["age"]), long_size(row["bytes"])) for row in files)
        print_columns([("FILE", "AGE", "SIZE"), *of_files])
    if more:
        print(more)
    return 0


def _print_rows(rows: list[dict[str, Any]]) -> None:
    lines = [
        (
            str(row["step"]), brief(row["age"]), long_size(row["bytes"]), str(row["world_size"] or "-"),
            ", ".join(row["kept_as"]) or "-", row["sizes"],
            " ".join(f"{name}={value:.4g}" for name, value in row["metrics"].items()) or "-",
        )
        for row in rows
    ]  # fmt: skip
    print_columns([("STEP", "AGE", "SIZE", "RANKS", "KEPT AS", "SIZES", "METRICS"), *lines])
    for row in rows:
        for problem in row["problems"]:
            print(f"step {row['step']}: {problem}")
        if row["aside"]:
            print(f"step {row['step']}: kept in {row['path']}, and not used; remove it when you do not need it")


def _files(plan: JobPlan) -> tuple[list[dict[str, Any]], str]:
    # Finds the files that the user's own code has saved (see `user_checkpoints`), as rows like those of checkpoints
    give_up, count, done = time.monotonic() + user_checkpoints.SCAN_TIMEOUT, 0, True
    newest: dict[str, os.stat_result] = {}
    try:
        for path, status in user_checkpoints.files(plan):
            name = os.path.relpath(path, plan.checkpoint.dir).partition("/")[0]
            if (name.startswith(".") and name != "..") or checkpoints.step_of(name) is not None:
                continue  # of a checkpoint
            count, newest[path] = count + (path not in newest), status
            if len(newest) > FILES:
                del newest[min(newest, key=lambda each: newest[each].st_mtime_ns)]
            if time.monotonic() > give_up:
                done = False
                break
    except OSError as error:
        raise checkpoints.CannotRead(f"the files of the program cannot be listed now: {error}") from None
    rows = [
        {**ROW, "path": path, "age": time.time() - status.st_mtime, "bytes": status.st_size}
        for path, status in sorted(newest.items(), key=lambda item: item[1].st_mtime_ns, reverse=True)
    ]
    if not done:
        return rows, f"not all files were looked at in {user_checkpoints.SCAN_TIMEOUT:.0f} s: there may be newer ones"
    return rows, f"and {plural(count - FILES, 'older file')}" if count > FILES else ""


def _rows(place: NamedCheckpoints) -> Iterator[dict[str, Any]]:
    rows: list[tuple[dict[str, Any], Manifest | None]] = []
    aside = checkpoints.quarantined(place.folder) if place.folder.exists() else {}
    for path in [*checkpoints.candidates(place.folder), *aside]:
        manifest = None
        try:
            manifest = checkpoints.read(path)
            problems = checkpoints.wrong_sizes(path, manifest)
            sizes = "wrong" if problems else "right"
        except checkpoints.CheckpointError as error:
            problems, sizes = [str(error)], "unknown" if isinstance(error, checkpoints.CannotRead) else "wrong"
        if path in aside:
            problems = checkpoints.quarantine_reasons(path) or problems
        elif problems and checkpoints.was_removed(path):
            continue
        step = aside.get(path, checkpoints.step_of(path.name))
        row = {**ROW, "step": step, "path": str(path), "sizes": sizes, "aside": path in aside, "problems": problems}
        if manifest is not None:
            row |= {"age": time.time() - manifest.time, "bytes": manifest.size, "world_size": manifest.world_size}
            row |= {"attempt": manifest.attempt, "metrics": manifest.metrics}
        rows.append((row, manifest))
    good = newest_first(each for row, each in rows if each is not None and not (row["aside"] or row["problems"]))
    keys = place.plan.checkpoint if place.plan else None
    newest = {manifest.step for manifest in good[: keys.keep if keys else 1]}
    best = best_of(good, keys.best, keys.best_is) if keys else None
    for row, _ in rows:
        kept = {
            "newest": row["step"] in newest and not row["problems"],
            "best": best is not None and best.step == row["step"] and not row["aside"],
            "aside": row["aside"],
        }
        yield {**row, "kept_as": [name for name, holds in kept.items() if holds]}


def _inspect(path: Path, manifest: Manifest, as_json: bool) -> int:
    from launcher.checkpoint import loading

    require_private(path.parent)
    require_private(path)
    contents = loading.read_contents(path, manifest)
    entries, rest = loading.entries(contents), contents.values
    if as_json:
        print(json_text({**asdict(manifest), "path": str(path), "tensors": entries, "values": flat(rest)}))
        return 0
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(manifest.time))
    print(f"step {manifest.step}, saved {when} by {plural(manifest.world_size, 'rank')} in attempt {manifest.attempt}")
    print(f"in {path}")
    size = f"{long_size(manifest.size)} in {plural(len(manifest.files), 'file')}"
    print(f"{size}; launcher {manifest.launcher}, torch {manifest.torch}")
    for title, table in (
        ("metrics", manifest.metrics), ("identity", manifest.identity), ("extra", manifest.extra), ("values", rest)
    ):  # fmt: skip
        if found := flat(table):
            print(f"\n{title}")
        for name, value in found.items():
            print(cut(f"  {name}: {value}", terminal_width()))
    print()
    rows = [
        (entry["name"], entry["dtype"], "x".join(map(str, entry["shape"])) or "scalar", str(len(entry["shards"])))
        for entry in entries
    ]
    print_columns([("TENSOR", "TYPE", "SHAPE", "SHARDS"), *rows])
    return 0


def _verify(place: NamedCheckpoints) -> int:
    from launcher.checkpoint import loading

    code = 0
    for path in _chosen(place):
        try:
            problems = loading.verify(path)
            verdict = "damaged" if problems else "sound"
        except checkpoints.Misfit as error:
            verdict, problems = "damaged", [str(error)]
        except checkpoints.CannotRead as error:
            verdict, problems = "cannot be read now", [str(error)]
        if problems and place.own is None and checkpoints.was_removed(path):
            verdict, problems = "removed meanwhile", []
        print(f"{path.name if place.own else f'step {checkpoints.step_of(path.name)}'}: {verdict}")
        for problem in problems:
            print(f"  {problem}")
            code = FAILED
    return code


def _extract(place: NamedCheckpoints, path: Path, manifest: Manifest, arguments: Namespace) -> int:
    from launcher.checkpoint import loading

    plain = arguments.as_format == "safetensors"
    output = arguments.output or Path(f"{place.name}-{path.name}.{'safetensors' if plain else 'pt'}")
    if output.exists():
        raise ConfigError(f"{output} exists already: choose another file with -o")
    if not output.parent.is_dir():
        raise ConfigError(f"-o {output}: there is no folder {output.parent}")
    require_private(path.parent)
    require_private(path)
    state = loading.whole(path, manifest, arguments.keys)
    if plain:
        count = loading.save_safetensors(output, state, {"format": "pt", "step": str(manifest.step)})
        told = f"{plural(count, 'tensor')}, by their dotted names"
    else:
        loading.save_plain(output, state)
        told = f"read it with torch.load({str(output)!r}, weights_only=True)"
    print(f"{output}: {long_size(output.stat().st_size)}; {told}")
    return 0

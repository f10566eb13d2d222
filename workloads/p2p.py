"""Measures transfers between ranks in several patterns, and verifies the received data: the workload `p2p`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from launcher import progress, run_dir
from launcher.worker import devices
from launcher.worker.node_exclusion import how_to_exclude
from workloads import exchanges, keys, matrix, matrix_text, results, roof
from workloads.ranks import WorkloadError, introduce, say
from workloads.transfers import TABLE, Transfers

if TYPE_CHECKING:
    from launcher import Env
    from launcher.config.schema import P2P

FAULTS = 10  # most wrong results that an error lists; the table has all of them


def top_of(pattern: str, pair: tuple[int, int], measured: roof.Roof, env: Env) -> float | None:
    """Returns the hardware's speed with which a pattern is compared, in bytes/s; None: it is not known.

    | pattern | between two nodes, or gloo on one node | nccl or xccl, within a node | else |
    |---|---|---|---|
    | pingpong, bandwidth | one TCP stream | copy in memory | not known |
    | bidirectional | twice one TCP stream | twice a copy in memory | not known |
    | any other | not known | not known | not known |
    """
    if pattern not in exchanges.PATTERNS:
        return None
    within = env.node_of(pair[0]) == env.node_of(pair[1])
    on_stream = env.backend in devices.ON_STREAM
    if within and on_stream:
        top = measured.memory
    elif not within or env.nnodes == 1:
        top = measured.socket
    else:
        top = None
    return None if top is None else top * (2 if pattern == "bidirectional" else 1)


def main(config: P2P, env: Env) -> dict[str, float | int | str]:
    """Measures and verifies the chosen patterns, and returns the metrics of the run. All ranks must call it.

    The metrics are, for each pattern, `PATTERN/us` (median time of the smallest size in microseconds; for pingpong half
    the round trip) and `PATTERN/mb_per_s` (the best, in 10^6 bytes/s); `matrix/slow` (number of slow pairs),
    `matrix/exclude` (suspects as a Slurm node list, if there are any), `patterns` (number of them), and `checked`
    (number of elements compared).

    Raises WorkloadError: a received value was wrong, a speed is lower than the baseline allows, or pairs are slow and
        `fail_on_slow` is set (these are raised after measuring everything); there is only one rank, the first size does
        not fit into memory, or the config is not valid.
    """
    if env.world_size < 2:
        raise WorkloadError("p2p needs at least 2 ranks: set nodes=2 or procs_per_node=2")
    try:
        keys.check_patterns(vars(config), env.node_ranks)
        chosen = keys.chosen_patterns(vars(config), env.node_ranks)
    except ValueError as error:
        raise WorkloadError(str(error)) from error
    introduce(env)
    baseline = results.read_baseline(config.baseline, env)
    measured = roof.measure(env)
    this = Transfers(config, env)
    folder = run_dir() if env.rank == 0 else None
    written = results.Results("p2p", results.conditions(config, env), vars(measured), folder)
    write = say if env.rank == 0 else _silent
    for line in measured.lines():
        write(line)
    ordered = [pattern for pattern in chosen if pattern != keys.MATRIX]
    if ordered:
        write(TABLE.head())
    faults: list[str] = []
    done, total = 0, len(ordered) * len(this.counts()) + (keys.MATRIX in chosen)
    for pattern in ordered:
        top = top_of(pattern, this.pair, measured, env)
        for count in this.counts():
            if missing := this.missing(pattern, count):
                _stop(f"{pattern} ends before {missing}", written, write)
                break
            found = this.measure(pattern, count)
            write(found.line(top))
            written.add(found.row)
            faults += found.faults
            done += 1
            if env.rank == 0:
                progress(done, total, pattern=pattern, size=found.row["size"])
    links = None
    if keys.MATRIX in chosen:
        if missing := this.missing(keys.MATRIX, max(this.counts())):
            _stop(f"matrix is left out at {missing}", written, write)
        else:
            links = matrix.measure(config, this.sizes, baseline.matrix if baseline else None, env)
            if env.rank == 0:
                written.matrix = links.as_dict()
                if folder:
                    links.write(folder)
                for line in matrix_text.lines(links, config, how_to_exclude):
                    say(line)
            faults += matrix.faults(links, this.hosts)
            if env.rank == 0:
                progress(total, total, pattern=keys.MATRIX)
    written.complete = not written.reason
    written.write()
    _judge(faults, written, links, baseline, config, env)
    return _metrics(written.rows, links)


def _silent(line: str) -> None:
    """Prints nothing: replaces `say` on all ranks but rank 0."""


def _stop(reason: str, written: results.Results, write: Callable[[str], object]) -> None:
    if not written.rows:
        raise WorkloadError(f"{reason}: use smaller workload.sizes")
    written.reason = "; ".join(filter(None, [written.reason, reason]))
    write(reason)


def _judge(
    faults: Sequence[str],
    written: results.Results,
    links: matrix.Matrix | None,
    baseline: results.Results | None,
    config: P2P,
    env: Env,
) -> None:
    # All ranks must call it
    if faults:
        more = [f"and {len(faults) - FAULTS} more"] if len(faults) > FAULTS else []
        raise WorkloadError("; ".join([*faults[:FAULTS], *more]))
    slower = []
    if baseline is not None:
        write = say if env.rank == 0 else _silent
        if written.rows:
            slower.append(results.against(written.rows, baseline, config.tolerance, write, str(config.baseline)))
        if since := [slow for slow in (links.slow if links else ()) if slow.against == "baseline"]:
            slower.append(
                f"{len(since)} links are slower than baseline={config.baseline} allows (tolerance={config.tolerance:g})"
            )
    if config.fail_on_slow and links and links.slow:
        worst = matrix_text.pair_in_words(links.slow[0].pair, links)
        slower.append(f"workload.fail_on_slow: {len(links.slow)} slow links, {worst} the worst")
    if reasons := [each for each in slower if each]:
        raise WorkloadError("; ".join(reasons))


def _metrics(rows: Sequence[results.Row], links: matrix.Matrix | None) -> dict[str, float | int | str]:
    found: dict[str, float | int | str] = {}
    for row in sorted(rows, key=lambda row: int(row["size"])):
        pattern = row["pattern"]
        found.setdefault(f"{pattern}/us", round((row["latency"] or row["seconds"]["median"]) * 1e6, 1))
        best = max(float(found.get(f"{pattern}/mb_per_s", 0)), row["bandwidth"] / 1e6)
        found[f"{pattern}/mb_per_s"] = round(best, 1)
    checked = sum(row["checked"] for row in rows) + (links.checked if links else 0)
    if links:
        found["matrix/slow"] = len({slow.pair for slow in links.slow})
        if links.exclude:
            found["matrix/exclude"] = links.exclude
    kinds = len({row["pattern"] for row in rows}) + bool(links)
    return {**found, "patterns": kinds, "checked": checked}

"""From a laptop to a cluster behind ssh: code, submission, and the commands about its runs."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.cli import ssh_forward, ssh_serve
from launcher.errors import ConfigError
from launcher.runs.lookup import all_runs
from tests.launch import until
from tests.markers import ci
from tests.remote.site import Laptop, LoginNode
from tests.terminal import Terminal

pytestmark = pytest.mark.usefixtures("against")
SLOW = "import time\nprint('begun', flush=True)\nfor _ in range(600):\n    time.sleep(0.1)\n"


def run_id(printed: str) -> str:
    found = re.search(r"^(?:run|sweep) +([\w-]+)", printed, re.MULTILINE)
    assert found, printed
    return found[1]


def rows(laptop: Laptop, *options: str) -> dict[str, dict[str, object]]:
    done = laptop("status", "--json", *options)
    assert done.returncode == 0, done.stderr
    return {row["run"]: row for row in json.loads(done.stdout)}


def test_a_script_runs_there_and_every_command_finds_its_run_from_here(laptop: Laptop) -> None:
    done = laptop("run", "train.py", "cluster=hpc", "wait=true", "--", "--lr", "0.1", "a 'b' \"c\" $d `e` !f")
    assert done.returncode == 0, done.stderr
    assert "[0] rank 0 --lr 0.1 a 'b' \"c\" $d `e` !f" in done.stdout
    run = run_id(done.stdout)
    assert rows(laptop)[run] | {"state": "done", "cluster": "hpc"} == rows(laptop)[run]
    table = laptop("status").stdout
    assert re.search(rf"^RUN +STATE +CLUSTER.*\n(.*\n)*{run} +done +hpc", table)
    for name in (run, run[:-1], "latest", f"hpc:{run}", "hpc:latest"):
        assert "[0] rank 0" in laptop("logs", name).stdout, name
    assert "it is done" in laptop("why", run).stdout
    assert "is done" in laptop("post-mortem", run).stdout
    assert json.loads(laptop("why", run, "--json").stdout)["run"] == run
    wrote = laptop("report", run)
    page = Path(re.search(r"wrote (\S+\.html)", wrote.stdout)[1])  # type: ignore[index]
    assert page.read_text().rstrip().endswith("</html>")
    assert laptop("report", run, "-o", "own name.html").returncode == 0
    assert (laptop.code / "own name.html").read_text().rstrip().endswith("</html>")
    missing = laptop("logs", "hpc:nothing")
    assert (missing.returncode, "no run 'nothing'" in missing.stderr) == (2, True)


def test_the_exit_code_of_a_run_that_is_waited_for_is_its_own(laptop: Laptop) -> None:
    (laptop.code / "train.py").write_text("import sys\nsys.exit(3)\n")
    done = laptop("run", "train.py", "cluster=hpc", "wait=true")
    assert done.returncode in (1, 93), done.stdout
    assert "failed" in done.stdout + done.stderr


def test_a_run_is_followed_cancelled_and_resumed(laptop: Laptop) -> None:
    (laptop.code / "train.py").write_text(SLOW)
    run = run_id(laptop("run", "train.py", "cluster=hpc").stdout)
    until(lambda: "begun" in laptop("logs", run).stdout, "output")
    follows = subprocess.Popen(
        [sys.executable, "-m", "launcher", "logs", run, "-f"],
        env=laptop.environ,
        cwd=laptop.code,
        stdout=subprocess.PIPE,
    )
    assert follows.stdout is not None and b"begun" in follows.stdout.readline()
    follows.send_signal(signal.SIGINT)
    assert follows.wait(30) == 130
    stacks = laptop("attach", run, "--stack")
    assert "train.py" in stacks.stdout, stacks.stderr
    assert laptop("cancel", run).returncode == 0
    until(lambda: rows(laptop)[run]["state"] == "cancelled", "the end")
    (laptop.code / "train.py").write_text("print('another')\n")
    assert laptop("resume", run, "--new-snapshot", "wait=false").returncode == 0
    until(lambda: rows(laptop)[run]["state"] == "done", "the second attempt")
    assert "another" in laptop("logs", run, "--attempt", "1").stdout


def test_nothing_that_follows_a_run_stays_there_when_the_connection_ends(laptop: Laptop, node: LoginNode) -> None:
    (laptop.code / "train.py").write_text(SLOW)
    run = run_id(laptop("run", "train.py", "cluster=hpc").stdout)
    until(lambda: "begun" in laptop("logs", run).stdout, "output")
    follows = subprocess.Popen(
        [sys.executable, "-m", "launcher", "wait", run], env=laptop.environ, cwd=laptop.code, stdout=subprocess.PIPE
    )
    assert follows.stdout is not None and follows.stdout.readline()
    follows.kill()
    follows.wait()
    laptop.close()
    mine = f"{node.folder}/runs"

    def there() -> list[str]:
        found = subprocess.run(
            ["pgrep", "-f", "launcher.cli.ssh_serve"], capture_output=True, text=True, check=False
        ).stdout
        return [pid for pid in found.split() if mine in _environ(pid)]

    until(lambda: not there(), "the end of the command there")
    assert laptop("cancel", run).returncode == 0


def _environ(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/environ").read_text()
    except OSError:
        return ""


def test_a_sweep_is_submitted_and_shown(laptop: Laptop) -> None:
    done = laptop("-m", "run", "train.py", "cluster=hpc", "workload.flags.lr=0.1,0.2", "wait=true")
    assert done.returncode == 0, done.stdout + done.stderr
    sweep = run_id(done.stdout)
    assert "2/2 done" in laptop("sweep", "status", sweep).stdout
    assert "--lr 0.2" in laptop("logs", f"{sweep}/1").stdout
    assert rows(laptop)[sweep]["state"] == "2/2 done"
    assert laptop("sweep", "results", "latest").returncode == 0


# -- the code


def contents(node: LoginNode) -> list[Path]:
    return sorted(path for path in (node.cache / "code").iterdir())


def test_only_files_that_the_other_side_lacks_are_sent(laptop: Laptop, node: LoginNode) -> None:
    (laptop.code / "large.bin").write_bytes(os.urandom(2 << 20))
    first = laptop("run", "train.py", "cluster=hpc", "dry_run=true")
    assert "sending" in first.stderr and first.returncode == 0
    before = contents(node)
    assert laptop("run", "train.py", "cluster=hpc", "dry_run=true").stderr.count("sending") == 0
    assert contents(node) == before
    (laptop.code / "train.py").write_text("print('changed')\n")
    again = laptop("run", "train.py", "cluster=hpc", "dry_run=true")
    assert (again.returncode, "sending" in again.stderr) == (0, False)
    assert len(contents(node)) == len(before) + 1


def test_what_git_has_goes_there_and_what_it_ignores_does_not(laptop: Laptop, node: LoginNode) -> None:
    code = laptop.code
    (code / "sub dir/deep").mkdir(parents=True)
    (code / "sub dir/deep/näme 'x'.py").write_text("print('deep')\n")
    (code / "tool.sh").write_text("#!/bin/sh\necho tool\n")
    (code / "tool.sh").chmod(0o755)
    (code / "link").symlink_to("tool.sh")
    (code / "outside").symlink_to("/etc/hostname")
    (code / ".gitignore").write_text("data.bin\n")
    (code / "data.bin").write_text("data")
    done = laptop("run", "sub dir/deep/näme 'x'.py", "cluster=hpc", "wait=true")
    assert done.returncode == 0, done.stderr
    assert "[0] deep" in done.stdout
    assert "outside is not sent: it is a link out of" in done.stderr
    copied = next(run.path for run in all_runs(node.runs_dir) if run.id == run_id(done.stdout)) / "code"
    assert sorted(str(path.relative_to(copied)) for path in copied.rglob("*") if "__pycache__" not in path.parts) == [
        ".gitignore", ".launcher-code.json", "link", "sub dir", "sub dir/deep", "sub dir/deep/näme 'x'.py", "tool.sh",
        "train.py",
    ]  # fmt: skip
    assert os.readlink(copied / "link") == "tool.sh"
    assert os.access(copied / "tool.sh", os.X_OK)
    refused = laptop("run", "train.py", "cluster=hpc", "--", "data.bin")
    assert (refused.returncode, "data.bin exists, but is not sent to hpc: git ignores it" in refused.stderr) == (
        2,
        True,
    )


@pytest.mark.ci
def test_a_folder_of_code_that_somebody_edited_there_is_not_taken_for_what_it_was(
    laptop: Laptop, node: LoginNode
) -> None:
    (laptop.code / "train.py").write_text("print('one')\n")
    assert laptop("run", "train.py", "cluster=hpc", "dry_run=true").returncode == 0
    for folder in contents(node):
        (folder / "train.py").write_text("print('edited')\n")
    (laptop.code / "more.py").touch()
    assert "[0] one" in laptop("run", "train.py", "cluster=hpc", "wait=true").stdout
    for folder in contents(node):
        (folder / "train.py").write_text("print('edited')\n")
    assert "[0] one" in laptop("run", "train.py", "cluster=hpc", "wait=true").stdout
    for folder in contents(node):
        (folder / "train.py").unlink(missing_ok=True)
    assert "[0] one" in laptop("run", "train.py", "cluster=hpc", "wait=true").stdout


def test_secrets_that_are_named_are_there_and_others_are_not(laptop: Laptop) -> None:
    laptop.profile.write_text(laptop.profile.read_text() + "secrets: [MY_API_KEY]\n")
    (laptop.code / "train.py").write_text(
        "import os\nprint(os.environ.get('MY_API_KEY'), os.environ.get('OTHER_KEY'))\n"
    )
    given = ("run", "train.py", "cluster=hpc", "wait=true")
    assert "[0] k1 None" in laptop(*given, MY_API_KEY="k1", OTHER_KEY="k2").stdout
    assert "[0] k1 k2" in laptop(*given, "env.secrets=[OTHER_KEY]", MY_API_KEY="k1", OTHER_KEY="k2").stdout
    excluded = ("env.secrets=['OTHER_*','!OTHER_KEY']", "run_id=sec")
    assert "[0] k1 None" in laptop(*given, *excluded, MY_API_KEY="k1", OTHER_KEY="k2").stdout
    (laptop.code / "train.py").write_text("from os import getenv\nprint(getenv('MY_API_KEY'))\nraise SystemExit(3)\n")
    run = run_id(laptop(*given, MY_API_KEY="k1").stdout)
    assert laptop("resume", run, "wait=true", MY_API_KEY="again").returncode in (1, 93)
    assert "[0] again" in laptop("logs", run, "--attempt", "1").stdout
    missing = laptop(*given)
    assert (missing.returncode, "secrets: MY_API_KEY is not set" in missing.stderr) == (2, True)


# -- questions and Ctrl-C


@pytest.mark.parametrize(("answer", "submitted"), [("y", True), ci("n", False)])
def test_a_question_about_the_cost_is_answered_here(laptop: Laptop, answer: str, submitted: bool) -> None:
    asked = ("site", "show", "hpc")
    assert laptop(*asked).returncode == 0
    laptop.profile.write_text(laptop.profile.read_text().replace("profile: local", "profile: queue"))
    side = laptop.node.config_dir / "cluster"
    side.mkdir(parents=True, exist_ok=True)
    (side / "queue.yaml").write_text("defaults: [slurm, _self_]\nname: queue\ncheck: false\n")
    words = [sys.executable, "-m", "launcher", "run", "train.py", "cluster=hpc", "confirm_above=0.001", "time=1h"]
    terminal = Terminal(words, laptop.environ, laptop.code)
    terminal.expect("Submit? [y/N]")
    terminal.type(f"{answer}\n")
    # There is no such scheduler: what is confirmed is tried, and refused there.
    assert (terminal.end() == 3) is not submitted


def test_an_interrupted_submission_says_how_to_find_its_job(laptop: Laptop, node: LoginNode) -> None:
    slow, began, go = (laptop.folder / name for name in ("far", "began", "go"))
    # After its request was sent: a Ctrl-C before it has submitted nothing, and is silent
    asked = f"{sys.executable} -c 'import select; select.select([0], [], [])'"
    waits = f"{asked}; touch {began}; until test -e {go}; do sleep 0.1; done; PYTHONPATH="
    slow.write_text(node.command.read_text().replace("PYTHONPATH=", waits))
    slow.chmod(0o700)
    laptop.profile.write_text(laptop.profile.read_text().replace(str(node.command), str(slow)))
    words = [sys.executable, "-m", "launcher", "run", "train.py", "cluster=hpc", "run_id=interrupted"]
    run = subprocess.Popen(words, env=laptop.environ, cwd=laptop.code, stderr=subprocess.PIPE, text=True)
    until(began.exists, "the submission")
    run.send_signal(signal.SIGINT)
    assert "Repeat the command with run_id=interrupted" in run.communicate(timeout=60)[1]
    assert run.returncode == 130
    go.touch()
    again = laptop("run", "train.py", "cluster=hpc", "run_id=interrupted")
    assert again.returncode == 0, again.stderr


# -- one run id


def test_a_repeated_submission_finds_its_job_and_other_code_is_refused(laptop: Laptop) -> None:
    given = ("run", "train.py", "cluster=hpc", "run_id=mine")
    assert laptop(*given).returncode == 0
    again = laptop(*given)
    assert (again.returncode, "(submitted before)" in again.stdout) == (0, True)
    (laptop.code / "train.py").write_text("print('other')\n")
    other = laptop(*given)
    assert other.returncode == 2
    assert "mine is there already with other code: choose another run_id" in other.stderr


# -- bad input: a clear error, and nothing there


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nodez=2"], "there is no key 'nodez'. Did you mean nodes?"),
        (["workload.args=[/etc/nothing-here]"], None),
        (["env.snapshot=false"], "env.snapshot=false: runs on hpc always use a copy of the code: leave it out"),
        (["env.snapshot_limit=1K"], "Add what is no code to .gitignore"),
    ],
)
def test_a_wrong_value_is_refused_by_name_before_anything_is_submitted(
    laptop: Laptop, node: LoginNode, words: list[str], told: str | None
) -> None:
    (laptop.code / "more.bin").write_bytes(bytes(5000))
    before = len(all_runs(node.runs_dir)) if node.runs_dir.is_dir() else 0
    done = laptop("run", "train.py", "cluster=hpc", *words, *(["dry_run=true"] if told is None else []))
    assert done.returncode == (0 if told is None else 2), done.stderr
    assert (told or "") in done.stderr
    assert (len(all_runs(node.runs_dir)) if node.runs_dir.is_dir() else 0) == before
    assert laptop("logs", "latest").returncode == 2  # nothing was submitted


def test_a_path_that_exists_there_alone_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="/nowhere/data is on the machine where you typed this"):
        ssh_serve._run({"arguments": [], "paths": ["/nowhere/data"]}, None)  # type: ignore[arg-type]


def test_a_folder_without_git_is_refused_with_what_to_do(laptop: Laptop) -> None:
    (laptop.code / ".git").rename(laptop.folder / "git")
    done = laptop("run", "train.py", "cluster=hpc")
    assert done.returncode == 2
    assert "cluster=hpc: " in done.stderr and "is in no git repository: `git init` there" in done.stderr


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("ssh: login", "ssh: nowhere.invalid"), "Could not resolve hostname"),
        (("command: ", "command: /nowhere"), "there is no launcher in /nowhere"),
        (("profile: local", "profile: missing"), "there is no cluster=missing"),
        (("profile: local", "partition: gpu"), "a profile with `ssh` has no key 'partition'"),
    ],
)
def test_a_profile_that_leads_nowhere_is_named(laptop: Laptop, change: tuple[str, str], told: str) -> None:
    laptop.profile.write_text(laptop.profile.read_text().replace(*change))
    done = laptop("run", "train.py", "cluster=hpc")
    assert done.returncode in (1, 2)
    assert told in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("file", "told"),
    [("user", "Permission denied"), ("known_hosts", "REMOTE HOST IDENTIFICATION HAS CHANGED")],
)
def test_a_refused_key_and_a_changed_host_key_are_sshs_own_words(laptop: Laptop, file: str, told: str) -> None:
    keys = laptop.node.folder / "ssh"
    config = (keys / "ssh_config").read_text()
    other = laptop.folder / "other"
    other.write_bytes((keys / "other").read_bytes())
    other.chmod(0o600)
    if file == "known_hosts":
        line = (keys / "other.pub").read_text().split()
        other.write_text(f"[127.0.0.1]:{laptop.node.port} {line[0]} {line[1]}\n")
    mine = laptop.folder / "ssh_config"
    mine.write_text(config.replace(f"{keys.resolve()}/{file}\n", f"{other}\n"))
    wrapper = laptop.folder / "bin/ssh"
    wrapper.write_text(wrapper.read_text().replace(f"{laptop.node.folder}/ssh/ssh_config", str(mine)))
    done = laptop("run", "train.py", "cluster=hpc")
    assert done.returncode == 1
    assert told in done.stderr


def test_a_launcher_of_another_protocol_is_named_with_the_fix(laptop: Laptop) -> None:
    far = laptop.folder / "far"
    far.write_text(
        laptop.node.command.read_text().replace(
            "-m launcher.cli.ssh_serve", "-c " + shlex.quote(
                "import launcher.remote.ssh as c; c.PROTOCOL = 7; import launcher.cli.ssh_serve as f, sys; "
                "sys.exit(f.main(sys.argv[1:]))"
            )
        )
    )  # fmt: skip
    far.chmod(0o700)
    laptop.profile.write_text(laptop.profile.read_text().replace(str(laptop.node.command), str(far)))
    done = laptop("run", "train.py", "cluster=hpc")
    assert done.returncode == 1
    assert "which do not understand each other: the one here is older" in done.stderr
    assert "site init NAME --ssh HOST --force" in done.stderr


def test_a_full_quota_there_leaves_nothing_half_done(laptop: Laptop, node: LoginNode) -> None:
    far = laptop.folder / "far"
    far.write_text(
        node.command.read_text().replace("exec ", "", 1).replace("PYTHONPATH=", "ulimit -f 1000; PYTHONPATH=")
    )
    far.chmod(0o700)
    laptop.profile.write_text(laptop.profile.read_text().replace(str(node.command), str(far)))
    (laptop.code / "large.bin").write_bytes(os.urandom(3 << 20))
    before = contents(node) if (node.cache / "code").is_dir() else []
    done = laptop("run", "train.py", "cluster=hpc")
    assert done.returncode == 1
    assert "File too large" in done.stderr, done.stderr
    assert contents(node) == before


def test_a_side_that_asks_what_nobody_can_answer_gets_nothing(laptop: Laptop) -> None:
    far = laptop.folder / "far"
    hostile = (
        "import json, sys; mark = json.loads(sys.stdin.readline())['mark']; "
        "print(chr(30) + mark + json.dumps({'ask': True}), flush=True); "
        "open(sys.argv[1], 'w').write(sys.stdin.readline())"
    )
    far.write_text(
        f"#!/bin/sh\nprintf '\\036LAUNCHER\\n'\nexec {sys.executable} -c {shlex.quote(hostile)} {laptop.folder}/got\n"
    )
    far.chmod(0o700)
    laptop.profile.write_text(laptop.profile.read_text().replace(str(laptop.node.command), str(far)))
    for words in (["status"], ["logs", "hpc:run"], ["cancel", "hpc:run"]):
        done = subprocess.run(
            [sys.executable, "-m", "launcher", *words], env=laptop.environ, cwd=laptop.code, input="secret\n",
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert "it asks a question where nobody can answer" in done.stdout + done.stderr
    until(lambda: (laptop.folder / "got").exists(), "the end of the other side")
    assert (laptop.folder / "got").read_text() == ""


@pytest.mark.parametrize(
    "more",
    [{"job": 5}, {"points": 5}, {"points": {"done": "x"}}, {"elapsed": "1s"}, {"state": None}, {"breakpoints": [1]}],
)
def test_a_row_that_is_none_is_left_out(more: dict[str, object]) -> None:
    assert ssh_forward._sound({"run": "a", "state": "running"})
    assert not ssh_forward._sound({"run": "a", "state": "running", **more})
    assert not ssh_forward._sound(["a"])


# -- `status` of several clusters


def test_a_cluster_that_does_not_answer_is_shown_as_it_was_and_its_live_runs_are_unknown(laptop: Laptop) -> None:
    (laptop.code / "train.py").write_text(SLOW)
    run = run_id(laptop("run", "train.py", "cluster=hpc").stdout)
    until(lambda: rows(laptop)[run]["state"] == "running", "the start")
    other = laptop.profile.with_name("dead.yaml")
    other.write_text("ssh: 127.0.0.1\ntimeout: 2\n")
    ssh = laptop.folder / "bin/ssh"
    before = ssh.read_text()
    ssh.write_text(f'#!/bin/sh\ncase "$*" in *127.0.0.1*) exec sleep 100;; esac\n{before.splitlines()[1]}\n')
    done = laptop("status")
    assert re.search(rf"{run} +running +hpc", done.stdout)
    assert "dead (127.0.0.1): no answer within 2 s" in done.stdout
    assert "nothing is known of its runs" in done.stdout
    ssh.write_text("#!/bin/sh\necho gone >&2; exit 255\n")
    laptop.close()
    done = laptop("status")
    assert re.search(rf"{run} +unknown \(running\) +hpc", done.stdout), done.stdout
    assert re.search(r"This is incomplete: hpc \(login\): gone.*; its runs are as of \d+s ago", done.stdout)
    ssh.write_text(before)
    assert laptop("cancel", run).returncode == 0


@pytest.mark.ci
def test_runs_of_two_clusters_are_cancelled_in_one_command(laptop: Laptop) -> None:
    (laptop.code / "train.py").write_text(SLOW)
    laptop.profile.with_name("hpc2.yaml").write_text(laptop.profile.read_text())
    first = run_id(laptop("run", "train.py", "cluster=hpc").stdout)
    second = run_id(laptop("run", "train.py", "cluster=hpc2").stdout)
    here = run_id(laptop("run", "train.py", "cluster=local", "wait=false").stdout)
    assert laptop("cancel", first, here, second).returncode == 0
    ended = (first, here, second)
    until(lambda: {rows(laptop)[name]["state"] for name in ended} == {"cancelled"}, "the end")
    done = laptop("status", first, here, second, "--json")
    assert done.returncode == 0, done.stderr
    assert sorted(row["run"] for row in json.loads(done.stdout)) == sorted(ended)
    laptop.profile.with_name("down.yaml").write_text("ssh: nowhere.invalid\n")
    done = laptop("status", first, "down:x", "--json")
    assert ([row["run"] for row in json.loads(done.stdout)], done.returncode) == ([first], 1)


@pytest.mark.ci
def test_old_runs_there_are_removed(laptop: Laptop, node: LoginNode) -> None:
    run = run_id(laptop("run", "train.py", "cluster=hpc", "wait=true").stdout)
    assert run in laptop("prune", "--older-than", "0h", "--cluster", "hpc").stdout
    assert (node.runs_dir / run).is_dir()
    assert "removed: " in laptop("prune", "--older-than", "0h", "--cluster=hpc", "--delete").stdout
    assert not (node.runs_dir / run).exists()
    refused = laptop("prune", "--older-than", "0h", "--cluster", "hcp")
    assert (refused.returncode, "Did you mean hpc?" in refused.stderr) == (2, True)
    here = laptop("prune", "--older-than", "0h", "--cluster", "hpc", "--runs-dir", ".")
    assert (here.returncode, "--cluster and --runs-dir cannot be combined" in here.stderr) == (2, True)


@pytest.mark.ci
def test_a_cluster_that_is_down_does_not_keep_a_command_from_the_others(laptop: Laptop) -> None:
    (laptop.code / "train.py").write_text(SLOW)
    laptop.profile.with_name("down.yaml").write_text("ssh: nowhere.invalid\n")
    run = run_id(laptop("run", "train.py", "cluster=hpc").stdout)
    done = laptop("cancel", "down:x", run)
    assert (done.returncode, "nowhere.invalid" in done.stderr) == (1, True)
    until(lambda: rows(laptop)[run]["state"] == "cancelled", "the end")


# -- a Mac


MAC = """
import builtins, errno, os, sys
for name in ("memfd_create", "sched_getaffinity", "sched_setaffinity", "pidfd_open", "posix_fallocate", "eventfd",
             "copy_file_range", "sendfile", "getxattr", "setxattr", "listxattr", "unshare", "setns"):
    if hasattr(os, name):
        delattr(os, name)
del errno.EREMOTEIO, os.O_PATH
sys.platform = "darwin"
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'")
sys.meta_path.insert(0, Hidden())
def hide(function):
    def hidden(path, *rest, **more):
        if str(path).startswith("/proc"):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return function(path, *rest, **more)
    return hidden
builtins.open, os.open, os.stat, os.lstat = map(hide, (builtins.open, os.open, os.stat, os.lstat))
from launcher.__main__ import main
sys.argv[0] = "launcher"
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.ci
def test_this_machine_may_be_a_mac_without_torch(laptop: Laptop) -> None:
    def mac(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", MAC, *words], env=laptop.environ, cwd=laptop.code, capture_output=True, text=True,
            timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    assert "launcher" in mac("--help")
    mac("site", "list")
    run = run_id(mac("run", "train.py", "cluster=hpc", "wait=true"))
    assert run in mac("status")
    for words in (["logs", run], ["why", run], ["post-mortem", run], ["report", run], ["status", run]):
        assert mac(*words)
    mac("-m", "run", "train.py", "cluster=hpc", "workload.flags.a=1,2", "wait=true")
    mac("sweep", "status", "latest")
    mac("site", "login", "hpc")


# -- Python


@pytest.mark.ci
def test_scripts_submit_and_find_runs_there(laptop: Laptop) -> None:
    (laptop.code / "train.py").write_text("import launcher\nprint('hello')\nlauncher.report(loss=0.5)\n")
    (laptop.code / "drive.py").write_text(
        "import launcher\n"
        "run = launcher.submit(workload='program', cluster='hpc', **{'workload.script': 'train.py'})\n"
        "print(run.wait().value, run.metrics(), [line for line in run.logs() if 'hello' in line])\n"
        "print(launcher.find(run.id) == run, launcher.find('hpc:' + run.id).state().value)\n"
        "for wrong in ({'nodez': 2}, {'time': '3 bananas'}):\n"
        "    try:\n"
        "        launcher.submit({**wrong, 'workload.script': 'train.py'}, workload='program', cluster='hpc')\n"
        "    except launcher.ConfigError as error:\n"
        "        print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "drive.py"], env=laptop.environ, cwd=laptop.code, capture_output=True, text=True, check=False
    )
    lines = done.stdout.splitlines()
    assert lines[:2] == ["done {'loss': 0.5} ['[0] hello']", "True done"], done.stdout + done.stderr
    assert "nodez" in lines[2]
    assert "time" in lines[3]
    assert done.stderr == ""

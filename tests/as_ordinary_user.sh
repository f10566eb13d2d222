#!/bin/bash
# Runs pytest as an ordinary user (`nobody`) on a copy of this checkout, because root may read, write and be all.
#
#     tests/as_ordinary_user.sh .venv tests/unit tests/golden      as root
#
# The copy, and one of the virtual environment, since the checkout may lie below a folder that only root can enter.
set -euo pipefail

venv=$1 user=nobody
shift
cd "$(dirname "$0")/.."
folder=$(mktemp -d --tmpdir ordinary-user-XXXXXX)
trap 'rm -rf "$folder"' EXIT
chmod 755 "$folder"
mkdir "$folder/home" "$folder/checkout"
# Compiled modules as well, which fit files of the same time and size: pytest rewrites the asserts of hundreds of modules.
{ git ls-files -z && find launcher workloads hydra_plugins benchmarks tests -name "*.pyc" -print0; } |
  xargs -0 cp --parents --no-dereference --preserve=timestamps --target-directory="$folder/checkout"
# Links cost nothing, but there are none between disks.
cp -al "$venv" "$folder/venv" 2>/dev/null || { rm -rf "$folder/venv" && cp -a "$venv" "$folder/venv"; }
chown -R "$user" "$folder/home" "$folder/checkout"
as_user=(setpriv --reuid="$user" --regid="$(id -g "$user")" --clear-groups
  env -i HOME="$folder/home" PATH=/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8 CI="${CI:-}")
if ! "${as_user[@]}" "$folder/venv/bin/python" -c 'import pytest'; then
  echo "$0: $user cannot use $venv; make it with a Python that all can: \`make clean\`, \`make PYTHON=/usr/bin/python3 …\`" >&2
  exit 1
fi
cd "$folder/checkout"
"${as_user[@]}" "$folder/venv/bin/python" -m pytest --basetemp="$folder/home/tests" "$@"

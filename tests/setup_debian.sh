#!/bin/sh
# Installs what the tests need of Debian: a real Slurm, a database for its accounting, a real Grid Engine,
# a browser, network namespaces, and a server for ssh.
#
#     tests/setup_debian.sh
#
# Does nothing when all is there. Where it cannot install, it says what will not be tested and still exits 0.
# The tests run daemons of their own; the packages' system-wide services are neither started nor used.
set -eu

PATH="$PATH:/usr/sbin:/sbin"
missing=""
for pair in slurmctld:slurmctld slurmd:slurmd sbatch:slurm-client munged:munge \
    /usr/lib/gridengine/sge_qmaster:gridengine-master /usr/lib/gridengine/sge_execd:gridengine-exec \
    /usr/lib/gridengine/qsub:gridengine-client slurmdbd:slurmdbd mariadbd:mariadb-server mariadb-install-db:mariadb-server \
    chromium:chromium chromedriver:chromium-driver ip:iproute2 \
    sshd:openssh-server ssh:openssh-client git:git; do
    package=${pair#*:}
    command -v "${pair%%:*}" >/dev/null 2>&1 || case "$missing " in *" $package "*) ;; *) missing="$missing $package" ;; esac
done
[ -n "$missing" ] || exit 0

give_up() {
    echo "tests/setup_debian.sh: $1; not all is tested here (missing:$missing)"
    exit 0
}

[ "$(id -u)" = 0 ] || give_up "not root"
command -v apt-get >/dev/null 2>&1 || give_up "no apt-get"

# Packages start their services when they are installed, unless this file forbids it (exit 101: action forbidden).
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    trap 'exit 1' HUP INT TERM
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi

export DEBIAN_FRONTEND=noninteractive
install() {
    # shellcheck disable=SC2086  # a list of package names
    apt-get -qq -y -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 install --no-install-recommends $missing
}
log=$(mktemp)
if ! install >"$log" 2>&1; then
    # Perhaps the package lists are absent or old.
    { apt-get -qq -o DPkg::Lock::Timeout=300 update && install; } >"$log" 2>&1 || {
        tail -n 5 "$log" >&2
        rm -f "$log"
        give_up "apt-get could not install"
    }
fi
rm -f "$log"
echo "tests/setup_debian.sh: installed$missing"

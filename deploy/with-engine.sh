#!/usr/bin/env bash
# Run a command with a Docker engine: the one that runs here, or one that is started for it.
#
#     deploy/with-engine.sh make test-compose
#
# An engine of our own has a network namespace, a mount namespace and a folder to itself, so that
# its bridges, firewall rules and images are gone when it ends. Programs that are missing are
# installed where we are root and have apt. Exits with 77, having said why, where there is no
# engine and none can be had; else with the command's code.
set -euo pipefail

unable() {
    echo "no container engine: $*" >&2
    exit 77
}

if docker info >/dev/null 2>&1; then
    exec "$@"
fi

[ "$(id -u)" -eq 0 ] || unable "none answers, and only root can start one"
# Package of each program.
declare -A package=([dockerd]=docker.io [docker]=docker.io [docker-compose]=docker-compose
    [debootstrap]=debootstrap [iptables]=iptables [ip]=iproute2)
missing=()
for program in "${!package[@]}"; do
    command -v "$program" >/dev/null || missing+=("${package[$program]}")
done
if [ ${#missing[@]} -gt 0 ]; then
    command -v apt-get >/dev/null || unable "${missing[*]} missing, and there is no apt to install it"
    # A run level in which packages start no services.
    export RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive
    apt=(apt-get -q -o Acquire::Retries=3 -o DPkg::Lock::Timeout=120)
    "${apt[@]}" update >&2 || unable "apt-get update fails"
    # In newer releases it has a package to itself.
    apt-cache show docker-cli >/dev/null 2>&1 && missing+=(docker-cli)
    "${apt[@]}" install --yes --no-install-recommends "${missing[@]}" >&2 ||
        unable "${missing[*]} can't be installed"
fi

work=$(mktemp -d /var/tmp/ringd-engine.XXXXXX)
engine=
command=
end() {
    if [ -n "$command" ] && kill -TERM "$command" 2>/dev/null; then
        wait "$command" || true
    fi
    if [ -n "$engine" ]; then
        kill -TERM "$engine" 2>/dev/null || true
        wait "$engine" || true
    fi
    rm -rf "$work"
}
trap end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# In namespaces of its own it needs its own loopback device, and a view of /sys that has its own
# network devices, and the control groups as before.
mkdir "$work/cgroup"
unshare --net --mount sh -euc '
    ip link set lo up
    mount --rbind /sys/fs/cgroup "$1/cgroup"
    mount -t sysfs sysfs /sys
    mount --rbind "$1/cgroup" /sys/fs/cgroup
    exec dockerd --host "unix://$1/docker.sock" --data-root "$1/data" --exec-root "$1/run" \
        --pidfile "$1/pid" --log-level warn
' sh "$work" >"$work/log" 2>&1 &
engine=$!
export DOCKER_HOST="unix://$work/docker.sock"
for _ in $(seq 300); do
    docker info >/dev/null 2>&1 && break
    kill -0 "$engine" 2>/dev/null || break
    sleep 0.2
done
docker info >/dev/null 2>&1 || unable "dockerd does not start: $(tail -n 3 "$work/log")"
# Waited for, so that a signal to us ends it now, and not when it is through.
"$@" <&0 &
command=$!
code=0
wait "$command" || code=$?
command=
exit "$code"

#!/usr/bin/env bash
# Make a base image where none can be pulled: Debian with Python, by debootstrap. Needs root.
#
#     deploy/base-image.sh ringd-base
#
# The mirror is that of this machine's own apt; SUITE chooses another release than this machine's.
set -euo pipefail
name=${1:?usage: base-image.sh NAME}

targets=$(apt-get indextargets --format '$(SITE) $(CODENAME) $(ORIGIN)' 'Created-By: Packages' |
    awk '$3 == "Debian" && $2 !~ /-/ { print $1, $2; exit }')
read -r mirror codename <<<"$targets"
suite=${SUITE:-$codename}

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
# The tree lives for a minute only: nothing of it has to reach the disk, and nobody reads its pages.
mkdir -p "$root/etc/dpkg/dpkg.cfg.d"
printf '%s\n' force-unsafe-io 'path-exclude=/usr/share/doc/*' 'path-exclude=/usr/share/man/*' \
    'path-exclude=/usr/share/locale/*' >"$root/etc/dpkg/dpkg.cfg.d/small"
debootstrap --variant=minbase --include=python3,python3-venv "$suite" "$root" "$mirror"
rm -rf "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
tar -C "$root" -c . | docker import --change 'CMD ["python3"]' - "$name"

#!/usr/bin/env bash
# Build the image of docker-compose.yml, whatever this machine can reach.
#
#     deploy/build-image.sh [NAME]
#
# RINGD_BASE names the base image (default: python:3.12-slim). Where it is neither here nor can be
# pulled, and was not asked for, one is made by debootstrap; and then all that is installed is
# fetched by this machine's pip, as a machine without a registry of images has its own index too.
set -euo pipefail
cd "$(dirname "$0")/.."
name=${1:-${RINGD_IMAGE:-ringd}}
base=${RINGD_BASE:-python:3.12-slim}
made=ringd-base
pip_args=${RINGD_PIP_ARGS:-}

here() { docker image inspect "$1" >/dev/null 2>&1; }

if ! here "$base" && ! timeout 60 docker pull --quiet "$base"; then
    [ -z "${RINGD_BASE:-}" ] || exit 1
    here "$made" || deploy/base-image.sh "$made"
    base=$made
fi
if [ "$base" = "$made" ]; then
    version=$(docker run --rm "$base" python3 -c 'import sys; print(*sys.version_info[:2], sep=".")')
    deploy/wheels.sh "$version"
    pip_args=--no-index
fi
docker build --quiet --file deploy/Dockerfile --build-arg "BASE=$base" \
    --build-arg "PIP_ARGS=$pip_args" --tag "$name" .

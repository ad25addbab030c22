#!/usr/bin/env bash
# Fetch all that an image installs into build/wheels, with this machine's pip and its settings, for
# builds that reach no package index.
#
#     deploy/wheels.sh [VERSION]     of the image's Python, like 3.11; default: this machine's
#     docker build --build-arg PIP_ARGS=--no-index ...
set -euo pipefail
cd "$(dirname "$0")/.."
python=$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python3)
version=${1:-$("$python" -c 'import sys; print(*sys.version_info[:2], sep=".")')}

rm -rf build/wheels
mapfile -t needs < <("$python" -c 'import tomllib
project = tomllib.load(open("pyproject.toml", "rb"))
print(*project["project"]["dependencies"], *project["build-system"]["requires"], sep="\n")')
"$python" -m pip download --quiet --disable-pip-version-check --only-binary=:all: \
    --python-version "$version" --dest build/wheels -c constraints.txt -c constraints-cpu.txt \
    "${needs[@]}" scikit-learn

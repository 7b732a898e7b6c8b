#!/bin/sh
# Pins every requirement with its hashes, for all supported Pythons and platforms at once, and names no address.
# Usage: lock.sh UV. Versions already pinned stay unless ARGS says --upgrade or --upgrade-package NAME.
set -eu
cd "$(dirname "$0")/.."
uv=$1
shift

pin() {
    "$uv" pip compile --quiet --universal --generate-hashes --fork-strategy fewest --python-version 3.11 \
        --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" "$@" >/dev/null
}

# One pass with everything decides the versions; the smaller file takes them over.
pin --group dev --output-file requirements/dev.txt "$@" pyproject.toml
rm -f requirements/run.txt
pin --group build --constraint requirements/dev.txt --output-file requirements/run.txt pyproject.toml
pin --no-deps --output-file requirements/model.txt "$@" requirements/model.in
pin --output-file requirements/uv.txt "$@" requirements/uv.in

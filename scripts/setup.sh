#!/bin/sh
# Finds a Python that fits and hands over to bootstrap.py. Usage: setup.sh run|dev. PYTHON names one to use instead.
set -u
here=$(dirname "$0")
short=

# A name on PATH may be a shim that does not run, so each one is tried.
has() { "$1" -c "import sys; $2" >/dev/null 2>&1; }
version='sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'

for python in ${PYTHON:+"$PYTHON"} "$here/../.venv/bin/python" python3.13 python3.12 python3.11 python3; do
    if has "$python" "$version"; then
        # Without uv on PATH the first set-up needs pip, which some systems package apart from Python.
        if uv --version >/dev/null 2>&1 || [ -x "$here/../.uv/bin/uv" ] || has "$python" "import ensurepip"; then
            exec "$python" "$here/bootstrap.py" "$@"
        fi
        short=${short:-$python}
    elif [ "$python" = "${PYTHON:-}" ]; then
        echo "error: PYTHON=$PYTHON is not a Python 3.11, 3.12 or 3.13 that runs" >&2
        exit 1
    fi
done

if [ -n "$short" ]; then
    echo "error: $short has no ensurepip; install uv, or your system's venv package (Debian, Ubuntu: apt install python3-venv)" >&2
else
    echo "error: no Python 3.11, 3.12 or 3.13 on PATH; install one, or name it: make serve PYTHON=/path/to/python3" >&2
fi
exit 1

#!/usr/bin/env bash
# Does the built wheel work in an empty environment?  Once for each Python that is named:
#     bash ci/wheel_check.sh python3.11 python3.12 python3.13
# Downloads what the wheel depends on, at the versions of constraints.txt; leaves nothing behind.
set -euo pipefail
cd "$(dirname "$0")/.."
(($# > 0)) || set -- python3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# A copy: setuptools would put files of earlier builds, left in build/, into the wheel.
mkdir "$work/tree"
cp -r pyproject.toml README.md LICENSE src "$work/tree"
rm -rf "$work/tree/src/"*.egg-info
constraints=$PWD/constraints.txt
"$1" -m pip wheel --quiet --no-deps --wheel-dir "$work" "$work/tree"
wheel=$(echo "$work"/*.whl)
echo "built $(basename "$wheel")"
cd "$work" # not in the repository: nothing of it may be imported

for python in "$@"; do
    "$python" -m venv --clear env
    env/bin/pip install --quiet --constraint "$constraints" "$wheel"
    echo "+ $(env/bin/python --version)"
    for command in doctor roofline "check torch --examples 2"; do
        echo "+ verify-attn $command"
        # shellcheck disable=SC2086
        env/bin/verify-attn $command
    done
    rm -rf env
done
echo "the wheel works with: $*"

#!/usr/bin/env bash
# Puts files on the branch `records`, which holds nothing else, and makes it where there is none:
#     bash ci/keep.sh perf/nvidia-h200.json perf.json     # one file, in the place of the one before
#     bash ci/keep.sh runs/2026-01-31T02-17-00Z nightly/*.json
# The remote is `origin`.  A push that comes second is made again on top of the first.
set -euo pipefail
(($# >= 2)) || { echo "usage: keep.sh TARGET FILE..." >&2; exit 2; }
target=$1
shift
if [[ $target == /* || /$target/ == */../* ]]; then
    echo "keep.sh: $target is no place on a branch" >&2
    exit 2
fi
if [[ $target == *.json ]] && (($# > 1)); then
    echo "keep.sh: $target is one file, $# were given" >&2
    exit 2
fi
for file in "$@"; do
    [[ -s $file ]] || { echo "keep.sh: $file is missing or empty: nothing is kept" >&2; exit 1; }
done

work=$(mktemp -d)
trap 'git worktree remove --force "$work" 2>/dev/null || true; rm -rf "$work"' EXIT
for try in 1 2 3; do
    git worktree remove --force "$work" 2>/dev/null || true
    # ls-remote: 2 where there is no such branch; anything else is a failure to look.
    found=0
    git ls-remote --exit-code --heads origin records >/dev/null || found=$?
    if ((found == 0)); then
        git fetch --quiet --depth 1 origin records
        git worktree add --quiet --detach "$work" FETCH_HEAD
    elif ((found == 2)); then
        git worktree add --quiet --detach "$work"
        git -C "$work" switch --quiet --orphan "records-$RANDOM$RANDOM"
    else
        exit "$found"
    fi
    if [[ $target == *.json ]]; then
        install -D -m 644 "$1" "$work/$target"
    else
        for file in "$@"; do install -D -m 644 "$file" "$work/$target/$(basename "$file")"; done
    fi
    git -C "$work" add --all
    git -C "$work" diff --cached --quiet && { echo "$target is there already"; exit 0; }
    git -C "$work" -c user.name=ci -c user.email=ci@localhost commit --quiet -m "$target"
    if git -C "$work" push --quiet origin HEAD:refs/heads/records; then
        echo "kept $target on the branch records"
        exit 0
    fi
    echo "try $try of 3 was not pushed" >&2
done
exit 1

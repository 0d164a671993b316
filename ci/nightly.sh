#!/usr/bin/env bash
# bash ci/nightly.sh FOLDER: `verify-attn run` on the server of URL, or on the package's own where
# URL is empty.  FLOORS (a file) and CONTEXTS are the sweep's; ends as the run does.
set -euo pipefail
options=(--out "$1")
floors=${FLOORS:-}
[[ -z ${URL:-} ]] || options+=(--url "$URL")
if [[ -z ${URL:-} && -z $floors ]]; then
    floors=tests/e2e/embedded_floors.toml # that it answers; it is no server of yours
fi
if [[ -z $floors ]]; then
    echo "::warning::VERIFY_ATTN_FLOORS is not set: no rate is held to a floor (docs/floors.md)"
else
    options+=(--floors "$floors")
fi
[[ -z ${CONTEXTS:-} ]] || options+=(--contexts "$CONTEXTS")
[[ -n ${VERIFY_ATTN_API_KEY:-} ]] || unset VERIFY_ATTN_API_KEY # a secret that is not set is ""
# A run appends its verdict to the job summary by itself.
exec .venv/bin/verify-attn run "${options[@]}"

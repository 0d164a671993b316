#!/usr/bin/env bash
# Did it get worse than on main?  bash ci/gate.sh NEW, a file of pytest --benchmark-json.
# Ends as `verify-attn compare` does: 0, 1 worse, 3 unclear; 0 where main has no times yet, which it
# says; 0 with ACCEPT=true, whatever the comparison says.
set -euo pipefail
new=$1
summary=${GITHUB_STEP_SUMMARY:-/dev/null}
say() { echo "$*" | tee -a "$summary"; }

[[ -s $new ]] || { say "No times: $new is not there, so nothing was compared."; exit 1; }
name=$(.venv/bin/python ci/baseline.py "$new")
say "### Times against main's ($name)"

# ls-remote: 2 where there is no such branch; anything else is a failure to look.
found=0
git ls-remote --exit-code --heads origin records >/dev/null || found=$?
((found == 0 || found == 2)) || exit "$found"
if ((found == 0)); then git fetch --quiet --depth 1 origin records; fi
if ((found == 2)) || ! git cat-file -e "FETCH_HEAD:$name" 2>/dev/null; then
    say "**Nothing was compared**: the branch records has no $name yet. Main's next run that" \
        "passes puts it there."
    exit 0
fi
git show "FETCH_HEAD:$name" > main.json

code=0
.venv/bin/verify-attn compare main.json "$new" --junit gate.xml --json gate.json > gate.txt || code=$?
cat gate.txt
bash ci/fenced.sh < gate.txt >> "$summary"
if ((code != 0)) && [[ ${ACCEPT:-} == true ]]; then
    say "Accepted by hand, although the comparison ended with $code."
    exit 0
fi
exit "$code"

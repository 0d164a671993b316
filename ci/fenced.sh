#!/usr/bin/env bash
# bash ci/fenced.sh < TEXT: as a block of Markdown that the text cannot end, whatever is in it: the
# fence is longer than any row of backticks inside.
set -euo pipefail
text=$(tr -d '\000' && echo .) # the dot keeps the newlines at the end
text=${text%.}
longest=$({ grep -ao '`\+' <<< "$text" || true; } | awk '{ if (length > n) n = length } END { print n + 0 }')
printf -v fence '%*s' "$((longest < 3 ? 3 : longest + 1))" ''
fence=${fence// /\`}
printf '%s\n%s' "$fence" "$text"
[[ -z $text || $text == *$'\n' ]] || echo
echo "$fence"

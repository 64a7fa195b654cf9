#!/usr/bin/env bash
# One chat turn over HTTP, streamed, with curl and jq.
#
#   RADIXGATE_API_KEY=KEY ./chat.sh "Why is the sky blue?"
#
# Settings come from the environment: RADIXGATE_URL, RADIXGATE_API_KEY, MODEL (without: the first that is served) and
# MAX_NEW_TOKENS.
set -euo pipefail

url=${RADIXGATE_URL:-http://127.0.0.1:8000/v1}
max_new_tokens=${MAX_NEW_TOKENS:-64}

if [[ $# -ne 1 || $1 == -h || $1 == --help || -z ${RADIXGATE_API_KEY:-} ]]; then
    echo "usage: RADIXGATE_API_KEY=KEY [RADIXGATE_URL=$url] [MODEL=...] [MAX_NEW_TOKENS=64] $0 MESSAGE" >&2
    exit 2
fi

head=$(mktemp)
trap 'rm -f "$head"' EXIT

# The key goes in over a file descriptor, where no list of processes shows it.
ask() {
    curl --silent --show-error --no-buffer --dump-header "$head" --max-time 120 \
        --header @<(printf 'authorization: Bearer %s\n' "$RADIXGATE_API_KEY") \
        --header 'content-type: application/json' "$@"
}

# Prints what comes of an answer: text, at the end the usage, or an error, which ends the script.
show='
    if .error then "\(.error.message)\n" | halt_error(1)
    elif .usage then "\n[\(.usage.prompt_tokens) prompt tokens, " +
        "\(.usage.prompt_tokens_details.cached_tokens) of them cached; \(.usage.completion_tokens) new tokens]\n"
    else .choices[0].delta.content // "" end'

model=${MODEL:-$(ask "$url/models" | jq --raw-output 'if .error then "\(.error.message)\n" | halt_error(1) else .data[0].id end')}

body=$(jq --null-input --compact-output --arg model "$model" --arg message "$1" --argjson max "$max_new_tokens" '{
    model: $model,
    messages: [{role: "user", content: $message}],
    max_completion_tokens: $max,
    temperature: 0,
    stream: true,
    stream_options: {include_usage: true}
}')

# Events read `data: JSON`, and the last one `data: [DONE]`; what is refused is JSON alone.
ask --data-binary @- "$url/chat/completions" <<<"$body" |
    sed --unbuffered -e '/^data: \[DONE\]/d' -e 's/^data: //' |
    jq --unbuffered --raw-output --join-output "$show" || {
    status=$?
    wait_s=$(sed -n 's/^retry-after: *\([0-9]*\).*/\1/Ip' "$head")
    [[ -z $wait_s ]] || echo "try again in $wait_s s" >&2
    exit "$status"
}

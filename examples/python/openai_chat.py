"""One chat turn over HTTP, streamed, with OpenAI's own package: `pip install openai`.

    python openai_chat.py --key KEY "Why is the sky blue?"

The package itself tries again after the time that the gateway names, where a limit was reached.
"""

import argparse
import os
import sys

import openai


def main() -> int:
    options = read_options()
    client = openai.OpenAI(base_url=options.url, api_key=options.key, timeout=120, max_retries=2)
    try:
        model = options.model or next(iter(client.models.list())).id
        stream = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": options.message}],
            max_completion_tokens=options.max_new_tokens,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            # What OpenAI's API has no name for: share cached prefixes only with requests of the same scope.
            extra_body={"scope": options.scope} if options.scope else None,
        )
        for chunk in stream:
            for choice in chunk.choices:
                print(choice.delta.content or "", end="", flush=True)
            if chunk.usage is not None:
                details = chunk.usage.prompt_tokens_details
                cached = (details.cached_tokens or 0) if details else 0
                print(
                    f"\n[{chunk.usage.prompt_tokens} prompt tokens, {cached} of them cached; "
                    f"{chunk.usage.completion_tokens} new tokens]"
                )
    except openai.APIStatusError as error:
        print(f"{error.status_code}: {error.message}", file=sys.stderr)
        return 1
    except openai.APIError as error:  # nobody there, or an end in the middle of the answer
        print(error.message, file=sys.stderr)
        return 1
    return 0


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="One chat turn over HTTP, with OpenAI's package.")
    parser.add_argument("message")
    parser.add_argument("--url", default=os.environ.get("RADIXGATE_URL", "http://127.0.0.1:8000/v1"))
    parser.add_argument("--key", default=os.environ.get("RADIXGATE_API_KEY"), help="or RADIXGATE_API_KEY")
    parser.add_argument("--model", default="", help="MODEL or MODEL:ADAPTER; without, the first that is served")
    parser.add_argument("--scope", default="", help="share cached prefixes only with requests of the same scope")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    options = parser.parse_args()
    if not options.key:
        parser.error("no API key: give --key, or set RADIXGATE_API_KEY")
    return options


if __name__ == "__main__":
    sys.exit(main())

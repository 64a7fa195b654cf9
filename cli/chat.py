"""`radixgate chat`: a conversation on the terminal, or one answer for a script."""

import contextlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import click
import grpc
from rich.console import Console

from cli.credentials import is_sendable
from cli.rpc_errors import TENANT_HINT, explain, rpc_errors_told
from cli.target import Target, target_options
from radixgate.v1 import inference_pb2, inference_pb2_grpc

with contextlib.suppress(ImportError):  # line editing where Python has it
    import readline  # noqa: F401

_HELP = "/clear starts over, /exit or Ctrl-D leaves, Ctrl-C stops an answer"


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """What stays the same over a conversation."""

    key: str
    model: str = ""
    adapter: str = ""
    scope: str = ""
    max_new_tokens: int | None = None
    temperature: float = 0.0
    timeout_s: float = 600.0
    json_schema: str = ""
    regex: str = ""
    choices: tuple[str, ...] = ()

    def sampling(self) -> inference_pb2.SamplingParams:
        sampling = inference_pb2.SamplingParams(max_new_tokens=self.max_new_tokens, temperature=self.temperature)
        if self.json_schema:
            sampling.json_schema = self.json_schema
        if self.regex:
            sampling.regex = self.regex
        if self.choices:
            sampling.choice.texts.extend(self.choices)
        return sampling


@dataclass(slots=True)
class Answer:
    """One answer as far as it has come."""

    text: str = ""
    finish_reason: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    first_text_s: float | None = None
    seconds: float = 0.0


class Conversation:
    """Messages so far, and a channel to ask for the next. A failed or stopped answer leaves no trace in them."""

    def __init__(self, channel: grpc.Channel, options: ChatOptions, system: str) -> None:
        self._stub = inference_pb2_grpc.InferenceServiceStub(channel)
        self._options = options
        self._system = [inference_pb2.ChatMessage(role="system", content=system)] if system else []
        self._messages = list(self._system)

    def clear(self) -> None:
        self._messages = list(self._system)

    def ask(self, content: str, answer: Answer) -> Iterator[str]:
        """Yield the text of the answer as it comes, filling `answer`. Raises grpc.RpcError.

        Closing the iterator cancels the request.
        """
        question = inference_pb2.ChatMessage(role="user", content=content)
        call = self._stub.Generate(
            self._request(question),
            timeout=self._options.timeout_s,
            metadata=(("authorization", f"Bearer {self._options.key}"),) if self._options.key else (),
        )
        started = time.monotonic()
        try:
            for message in call:
                answer.seconds = time.monotonic() - started
                if message.text:
                    answer.text += message.text
                    answer.first_text_s = answer.first_text_s or answer.seconds
                    yield message.text
                if message.HasField("usage"):
                    answer.finish_reason = _finish_name(message)
                    answer.usage = _usage(message.usage)
        finally:
            call.cancel()
        self._messages += [question, inference_pb2.ChatMessage(role="assistant", content=answer.text)]

    def _request(self, question: inference_pb2.ChatMessage) -> inference_pb2.GenerateRequest:
        options = self._options
        return inference_pb2.GenerateRequest(
            model=options.model,
            adapter=options.adapter,
            scope=options.scope,
            chat=inference_pb2.ChatPrompt(messages=[*self._messages, question]),
            sampling=options.sampling(),
        )


def _api_key(context: click.Context, parameter: click.Parameter, value: str) -> str:
    key = value.strip()
    if value and not is_sendable(key):
        raise click.BadParameter("an API key is one line of printable ASCII characters")
    return key


def _content(context: click.Context, parameter: click.Parameter, file: Any) -> str:
    return "" if file is None else str(file.read())


@click.command("chat")
@click.argument("message", nargs=-1)
@target_options
@click.option(
    "--key",
    envvar="RADIXGATE_API_KEY",
    default="",
    callback=_api_key,
    help="API key; not needed with a client certificate.  [env: RADIXGATE_API_KEY]",
)
@click.option("--model", default="", help="Name of the model, where several are served.")
@click.option("--adapter", default="", help="Name of a LoRA adapter.")
@click.option("--system", default="", help="A system message to begin with.")
@click.option("--scope", default="", help="Share cached prefixes only with requests of the same scope.")
@click.option("--max-new-tokens", type=click.IntRange(min=1), help="Length limit of an answer.")
@click.option("--temperature", type=float, default=0.0, show_default=True, help="0 is greedy, 1 the model as it is.")
@click.option(
    "--json-schema", type=click.File(), callback=_content, help="File of a JSON schema that each answer fulfils."
)
@click.option("--regex", default="", help="Each answer matches this regular expression as a whole.")
@click.option("--choice", "choices", multiple=True, help="Each answer is one of these texts; give it several times.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per answer, for scripts.")
def command(message: Sequence[str], target: Target, system: str, as_json: bool, **options: Any) -> None:
    """Chat with a model. With MESSAGE (or `-` for standard input) answers once; without, reads from the terminal."""
    if sum([bool(options[name]) for name in ("json_schema", "regex", "choices")]) > 1:
        raise click.UsageError("--json-schema, --regex and --choice exclude each other")
    if not options["key"] and not target.has_certificate:
        raise click.UsageError("no API key: give --key, or set RADIXGATE_API_KEY")
    with target.channel() as channel:
        conversation = Conversation(channel, ChatOptions(**options), system)
        if message:
            content = sys.stdin.read() if list(message) == ["-"] else " ".join(message)
            with rpc_errors_told(target.address, TENANT_HINT):
                _answer(conversation, content, as_json)
        else:
            _converse(conversation, target.address, as_json)


def _converse(conversation: Conversation, target: str, as_json: bool) -> None:
    console = Console(stderr=True, highlight=False)
    if sys.stdin.isatty():
        console.print(f"[dim]{_HELP}[/]")
    while (line := _read_line()) is not None:
        if line in ("/exit", "/quit"):
            return
        if line == "/clear":
            conversation.clear()
        elif line.startswith("/"):
            console.print(f"[dim]{_HELP}[/]")
        elif line:
            _answer_or_tell(conversation, line, target, as_json, console)


def _answer_or_tell(conversation: Conversation, line: str, target: str, as_json: bool, console: Console) -> None:
    """Answer one line of a conversation; whatever goes wrong with it, the conversation goes on."""
    try:
        _answer(conversation, line, as_json)
    except KeyboardInterrupt:
        console.print("\n[dim]stopped[/]")
    except grpc.RpcError as error:
        console.print(explain(error, target, TENANT_HINT), style="red", markup=False)


def _answer(conversation: Conversation, content: str, as_json: bool) -> None:
    answer = Answer()
    for text in conversation.ask(content, answer):
        if not as_json:
            click.echo(text, nl=False)
    if as_json:
        shown = {"text": answer.text, "finish_reason": answer.finish_reason, "usage": answer.usage}
        click.echo(json.dumps(shown, ensure_ascii=False))
    else:
        click.echo()
        Console(stderr=True, highlight=False).print(f"[dim]{summary(answer)}[/]", soft_wrap=True)


def summary(answer: Answer) -> str:
    """Return what an answer cost, in one line: above all, how much of the prompt was cached."""
    usage = answer.usage
    prompt, cached = usage["prompt_tokens"], usage["cached"]
    num_cached = sum(cached.values())
    tiers = ", ".join(f"{count} {tier}" for tier, count in cached.items() if count)
    parts = [
        f"{prompt} prompt tokens, {num_cached} cached ({num_cached / prompt:.0%})" + (f": {tiers}" if tiers else ""),
        f"{usage['completion_tokens']} new tokens in {answer.seconds:.2f} s",
    ]
    if answer.first_text_s is not None:
        parts.append(f"first after {answer.first_text_s:.2f} s")
    if answer.finish_reason == "length":
        parts.append("cut off by the length limit")
    return "; ".join(parts)


def _read_line() -> str | None:
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except EOFError:
        if sys.stdin.isatty():
            click.echo()  # what the shell prints next starts a line
        return None
    except KeyboardInterrupt:
        click.echo()
        return ""


def _finish_name(message: inference_pb2.GenerateResponse) -> str:
    return inference_pb2.FinishReason.Name(message.finish_reason).removeprefix("FINISH_REASON_").lower()


def _usage(usage: inference_pb2.Usage) -> dict[str, Any]:
    cached = usage.cached
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "cached": {"device": cached.device, "host": cached.host, "storage": cached.storage},
        "computed_prompt_tokens": usage.computed_prompt_tokens,
    }

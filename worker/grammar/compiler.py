"""Compiles constraints over one model's tokens, on threads of its own and in bounded time.

What a schema or an expression may cost is bounded three times: by its size, by what compiling it may use, and by what
each token may use when completions are held to it. None of the bounds is a clock, so verdicts don't depend on load.
"""

import json
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from worker.batch import Uint32Array
from worker.engine.constraints import Constraint, allows, leaves_more
from worker.grammar.constraints import (
    Choice,
    ConstraintError,
    JsonSchema,
    Regex,
    TextConstraint,
    TooManyConstraintsError,
)
from worker.grammar.matcher import CompiledConstraint
from worker.grammar.schemas import object_schema

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions  # there for type checkers only

MAX_BYTES = 256 << 10
"""Of one constraint. Gateways have their own, narrower bound."""

_NUM_THREADS = 2
_MAX_WAITING = 256
_MAX_KEPT = 128  # compiled constraints, the last used ones
_MAX_KEPT_BYTES = 512 << 10  # of what they were compiled from; compiled, they take some 200 times as much
_MAX_MESSAGE_CHARS = 200
_NOTHING_FOLLOWS = "NoExtension"  # in what the compiler says of a grammar without any text

_LIMITS = LLParserLimits(
    initial_lexer_fuel=1_000_000,  # some 20 ms
    step_lexer_fuel=100_000,  # some 7 ms a token, hardly ever used up
    step_max_items=20_000,
    max_lexer_states=25_000,  # 1 to 2 kB each
    max_grammar_size=250_000,
    verbose_errors=False,
)
# Models that write white space for ever are common, so runs of it are short; a schema may choose its own pattern.
_JSON_DEFAULTS: "JsonCompileOptions" = {"whitespace_pattern": r"[\x20\x0A\x0D\x09]{1,24}"}
# Whatever a schema says: keywords that can't be held to are refused and not ignored.
_JSON_OVERRIDES: "JsonCompileOptions" = {"lenient": False, "coerce_one_of": False}


class GrammarCompiler:
    """Owns the threads, and the constraints compiled last: the same one again costs a copy."""

    def __init__(self, tokenizer_json: bytes, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        """Return at once; the tokenizer is made ready on a thread."""
        self._vocab_size = vocab_size
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="grammar")
        self._tokenizer = self._threads.submit(_tokenizer, tokenizer_json, vocab_size, list(eos_token_ids))
        self._lock = threading.Lock()  # guards what follows
        self._kept: OrderedDict[TextConstraint, Constraint] = OrderedDict()
        self._kept_bytes = 0
        self._num_waiting = 0

    def compile(self, constraint: TextConstraint) -> Future[Constraint]:
        """Begin to compile. The result raises ConstraintError for what cannot be held to, or by no text but "".

        Raises TooManyConstraintsError.
        """
        with self._lock:
            if self._num_waiting >= _MAX_WAITING:
                raise TooManyConstraintsError(f"{self._num_waiting} constraints wait to be compiled")
            self._num_waiting += 1
        future = self._threads.submit(self._compiled, constraint)
        future.add_done_callback(self._no_longer_waiting)
        return future

    def close(self) -> None:
        """Drop what waits; what is being compiled ends by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _no_longer_waiting(self, _future: Future[Constraint]) -> None:
        with self._lock:
            self._num_waiting -= 1

    def _compiled(self, constraint: TextConstraint) -> Constraint:
        with self._lock:
            kept = self._kept.get(constraint)
            if kept is not None:
                self._kept.move_to_end(constraint)
                return kept
        # Two threads may compile the same: both are right.
        compiled = CompiledConstraint(_template(self._tokenizer.result(), constraint), self._vocab_size)
        with self._lock:
            self._keep(constraint, compiled)
        return compiled

    def _keep(self, constraint: TextConstraint, compiled: Constraint) -> None:
        if constraint not in self._kept:
            self._kept_bytes += constraint.num_bytes
        self._kept[constraint] = compiled
        while len(self._kept) > _MAX_KEPT or self._kept_bytes > _MAX_KEPT_BYTES:
            longest_unused, _ = self._kept.popitem(last=False)
            self._kept_bytes -= longest_unused.num_bytes


def _tokenizer(tokenizer_json: bytes, vocab_size: int, eos_token_ids: list[int]) -> LLTokenizer:
    if not eos_token_ids:
        raise ConstraintError("this model has no end-of-sequence token, so no completion of it can be held to one")
    try:
        return LLTokenizer(tokenizer_json.decode(), n_vocab=vocab_size, eos_token=eos_token_ids)
    except Exception as error:  # whatever it is, constraints can't be had with this tokenizer
        raise ConstraintError(f"this model's tokenizer does not allow for constraints: {error}") from error


def _template(tokenizer: LLTokenizer, constraint: TextConstraint) -> LLMatcher:
    if constraint.num_bytes > MAX_BYTES:
        raise ConstraintError(f"has {constraint.num_bytes} bytes; at most {MAX_BYTES} are allowed")
    matcher = LLMatcher(tokenizer, _grammar(constraint), log_level=0, limits=_LIMITS)
    if matcher.is_error():
        raise ConstraintError(f"can't be compiled: {_readable(matcher.get_error())}")
    # What the first token costs is paid here, and not by the engine.
    allowed = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint32)
    if _NOTHING_FOLLOWS in matcher.get_error() or not leaves_more(allowed, tokenizer.eos_tokens):
        raise ConstraintError("no text fulfils it, or none but the empty one")
    if matcher.is_error():
        raise ConstraintError(f"can't be held to: {_readable(matcher.get_error())}")
    _try_an_object(matcher, tokenizer, allowed)
    return matcher


def _try_an_object(template: LLMatcher, tokenizer: LLTokenizer, allowed: Uint32Array) -> None:
    """Where an object may begin, more than some 400 properties beside others are too much: said now, not by and by."""
    brace = next(iter(tokenizer.tokenize_str("{")), None)
    if brace is None or not allows(allowed, brace):
        return
    begun = template.deep_copy()
    if not begun.consume_token(brace) or begun.is_error():
        raise ConstraintError(f"can't be held to: {_readable(begun.get_error())}")


def _grammar(constraint: TextConstraint) -> str:
    match constraint:
        case JsonSchema(schema):
            return _json_grammar(object_schema(schema))
        case Regex(pattern):
            return LLMatcher.grammar_from_regex(pattern)
        case Choice(texts):
            # JSON leaves one control character as it is, which the compiler does not take.
            alternatives = sorted({json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f") for text in texts})
            return LLMatcher.grammar_from_lark("start: " + " | ".join(alternatives))


def _json_grammar(schema: str) -> str:
    try:
        return LLMatcher.grammar_from_json_schema(schema, defaults=_JSON_DEFAULTS, overrides=_JSON_OVERRIDES)
    except ValueError as error:  # it is nested too deeply for the compiler
        raise ConstraintError(f"can't be compiled: {_readable(str(error))}") from error


def _readable(message: str) -> str:
    """Return the line that says what is wrong; around it stands what the client has sent."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    telling = [line for line in lines if line.startswith("error:")] or lines
    return telling[0].removeprefix("error:").strip()[:_MAX_MESSAGE_CHARS] if telling else "no reason is given"

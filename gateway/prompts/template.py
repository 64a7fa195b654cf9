"""Chat templates as the Hugging Face hub writes them: Jinja2 with a few conventions, run in a sandbox.

Knows messages and text, no tokens. The conventions are those that the documentation of `transformers` describes:
trimmed blocks, loop controls, `raise_exception`, `strftime_now`, a `tojson` that leaves characters as they are,
`generation` blocks, and the special tokens by name.
"""

import datetime
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

# Every template treats these in one way or another, be it by raising.
_COMMON_ROLES = frozenset({"system", "user", "assistant"})
_ROLE_FORM = re.compile(r"[a-z][a-z0-9_]{0,31}")

# What faulty messages make a template raise besides Jinja's own errors.
_RENDER_ERRORS = (TypeError, ValueError, ArithmeticError, LookupError, AttributeError, RecursionError)


class TemplateRefusal(Exception):
    """The template does not render these messages; the text is for the client."""


class ChatTemplate:
    """One model's chat template, compiled once. Safe to use from several threads."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Raises jinja2.TemplateSyntaxError."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationBlocks]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        # A role that the template does not name could only be pasted between its markers: `"<|" + role + "|>"` would
        # let a client spell a marker of its own.
        self.roles = _COMMON_ROLES | _named_roles(environment.parse(source))
        self._template = environment.from_string(source)
        self._special_tokens = dict(special_tokens)

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Return the prompt that ends where the assistant's answer begins. Raises TemplateRefusal."""
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self._special_tokens,
            )
        except _RaisedError as error:
            raise TemplateRefusal(f"the model's chat template refuses: {error}") from None
        except (jinja2.TemplateError, *_RENDER_ERRORS) as error:
            raise TemplateRefusal(
                f"the model's chat template cannot render these messages ({type(error).__name__})"
            ) from None


def _named_roles(template: nodes.Template) -> set[str]:
    """Return the string literals that can be roles: all but the names of fields, as in `message["role"]`."""
    fields = {id(item.arg) for item in template.find_all(nodes.Getitem)}
    literals = [literal.value for literal in template.find_all(nodes.Const) if id(literal) not in fields]
    return {value for value in literals if isinstance(value, str) and _ROLE_FORM.fullmatch(value)}


class _RaisedError(jinja2.TemplateError):
    """The template called raise_exception."""


class _GenerationBlocks(Extension):
    """`{% generation %}` marks the assistant's text for training; when serving, its body is all that matters."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's interface

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: object) -> None:
    raise _RaisedError(str(message))


def _strftime_now(form: str) -> str:
    # Local time without a zone: what `transformers` shows its templates.
    return datetime.datetime.now().strftime(form)  # noqa: DTZ005


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

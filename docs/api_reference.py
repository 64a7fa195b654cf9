"""Writes docs/api.md from the .proto files and their comments, and from the errors that the gateway's code raises.

    python -m docs.api_reference [FILE]

Knows descriptors and no gRPC; a test compares the page with what this would write.
"""

import ast
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc_tools
from google.protobuf import descriptor_pb2
from grpc_tools import protoc

from gateway import errors
from gateway.errors import GatewayError, OverloadedError
from gateway.rpc.status import code_of

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "api.md"

# In this order: what clients use first.
FILES = {
    "radixgate/v1/inference.proto": "Inference",
    "radixgate/v1/admin.proto": "Administration",
    "radixgate/v1/worker.proto": "Between gateways and workers",
}

INTRODUCTION = """\
# API

<!-- Written by `make docs` from proto/ and gateway/; a test says when it is out of date. Change those instead. -->

gRPC, package `radixgate.v1`; the `.proto` files are in [proto/radixgate/v1](../proto/radixgate/v1), and gateways answer
reflection and health. Clients call [InferenceService](#inferenceservice) with `authorization: Bearer KEY`, operators
[AdminService](#adminservice) with an admin token. [WorkerService](#workerservice) is private. The OpenAI-compatible API
over HTTP is in [openai](openai.md).

In tables of fields, `optional` means that unset and zero are different; `one of` that at most one of its fields is set.
"""

ABOUT_ERRORS = """\
Every error has a gRPC status, a message for people, and details of `google.rpc`: `ErrorInfo` with a stable `reason` in
the domain `radixgate`; `BadRequest` names every faulty field with its limit; `QuotaFailure` the limit of the policy;
`ResourceInfo` what does not exist; `RetryInfo` when to try again, where that is known. Over HTTP
[the code](openai.md#errors) is the same reason in lower case.
"""

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {value: name.removeprefix("TYPE_").lower() for name, value in _Field.Type.items()}

# Numbers of fields in descriptors, of which paths to comments consist.
_MESSAGES, _ENUMS, _SERVICES, _INNER = 4, 5, 6, 2


def reference() -> str:
    files = descriptors()
    sections = [section for name, title in FILES.items() for section in _file_sections(files[name], title)]
    return "\n".join([INTRODUCTION, *sections, *_error_sections()])


def descriptors() -> Mapping[str, descriptor_pb2.FileDescriptorProto]:
    """Return the compiled .proto files, with their comments, by path."""
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "set"
        arguments = ["protoc", f"-I{ROOT / 'proto'}", f"-I{well_known}", "--include_source_info", f"-o{out}", *FILES]
        if protoc.main(arguments) != 0:
            raise SystemExit("the .proto files do not compile")
        found = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    return {file.name: file for file in found.file}


# ---------------------------------------------------------------------------------------------------------- messages


class _Comments:
    """What stands above each element of a file, by its path."""

    def __init__(self, file: descriptor_pb2.FileDescriptorProto) -> None:
        locations = file.source_code_info.location
        self._text = {tuple(location.path): location.leading_comments for location in locations}

    def of(self, *path: int) -> str:
        """As one line, so that it fits into a table; empty lines separate paragraphs elsewhere."""
        return " ".join(self._text.get(path, "").split()).replace("|", "\\|")


def _file_sections(file: descriptor_pb2.FileDescriptorProto, title: str) -> Iterator[str]:
    comments = _Comments(file)
    yield f"## {title}\n"
    for number, service in enumerate(file.service):
        yield from _service(service, comments, (_SERVICES, number))
    for number, message in enumerate(file.message_type):
        yield from _message(message, comments, (_MESSAGES, number))
    for number, enum in enumerate(file.enum_type):
        yield from _enum(enum, comments, (_ENUMS, number))


def _service(
    service: descriptor_pb2.ServiceDescriptorProto, comments: _Comments, path: tuple[int, ...]
) -> Iterator[str]:
    yield f"### {service.name}\n"
    yield f"{comments.of(*path)}\n"
    yield "| call | takes | returns | |\n|---|---|---|---|"
    for number, method in enumerate(service.method):
        takes = _streamed(method.input_type, stream=method.client_streaming)
        returns = _streamed(method.output_type, stream=method.server_streaming)
        yield f"| `{method.name}` | {takes} | {returns} | {comments.of(*path, _INNER, number)} |"
    yield ""


def _streamed(type_name: str, *, stream: bool) -> str:
    return f"stream of {_link(type_name)}" if stream else _link(type_name)


def _message(message: descriptor_pb2.DescriptorProto, comments: _Comments, path: tuple[int, ...]) -> Iterator[str]:
    yield f"### {message.name}\n"
    if said := comments.of(*path):
        yield f"{said}\n"
    if not message.field:
        yield "No fields.\n"
        return
    maps = {f".radixgate.v1.{message.name}.{entry.name}": entry for entry in message.nested_type}
    yield "| field | type | |\n|---|---|---|"
    for number, field in enumerate(message.field):
        said = comments.of(*path, _INNER, number)
        yield f"| `{field.name}` = {field.number} | {_type(field, maps)}{_presence(field, message)} | {said} |"
    yield ""


def _type(field: _Field, maps: Mapping[str, descriptor_pb2.DescriptorProto]) -> str:
    if field.type_name in maps:
        key, value = maps[field.type_name].field
        return f"map from {_type(key, {})} to {_type(value, {})}"
    name = _link(field.type_name) if field.type_name else _SCALARS[field.type]
    return f"list of {name}" if field.label == _Field.LABEL_REPEATED else name


def _presence(field: _Field, message: descriptor_pb2.DescriptorProto) -> str:
    if field.proto3_optional:
        return ", optional"
    return f", one of `{message.oneof_decl[field.oneof_index].name}`" if field.HasField("oneof_index") else ""


def _link(type_name: str) -> str:
    name = type_name.rpartition(".")[2]
    return f"[{name}](#{name.lower()})" if type_name.startswith(".radixgate.") else f"`{type_name.lstrip('.')}`"


def _enum(enum: descriptor_pb2.EnumDescriptorProto, comments: _Comments, path: tuple[int, ...]) -> Iterator[str]:
    yield f"### {enum.name}\n"
    if said := comments.of(*path):
        yield f"{said}\n"
    yield "| value | |\n|---|---|"
    for number, value in enumerate(enum.value):
        yield f"| `{value.name}` = {value.number} | {comments.of(*path, _INNER, number)} |"
    yield ""


# ------------------------------------------------------------------------------------------------------------ errors


@dataclass(frozen=True, slots=True)
class Reason:
    """What `google.rpc.ErrorInfo.reason` may be, and the status that comes with it."""

    name: str
    status: str


def reasons() -> list[Reason]:
    """Every reason that the gateway's code can give: those of error classes, and those named where one is raised."""
    classes = {name: kind for name, kind in _classes().items() if kind is not GatewayError}
    found = {Reason(kind.reason, _status(kind)) for kind in classes.values()}
    for path in sorted((ROOT / "gateway").rglob("*.py")):
        found |= set(_raised_in(ast.parse(path.read_text("utf-8")), classes))
    return sorted(found, key=lambda reason: (reason.status, reason.name))


def _classes() -> dict[str, type[GatewayError]]:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, GatewayError)]
    return {kind.__name__: kind for kind in kinds}


def _raised_in(tree: ast.AST, classes: Mapping[str, type[GatewayError]]) -> Iterator[Reason]:
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            continue
        if (kind := classes.get(call.func.id)) is not None:
            yield from (Reason(text, _status(kind)) for text in _named_reasons(call))
        if call.func.id == "Capacity":
            yield Reason(_texts(call.args[-1])[0], _status(OverloadedError))
        if call.func.id == "NotFoundError":
            yield from (
                Reason(f"{text.upper().replace(' ', '_')}_NOT_FOUND", "NOT_FOUND") for text in _texts(call.args[0])
            )


def _named_reasons(call: ast.Call) -> list[str]:
    return [text for keyword in call.keywords if keyword.arg == "reason" for text in _texts(keyword.value)]


def _texts(node: ast.AST) -> list[str]:
    """Return the strings that an expression may be."""
    constants = (each.value for each in ast.walk(node) if isinstance(each, ast.Constant))
    return [text for text in constants if isinstance(text, str)]


def _status(kind: type[GatewayError]) -> str:
    return code_of(kind.__new__(kind)).name


def _error_sections() -> Iterator[str]:
    yield "## Errors\n"
    yield ABOUT_ERRORS
    by_status: dict[str, list[str]] = defaultdict(list)
    for reason in reasons():
        by_status[reason.status].append(f"`{reason.name}`")
    yield "| status | reasons |\n|---|---|"
    for status, names in by_status.items():
        yield f"| `{status}` | {', '.join(names)} |"
    yield ""


if __name__ == "__main__":
    page = Path(sys.argv[1]) if len(sys.argv) > 1 else PAGE
    page.write_text(reference(), encoding="utf-8")

"""What a worker says of itself in the registry, and where it says that it can be reached."""

from collections.abc import Iterable
from typing import Final

from google.protobuf import json_format

from radixgate.v1 import worker_pb2
from worker.config import WorkerConfig
from worker.errors import WorkerStartError

MAX_BYTES: Final = 65_536  # readers take no more
_EVERYWHERE: Final = frozenset({"0.0.0.0", "[::]", "[0:0:0:0:0:0:0:0]"})  # noqa: S104 - refused, not bound
_MAX_ID_CHARS: Final = 253


def check_registry(config: WorkerConfig) -> None:
    """Raises WorkerStartError for what no gateway could use."""
    if config.registry.url is None:
        return
    if len(config.worker_id) > _MAX_ID_CHARS or not config.worker_id.isprintable():
        raise WorkerStartError(f"worker.worker_id must be 1 to {_MAX_ID_CHARS} printable characters to be registered")
    told = config.registry.advertise or config.listen
    if told.rpartition(":")[0] in _EVERYWHERE:
        where = "worker.registry.advertise" if config.registry.advertise else "worker.listen"
        raise WorkerStartError(
            f"{where} is {told}, which is no address that a gateway can reach: set worker.registry.advertise to one"
        )


def advertised(config: WorkerConfig, port: int) -> str:
    """Return where gateways reach a worker that listens on `port`; an advertised port 0 is that port."""
    host, _, said = (config.registry.advertise or config.listen).rpartition(":")
    return f"{host}:{int(said) or port}"


def registration(
    model: worker_pb2.GetModelResponse, address: str, start_time_s: float, adapters: Iterable[str]
) -> worker_pb2.WorkerRegistration:
    """Return what is registered of a worker; `model` is what it tells gateways itself."""
    told = worker_pb2.WorkerRegistration(
        worker_id=model.worker_id,
        address=address,
        incarnation=model.incarnation,
        model=model.model,
        model_revision=model.model_revision,
        context_length=model.context_length,
        page_size=model.page_size,
        device_slots=model.device_slots,
        host_slots=model.host_slots,
        adapters=sorted(set(adapters)),
        simulated=model.simulated,
    )
    told.start_time.FromMilliseconds(round(start_time_s * 1000))
    return told


def document(told: worker_pb2.WorkerRegistration) -> str:
    """Return the JSON that is written. What makes it too long are adapters, which gateways are told anyway."""
    text = json_format.MessageToJson(told, indent=None, preserving_proto_field_name=True)
    if len(text.encode()) > MAX_BYTES:
        short = worker_pb2.WorkerRegistration()
        short.CopyFrom(told)
        short.ClearField("adapters")
        text = json_format.MessageToJson(short, indent=None, preserving_proto_field_name=True)
    return text

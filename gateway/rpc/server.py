"""The gRPC server of a gateway: its options, its services, and how it stops."""

import asyncio

import grpc
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from gateway.config import GatewayLimits, ServerConfig
from gateway.rpc.admin import AdminServicer
from gateway.rpc.boundary import Boundary
from gateway.rpc.health import SERVICE_NAME as HEALTH
from gateway.rpc.health import HealthServicer
from gateway.rpc.inference import InferenceServicer
from metrics.listening import why_not_free
from radixgate.v1 import admin_pb2, admin_pb2_grpc, inference_pb2, inference_pb2_grpc
from transport.connections import hang_up

INFERENCE = inference_pb2.DESCRIPTOR.services_by_name["InferenceService"].full_name
ADMIN = admin_pb2.DESCRIPTOR.services_by_name["AdminService"].full_name
# Reachable without credentials: probes and tools need these two.
OPEN_SERVICES = frozenset({HEALTH, reflection.SERVICE_NAME})

# What has been said reaches its clients in this time, and health watches see the end, before the sockets close.
_LAST_WORDS_S = 0.2


class GatewayServer:
    """Owns the listening socket."""

    def __init__(
        self,
        config: ServerConfig,
        limits: GatewayLimits,
        boundary: Boundary,
        health: HealthServicer,
        inference: InferenceServicer,
        admin: AdminServicer | None,
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        """With `credentials` all services are reached by TLS, those that need no credential too; else in plain text."""
        self._boundary = boundary
        self._health = health
        self._credentials = credentials
        self._port: int | None = None  # while it listens
        self._server = grpc.aio.server(
            interceptors=[boundary],
            options=_options(config, limits),
        )
        names = [INFERENCE, *OPEN_SERVICES]
        inference_pb2_grpc.add_InferenceServiceServicer_to_server(inference, self._server)
        if admin is not None:
            admin_pb2_grpc.add_AdminServiceServicer_to_server(admin, self._server)
            names.append(ADMIN)
        health_pb2_grpc.add_HealthServicer_to_server(health, self._server)
        reflection.enable_server_reflection(names, self._server)

    async def start(self, listen: str) -> int:
        """Listen and return the port. Raises OSError, naming the address, if it cannot be had."""
        try:
            if self._credentials is not None:
                port = self._server.add_secure_port(listen, self._credentials)
            else:
                port = self._server.add_insecure_port(listen)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {listen}: {why_not_free(listen) or error}") from error
        await self._server.start()
        self._port = port
        return port

    async def drain(self, drain_s: float) -> bool:
        """Say NOT_SERVING, take no new calls, and wait for those in flight. Return whether all came to an end."""
        self._health.drain()
        self._boundary.calls.in_flight.close()
        try:
            async with asyncio.timeout(drain_s):
                await self._boundary.calls.in_flight.wait_idle()
        except TimeoutError:
            return False
        return True

    async def stop(self) -> None:
        """Close all connections. Calls that come until then are refused, and those on their way are UNAVAILABLE."""
        if self._port is not None:
            await asyncio.sleep(_LAST_WORDS_S)
            hang_up(self._port)
            self._port = None
        await self._server.stop(None)


def _options(config: ServerConfig, limits: GatewayLimits) -> list[tuple[str, int]]:
    return [
        ("grpc.so_reuseport", 0),  # two gateways on one port are an error, not a lottery
        ("grpc.max_receive_message_length", limits.max_message_bytes),
        ("grpc.max_send_message_length", limits.max_message_bytes),
        ("grpc.max_concurrent_streams", limits.max_streams_per_connection),
        ("grpc.keepalive_time_ms", int(config.keepalive_time_s * 1000)),
        ("grpc.keepalive_timeout_ms", int(config.keepalive_timeout_s * 1000)),
        # What gRPC really waits for the answer to a ping; a minute by default, whatever the line above says.
        ("grpc.http2.ping_timeout_ms", int(config.keepalive_timeout_s * 1000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", int(config.min_ping_interval_s * 1000)),
        ("grpc.max_connection_age_ms", int(config.max_connection_age_s * 1000)),
    ]

"""grpc.health.v1: Check and Watch, per service."""

import asyncio
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_Context = grpc.aio.ServicerContext[Any, Any]

_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

SERVICE_NAME = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name


class HealthServicer(health_pb2_grpc.HealthServicer):
    """Tells who asks. A watcher that reads slowly misses intermediate states and holds up nobody.

    Needs no credentials, so it says nothing but what the protocol asks for.
    """

    def __init__(self) -> None:
        self._statuses: dict[str, int] = {}
        self._changed = asyncio.Event()
        self._draining = False

    def set(self, service: str, serving: bool) -> None:
        """Set the status of a service; ignored once `drain` was called."""
        if not self._draining:
            self._put(service, _SERVING if serving else _NOT_SERVING)

    def drain(self) -> None:
        """Everything is NOT_SERVING from now on."""
        self._draining = True
        for service in list(self._statuses):
            self._put(service, _NOT_SERVING)

    def _put(self, service: str, status: int) -> None:
        self._statuses[service] = status
        # Wake all who wait on the old event; later ones wait on the new one.
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def Check(self, request: health_pb2.HealthCheckRequest, context: _Context) -> health_pb2.HealthCheckResponse:
        status = self._statuses.get(request.service)
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "unknown service")
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: _Context) -> None:
        told: int | None = None
        while True:
            changed = self._changed
            status = self._statuses.get(request.service, health_pb2.HealthCheckResponse.SERVICE_UNKNOWN)
            if status != told:
                await context.write(health_pb2.HealthCheckResponse(status=status))
                told = status
            else:
                await changed.wait()

"""What a change elsewhere means for this gateway: streams that must end, and what it remembers.

A credential is looked at when a call arrives, and again only when something about it or its tenant has changed. So a
key that comes to its time ends no stream by itself.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TypeVar

from gateway.errors import GatewayError, PermissionDeniedError, UnauthenticatedError
from gateway.identity.callers import Caller
from gateway.identity.changes import ChangeLog, key_subject, tenant_subject
from gateway.identity.remembering import RememberingDirectory
from gateway.identity.sessions import Session, Sessions
from gateway.identity.stores import ApiKey, TenantState

# Time for a call that was let in just before a change to have its session.
AGAIN_S = 0.4

_AT_A_TIME = 32
_KEY, _TENANT = key_subject(""), tenant_subject("")

ItemT = TypeVar("ItemT")


class Upkeep:
    """Looks again at what has changed. `follow` is to be called after each change, and AGAIN_S later."""

    def __init__(
        self,
        log: ChangeLog,
        directory: RememberingDirectory,
        sessions: Sessions,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._log = log
        self._directory = directory
        self._sessions = sessions
        self._now = now
        self._seen: int | None = None
        self._before: frozenset[str] | None = frozenset()  # of the last time; None: anything

    async def follow(self) -> None:
        """End the calls that may not go on, and read anew what is remembered. Raises UnavailableError."""
        changed = await self._log.since(self._seen)
        subjects = None if changed.subjects is None or self._before is None else changed.subjects | self._before
        await self._look_at_sessions(subjects)
        if changed.subjects is None:
            self._directory.forget_all()
        else:
            await self._look_at_memory(changed.subjects)
        self._seen, self._before = changed.number, changed.subjects

    async def _look_at_sessions(self, subjects: frozenset[str] | None) -> None:
        concerned: defaultdict[tuple[str, str], list[Session]] = defaultdict(list)
        for session in self._sessions.open_now():
            caller = session.caller
            if subjects is None or subjects & {tenant_subject(caller.tenant_id), caller.credential}:
                concerned[caller.tenant_id, caller.credential].append(session)
        for batch in _batches(concerned.values()):
            errors = await asyncio.gather(*(self._objection(alike[0].caller) for alike in batch))
            for alike, error in zip(batch, errors, strict=True):
                if error is not None:
                    for session in alike:
                        session.interrupt(error())

    async def _objection(self, caller: Caller) -> Callable[[], GatewayError] | None:
        """Return why a call may not go on, made anew for each."""
        if caller.credential.startswith(_KEY):
            known = await self._directory.ask_for_key(caller.credential.removeprefix(_KEY))
            if known is None or not self._is_valid(known.key.api_key):
                return _no_longer_valid
            tenant = known.tenant
        else:
            named = await self._directory.ask_for_tenant(caller.tenant_id)
            if named is None:
                return _no_longer_valid
            tenant = named
        if tenant.created_at != caller.tenant.created_at:
            return _no_longer_valid  # it was deleted, and somebody has made another one under its id
        return _suspended if tenant.state is TenantState.SUSPENDED else None

    def _is_valid(self, key: ApiKey) -> bool:
        return key.revoked_at is None and (key.expires_at is None or key.expires_at > self._now())

    async def _look_at_memory(self, subjects: frozenset[str]) -> None:
        for batch in _batches(subjects):
            await asyncio.gather(*(self._look_again(subject) for subject in batch))

    async def _look_again(self, subject: str) -> None:
        key_id, tenant_id = subject.removeprefix(_KEY), subject.removeprefix(_TENANT)
        if subject.startswith(_KEY) and self._directory.remembers_key(key_id):
            await self._directory.ask_for_key(key_id)
        elif subject.startswith(_TENANT) and self._directory.remembers_tenant(tenant_id):
            await self._directory.ask_for_tenant(tenant_id)


def _no_longer_valid() -> UnauthenticatedError:
    return UnauthenticatedError("the credential is no longer valid")


def _suspended() -> PermissionDeniedError:
    return PermissionDeniedError("the tenant is suspended", reason="TENANT_SUSPENDED")


def _batches(items: Iterable[ItemT]) -> list[list[ItemT]]:
    ordered = list(items)
    return [ordered[start : start + _AT_A_TIME] for start in range(0, len(ordered), _AT_A_TIME)]

"""What all checks have in common."""

from typing import Protocol

from cli.isolation_check.verdicts import Evidence


class Check(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def over(self) -> str:
        """The API that it speaks."""
        ...

    def run(self, evidence: Evidence) -> None:
        """Look, and write down what is seen. Raises Skipped, Refused, Unreachable or grpc.RpcError."""
        ...

"""What can be wrong with an adapter. Knows nothing of gRPC, and nothing of the engine."""


class AdapterError(Exception):
    """The adapter can't be used here, because of `field`: a file, a setting, a tensor or a module of it."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.message = message

"""Errors a client of the embedded engine can meet."""


class BadRequestError(Exception):
    """The request cannot be served as it is: HTTP 400 with this message."""


class EngineError(Exception):
    """The engine failed while computing: HTTP 500 with this message."""


class ClientGoneError(Exception):
    """The client closed the connection before its answer was ready."""

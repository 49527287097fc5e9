"""JSON replies: what becomes of numbers that JSON does not have, and how errors are shaped."""

import json
from typing import Any

from starlette.responses import Response

NOT_JSON = "Out of range float values are not JSON compliant"


def dump(payload: Any) -> bytes:
    """Compact JSON; NaN and infinities become null."""
    try:
        return _dump(payload)
    except ValueError:
        return _dump(_null_for_nonfinite(payload))


def json_reply(payload: Any, nan_json: str, native: bool) -> Response:
    """HTTP 200 with the payload; with `nan_json` "500", one that holds a NaN is an error, as it once was.

    `native` chooses the shape of that error: sglang's own API or the OpenAI one.
    """
    if nan_json == "500":
        try:
            body = _dump(payload)
        except ValueError:
            return native_error(NOT_JSON, 500) if native else openai_error(NOT_JSON, 500)
    else:
        body = dump(payload)
    return Response(body, media_type="application/json")


def native_error(message: str, status: int = 400) -> Response:
    """An error of the native API: {"error": {"message": ...}}."""
    return Response(dump({"error": {"message": message}}), status, media_type="application/json")


def openai_error(message: str, status: int = 400) -> Response:
    """An error of the OpenAI API: {"object": "error", "message": ...}."""
    kind = "BadRequestError" if status < 500 else "InternalServerError"
    payload = {"object": "error", "message": message, "type": kind, "param": None, "code": status}
    return Response(dump(payload), status, media_type="application/json")


def event(payload: Any) -> bytes:
    """One server-sent event."""
    return b"data: " + dump(payload) + b"\n\n"


DONE = b"data: [DONE]\n\n"


def _dump(payload: Any) -> bytes:
    return json.dumps(payload, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _null_for_nonfinite(value: Any) -> Any:
    if isinstance(value, float):
        return value if value - value == 0 else None  # inf - inf and NaN - NaN are NaN
    if isinstance(value, dict):
        return {key: _null_for_nonfinite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_null_for_nonfinite(item) for item in value]
    return value

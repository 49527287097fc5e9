"""JSON replies: what becomes of numbers that JSON does not have, and how errors are shaped."""

import json
from typing import Any

from starlette.responses import Response

NOT_JSON = "Out of range float values are not JSON compliant"
CLAMPED = -9999.0  # nats: what some servers put where a logprob is not finite


def dump(payload: Any, nan_json: str = "null") -> bytes:
    """Compact JSON; NaN and infinities become null, or -9999 where `nan_json` is "clamped"."""
    try:
        return _dump(payload)
    except ValueError:
        return _dump(_finite(payload, CLAMPED if nan_json == "clamped" else None))


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
        body = dump(payload, nan_json)
    return Response(body, media_type="application/json")


def native_error(message: str, status: int = 400) -> Response:
    """An error of the native API: {"error": {"message": ...}}."""
    return Response(dump({"error": {"message": message}}), status, media_type="application/json")


def openai_error(message: str, status: int = 400) -> Response:
    """An error of the OpenAI API: {"object": "error", "message": ...}."""
    kind = "BadRequestError" if status < 500 else "InternalServerError"
    payload = {"object": "error", "message": message, "type": kind, "param": None, "code": status}
    return Response(dump(payload), status, media_type="application/json")


def event(payload: Any, nan_json: str = "null") -> bytes:
    """One server-sent event; a NaN in it is an error in no stream."""
    return b"data: " + dump(payload, nan_json) + b"\n\n"


DONE = b"data: [DONE]\n\n"


def _dump(payload: Any) -> bytes:
    return json.dumps(payload, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def _finite(value: Any, instead: float | None) -> Any:
    if isinstance(value, float):
        return value if value - value == 0 else instead  # inf - inf and NaN - NaN are NaN
    if isinstance(value, dict):
        return {key: _finite(item, instead) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item, instead) for item in value]
    return value

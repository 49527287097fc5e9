"""The HTTP application: which path is answered by whom."""

from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from . import generate_api, info, openai_api, tokenize_api
from .service import Service

Handler = Callable[[Request], Awaitable[Response]]

_ROUTES: list[tuple[tuple[str, ...], list[str], Handler]] = [
    (("/generate",), ["POST", "PUT"], generate_api.generate),
    (("/v1/chat/completions",), ["POST"], openai_api.chat),
    (("/v1/completions",), ["POST"], openai_api.completions),
    (("/tokenize", "/v1/tokenize"), ["POST"], tokenize_api.tokenize),
    (("/detokenize", "/v1/detokenize"), ["POST"], tokenize_api.detokenize),
    (("/flush_cache",), ["GET", "POST"], info.flush_cache),
    (("/health", "/health_generate"), ["GET"], info.health),
    (("/ready", "/ping"), ["GET", "POST"], info.ready),
    (("/server_info", "/get_server_info"), ["GET"], info.server_info),
    (("/model_info", "/get_model_info"), ["GET"], info.model_info),
    (("/v1/models",), ["GET"], info.models),
    (("/v1/loads",), ["GET"], info.loads),
    (("/metrics",), ["GET"], info.metrics),
]


def create_app(service: Service) -> Starlette:
    """The application of a loaded server; handlers find it at `app.state.service`."""
    routes = [Route(path, handler, methods=methods) for paths, methods, handler in _ROUTES for path in paths]
    app = Starlette(routes=routes)
    app.state.service = service
    return app

"""Custom handlers: an HTTP request in a frame, answered by a model's method.

With FastAPI installed a handler is called through it, so that everything its
signature may say (Request, Depends, Header, models) works. Without it the
plain cases do: no arguments, the request, path and query values by name, and
a JSON body. A handler whose argument is the Request below is always called
plainly.

An answer that comes in pieces, as starlette's StreamingResponse or the Stream
below, is sent piece by piece where the server takes that.
"""

import asyncio
import inspect
import json
from typing import Any, AsyncIterator, Awaitable, Callable, Dict, List, Optional, Tuple
from typing import get_type_hints
from urllib.parse import parse_qsl

from pydantic import TypeAdapter, ValidationError

from .faults import Fault, pydantic_fault

MARK = "__custom_handler__"
Headers = List[Tuple[str, str]]
Answer = Tuple[int, Headers, bytes]
# Sends a piece of an answer: status and headers come with the first alone.
Send = Callable[[Optional[int], Headers, bytes], Awaitable[None]]


class Request:
    """As much of starlette's request as handlers without it need."""

    def __init__(self, call: dict, body: bytes):
        self.method: str = call.get("method", "GET")
        self.path: str = call.get("path", "/")
        self.path_params: Dict[str, str] = call.get("path_params") or {}
        self.query_params = dict(parse_qsl(call.get("query") or ""))
        self.headers = {k.lower(): v for k, v in call.get("headers") or []}
        self._body = body

    async def body(self) -> bytes:
        """The body's bytes."""
        return self._body

    async def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self._body)


class Stream:
    """An answer that comes in pieces."""

    def __init__(
        self,
        pieces: AsyncIterator[bytes],
        media_type: str,
        close: Callable[[], Any] = lambda: None,
    ):
        """``close`` is called once no more pieces are wanted."""
        self.close = close
        self.status_code = 200
        self.headers = {"content-type": media_type, "cache-control": "no-cache"}
        self.body_iterator = pieces


class Handler:
    """One of a model's custom handlers: where it answers, and its method."""

    def __init__(self, mark: Any, method: Callable):
        self.mark = mark
        self._method = method
        self._app: Any = None

    async def call(
        self, frame: dict, body: bytes, send: Optional[Send] = None
    ) -> Optional[Answer]:
        """The answer to one HTTP request; None if it was sent in pieces."""
        app = self._app or self._through_fastapi()
        if app is not None:
            return await _call_asgi(app, frame, body, send)
        result = await _call_plain(self._method, Request(frame, body))
        if hasattr(result, "body_iterator"):
            return await _pieces(result, send)
        return _plain_answer(result)

    def _through_fastapi(self) -> Any:
        if Request in get_type_hints(self._method).values():
            return None
        try:
            from fastapi import FastAPI
        except ImportError:
            return None
        self._app = FastAPI(openapi_url=None)
        self._app.add_api_route(
            self.mark.rest_path, self._method, methods=[self.mark.rest_method]
        )
        return self._app


def handlers(model: Any) -> Dict[str, Handler]:
    """The model's handlers by method name."""
    found = {}
    for name in dir(type(model)):
        mark = getattr(inspect.getattr_static(type(model), name), MARK, None)
        if mark is not None:
            found[name] = Handler(mark, getattr(model, name))
    return found


async def call(
    found: Dict[str, Handler], frame: dict, body: bytes, send: Optional[Send] = None
) -> Optional[Answer]:
    """Calls the handler that the frame names. With ``send`` an answer may be sent
    in pieces, and is None then."""
    handler = found.get(str(frame.get("handler")))
    if handler is None:
        name = frame.get("handler")
        raise Fault("not_found", f"the model has no handler called {name!r}")
    return await handler.call(frame, body, send)


async def _pieces(result: Any, send: Optional[Send]) -> Optional[Answer]:
    """Sends what an iterator yields, or collects it where it cannot be sent so."""
    status, headers = result.status_code, list(result.headers.items())
    pieces, collected = result.body_iterator, []
    try:
        if send is not None:
            await send(status, headers, b"")
        async for piece in pieces:
            if send is None:
                collected.append(piece)
            elif piece:
                await send(None, [], piece)
    finally:
        # An iterator that has not begun does not notice its end.
        getattr(result, "close", lambda: None)()
        end = getattr(pieces, "aclose", None)
        if end is not None:
            await end()
    return None if send is not None else (status, headers, b"".join(collected))


async def _call_asgi(
    app: Any, frame: dict, body: bytes, send: Optional[Send]
) -> Optional[Answer]:
    path = frame.get("path", "/")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": frame.get("method", "GET"),
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": (frame.get("query") or "").encode(),
        "headers": [(k.encode(), v.encode()) for k, v in frame.get("headers") or []],
    }
    status, headers, pieces, begun = 500, [], [], False
    given = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict:
        if not given:
            await asyncio.Event().wait()  # a client that leaves cancels the task
        return given.pop()

    async def answer(message: dict) -> None:
        nonlocal status, headers, begun
        if message["type"] == "http.response.start":
            status = message["status"]
            headers = [
                (k.decode("latin-1"), v.decode("latin-1")) for k, v in message["headers"]
            ]
            return
        piece, more = message.get("body", b""), message.get("more_body", False)
        if send is None or not (begun or more):
            pieces.append(piece)
        elif piece or not begun:
            await send(None if begun else status, [] if begun else headers, piece)
            begun = True

    await app(scope, receive, answer)
    return None if begun else (status, headers, b"".join(pieces))


async def _call_plain(method: Callable, request: Request) -> Any:
    arguments: Dict[str, Any] = {}
    hints = get_type_hints(method)
    for name, parameter in inspect.signature(method).parameters.items():
        hint = hints.get(name, parameter.annotation)
        if name in request.path_params:
            arguments[name] = request.path_params[name]
        elif hint is Request or name == "request" or _named_request(hint):
            arguments[name] = request
        elif name in request.query_params:
            arguments[name] = _typed(request.query_params[name], hint)
        elif parameter.default is inspect.Parameter.empty:
            arguments[name] = await _body_as(request, hint)
    result = method(**arguments)
    return await result if inspect.isawaitable(result) else result


def _named_request(hint: Any) -> bool:
    return getattr(hint, "__name__", "") == "Request"


def _typed(text: str, hint: Any) -> Any:
    try:
        return hint(text) if hint in (int, float) else text
    except ValueError as error:
        raise Fault("invalid", f"the query's value {text!r}: {error}") from error


async def _body_as(request: Request, hint: Any) -> Any:
    try:
        value = await request.json()
    except ValueError as error:
        raise Fault("invalid", f"the body is not JSON: {error}") from error
    if hint is inspect.Parameter.empty:
        return value
    try:
        return TypeAdapter(hint).validate_python(value)
    except ValidationError as error:
        raise pydantic_fault(error, "unprocessable", "the body") from error


def _plain_answer(result: Any) -> Answer:
    body = getattr(result, "body", None)
    if isinstance(body, bytes):
        items = result.headers.items()
        return result.status_code, [(k.lower(), v) for k, v in items], body
    if hasattr(result, "model_dump"):
        result = result.model_dump(mode="json")
    encoded = json.dumps(result, ensure_ascii=False, separators=(",", ":"))
    return 200, [("content-type", "application/json")], encoded.encode("utf-8")

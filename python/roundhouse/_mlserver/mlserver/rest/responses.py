"""The response a custom handler may return."""

from typing import Any, Dict, Optional

from ..codecs.json import encode_to_json_bytes

try:
    from starlette.responses import JSONResponse as _Base
except ImportError:

    class _Base:  # type: ignore[no-redef]
        """As much of starlette's response as a handler's answer needs."""

        media_type: Optional[str] = None

        def __init__(
            self,
            content: Any = None,
            status_code: int = 200,
            headers: Optional[Dict[str, str]] = None,
            media_type: Optional[str] = None,
            background: Any = None,
        ):
            self.status_code = status_code
            self.media_type = media_type or self.media_type
            self.headers = {k.lower(): v for k, v in (headers or {}).items()}
            if self.media_type:
                self.headers.setdefault("content-type", self.media_type)
            self.background = background
            self.body = self.render(content)

        def render(self, content: Any) -> bytes:
            raise NotImplementedError()


class Response(_Base):
    """A JSON response that can also carry bytes, as strings."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return encode_to_json_bytes(content)

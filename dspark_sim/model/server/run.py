"""Serving on this machine until told to stop."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import TYPE_CHECKING

import uvicorn

from dspark_sim.core import RunError, UserError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from dspark_sim.model.server.app import Service

HOSTS = ("127.0.0.1", "localhost", "::1")
_GRACE_S = 5


class Server(uvicorn.Server):
    """A uvicorn server whose end is the engine's: open responses end as aborted."""

    def __init__(self, service: Service) -> None:
        config = uvicorn.Config(
            service.app(),
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=_GRACE_S,
        )
        super().__init__(config)
        self._worker = service.worker
        self._worker.on_failure = self.leave

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop on a signal."""
        self._worker.stop()
        super().handle_exit(sig, frame)

    def leave(self) -> None:
        """Stop when asked to; may be called from any thread."""
        self._worker.stop()
        self.should_exit = True


def listen(host: str, port: int) -> socket.socket:
    """Return a socket on the loopback; port 0 takes a free one."""
    if host not in HOSTS:
        raise UserError(
            f"--host {host}: the server asks nobody for a password and listens on this machine "
            f"only; allowed: {', '.join(HOSTS)}"
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise UserError(f"--port {port}: cannot listen on {host} there ({error})") from None
    return listener


def serve(
    service: Service, listener: socket.socket, announce: Callable[[str], None] = lambda url: None
) -> None:
    """Serve on a socket until SIGINT or SIGTERM; `announce` is told the address.

    Raises
    ------
    RunError
        The engine failed.
    """
    address, port = listener.getsockname()[:2]
    announce(f"http://{f'[{address}]' if ':' in address else address}:{port}")
    with suppress(KeyboardInterrupt):  # uvicorn hands the signal on once everything is closed
        Server(service).run(sockets=[listener])
    if service.worker.failure is not None:
        raise RunError(f"the engine failed: {service.worker.failure}")

"""The listening socket, bound before anything slow is started."""

import errno
import ipaddress
import socket

from bramley.domain.errors import StartupError


def bind(host: str, port: int) -> socket.socket:
    """A bound TCP socket that does not listen yet. Port 0 takes a free one. Raises StartupError with one line."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (socket.gaierror, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no host name"
        raise StartupError(f"--host {host} is no address of this machine: {reason}.") from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # Bound is not enough: two servers can bind one port with SO_REUSEADDR as long as neither listens.
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise StartupError(_reason(host, port, error)) from None
    return listener


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{shown}:{port}"


def _reason(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"Port {port} is already in use on {host}; choose another one with --port."
    if error.errno == errno.EACCES:
        return f"Port {port} needs more rights than this user has; choose one above 1023 with --port."
    return f"Cannot listen on {host} port {port}: {error.strerror}."

"""How to reach a node: a URL or the user's own client becomes a recipe for connections.

redis-py (or valkey-py, through the user's client) does what it does well: URLs, TLS, Sentinel, credentials. Its command layer
is not used, and its retries are switched off: a resent SET NX is how a lock shuts itself out. Its time-outs are for one step
each, so the steps are ours (`dial`, `aio_dial`, `greeting`).
"""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from ...core.shown import shown
from ...errors import InterlockError, Unavailable, Unsupported, UsageError
from ...runtime.base import now
from .greeting import NoCredentials, Unwelcome
from .resp import ProtocolError

SHAPE = "Write redis://user:password@host:6379/0, with special characters of the password percent-encoded"
POLICY: dict[str, Any] = {
    "protocol": 2,
    "decode_responses": False,
    "retry_on_timeout": False,
    "retry_on_error": [],
    "health_check_interval": 0,
}
# Notices of planned maintenance arrive as pushes between replies, need RESP 3 and act on the user's pool: not on ours.
NOT_OURS = ("maint", "orig_", "oss_cluster", "event_dispatcher", "himport", "legacy_responses")

NEEDS_TLS = " (rediss:// needs a TLS port)"
OUR_OPTIONS = dict.fromkeys(("ttl", "timeout", "renew"), "Client and lock") | {"request_timeout": "Client"}


class Recipe:
    """Makes connections of one library and one colour, all alike. `address` has no secrets in it."""

    def __init__(self, connection_class: type[Any], options: dict[str, Any], address: str) -> None:
        self.address = address
        package = _package(connection_class)
        self._class = _bounded(connection_class, package)
        self._errors = import_module(f"{package}.exceptions")
        retry = import_module(f"{package}.retry").Retry
        no_backoff = import_module(f"{package}.backoff").NoBackoff
        kept = {key: value for key, value in options.items() if not key.startswith(NOT_OURS)}
        self._options = kept | POLICY | {"retry": retry(no_backoff(), 0)}
        base = import_module(f"{package}.connection").AbstractConnection
        if "driver_info" in inspect.signature(base.__init__).parameters:
            self._options["driver_info"] = None  # saves two round trips of CLIENT SETINFO
            self._options.pop("lib_name", None)
            self._options.pop("lib_version", None)

    def make(self, until: float) -> Any:
        """A connection object that is not connected yet and gives up at the moment `until`."""
        within = max(until - now(), 0.001)
        options = self._options | {"socket_timeout": within, "socket_connect_timeout": within}
        try:
            connection = self._class(**options)
            connection.until = until
            return connection
        except (TypeError, ValueError, self._errors.RedisError) as error:
            said = _words(error)
            for key, value in self._options.items():
                if isinstance(value, str) and len(value) > 1:
                    said = said.replace(value, f"<{key}>")  # whatever stands in a URL may be a secret
            raise UsageError(f"the options for {self.address} are wrong: {shown(said)}") from None

    def explain(self, error: BaseException) -> InterlockError | None:
        """What a failure to connect means; None if the exception is not one."""
        errors, where = self._errors, self.address
        if isinstance(error.__cause__, Unwelcome | ProtocolError | NoCredentials):  # redis-py wraps what it does not know
            error = error.__cause__
        if isinstance(error, NoCredentials):
            return Unavailable(f"no connection to {where}: {error}. Nothing was sent", backend=where, cause="error")
        if isinstance(error, errors.AuthenticationError | errors.AuthorizationError) or _stranger(error):
            return Unavailable(
                f"{where} refuses the credentials ({_said(error)}). Fix the user or the password",
                backend=where,
                cause="auth",
            )
        if isinstance(error, errors.TimeoutError | TimeoutError):
            tls = NEEDS_TLS if where.startswith("rediss:") else ""  # a plain server waits for the rest of what it does not get
            return Unavailable(
                f"{where} did not accept a connection in time{tls}. Is the address right and the server alive?",
                backend=where,
                cause="timeout",
            )
        if isinstance(error, errors.ResponseError) or (isinstance(error, Unwelcome) and not _later(error)):
            return UsageError(f"{where} refuses the connection's settings: {_said(error)}. Nothing was sent")
        if isinstance(error, errors.RedisError | OSError | UnicodeError | Unwelcome | ProtocolError):
            # UnicodeError: a host name that cannot be one
            tls = NEEDS_TLS if _no_tls_there(error) else ""
            return Unavailable(
                f"no connection to {where}: {_said(error)}{tls}. Is the address right and the server up?",
                backend=where,
                cause="refused" if _refused(error) else "closed",
            )
        return None


def recipe(where: Any, colour: str) -> Recipe:
    """From a URL, or from a redis-py or valkey-py client. Touches no network.

    Raises UsageError for a wrong URL or a client of the other colour, Unsupported for a cluster client.
    """
    return _from_url(where, colour) if isinstance(where, str) else _from_client(where, colour)


def _from_url(url: str, colour: str) -> Recipe:
    for ours, theirs in (("valkeys://", "rediss://"), ("valkey://", "redis://")):
        if url.lower().startswith(ours):
            url = theirs + url[len(ours) :]
    try:
        module = import_module("redis.connection" if colour == "blocking" else "redis.asyncio.connection")
    except ImportError:
        raise UsageError("redis:// needs the redis package: pip install 'interlock[redis]'") from None
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # its text may hold a piece of the password
        raise UsageError(
            "the port in the Redis URL is not a number from 0 to 65535. Several nodes are joined by commas, each with its "
            f"scheme: redis://a:6379,redis://b:6379. {SHAPE}"
        ) from None
    try:
        options = dict(module.parse_url(url))
    except ValueError as error:
        raise UsageError(f"not a usable Redis URL: {error} {SHAPE}") from None
    if parts.scheme == "unix":
        if not options.get("path"):
            raise UsageError("a unix socket URL names its path: unix:///run/redis.sock?db=0")
        address = f"unix://{options['path']}"
    else:
        if not parts.hostname:
            raise UsageError(f"the Redis URL names no host. {SHAPE}")
        number = parts.path.strip("/")
        if number and not number.isdigit():
            raise UsageError(f"what stands behind the host in a Redis URL is the number of a database. {SHAPE}")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        address = f"{parts.scheme}://{host}:{port or 6379}"
    if options.get("db"):
        address += f"/{options['db']}"
    connection_class = options.pop("connection_class", module.Connection)
    _refuse_unknown(options, connection_class)
    return Recipe(connection_class, options, address)


def _refuse_unknown(options: dict[str, Any], connection_class: type[Any]) -> None:
    makers = [vars(cls)["__init__"] for cls in connection_class.__mro__ if "__init__" in vars(cls)]
    known = {name for maker in makers for name in inspect.signature(maker).parameters}
    for name, value in options.items():
        if name not in known and not name.startswith(NOT_OURS):
            if "@" in str(value):  # the option may be the second half of a password with a ? in it
                raise UsageError(f"unknown option in the URL. {SHAPE}")
            hint = f"; {name}= is an argument of {OUR_OPTIONS[name]}" if name in OUR_OPTIONS else ""
            raise UsageError(
                f"unknown option {name!r} in the URL{hint}; nothing was sent. Take it out, or look at the options of "
                "redis-py's connections"
            )


def _from_client(client: Any, colour: str) -> Recipe:
    if not hasattr(client, "connection_pool"):
        raise Unsupported("cluster clients are not supported in this version; give the URL of one node")
    client_colour = "asyncio" if inspect.iscoroutinefunction(client.execute_command) else "blocking"
    if client_colour != colour:
        names = {"blocking": "Client takes redis.Redis", "asyncio": "AsyncClient takes redis.asyncio.Redis"}
        raise UsageError(f"the client object is {client_colour}, but {names[colour]}")
    pool = client.connection_pool
    options = dict(pool.connection_kwargs)
    host = options.get("host", "localhost")
    address = f"unix://{options['path']}" if "path" in options else f"redis://{host}:{options.get('port', 6379)}"
    if options.get("db"):
        address += f"/{options['db']}"
    return Recipe(pool.connection_class, options, address)


def _bounded(connection_class: type[Any], package: str) -> type[Any]:
    if inspect.iscoroutinefunction(connection_class.connect):
        from .aio_dial import bounded
    else:
        from .dial import bounded
    return bounded(connection_class, package)


def _package(connection_class: type[Any]) -> str:
    """redis or valkey: where the connection class, or the one it is derived from, comes from."""
    for cls in connection_class.__mro__:
        root = cls.__module__.partition(".")[0]
        if root in ("redis", "valkey"):
            return root
    raise UsageError(f"{connection_class.__name__} is not a connection of redis-py or valkey-py")


def _refused(error: BaseException | None) -> bool:
    """Whether nobody listens there; the client libraries wrap the system's error."""
    while error is not None and not isinstance(error, ConnectionRefusedError | FileNotFoundError):
        error = error.__cause__ or error.__context__
    return error is not None


def _no_tls_there(error: BaseException | None) -> bool:
    """Whether the other side answered our TLS greeting with something that is no TLS."""
    while error is not None and type(error).__name__ not in ("SSLError", "SSLEOFError", "SSLZeroReturnError"):
        error = error.__cause__ or error.__context__
    return error is not None


def _stranger(error: BaseException) -> bool:
    """Whether the server does not let this user in."""
    return isinstance(error, Unwelcome) and not _later(error) and (error.step == "AUTH" or error.code == "NOAUTH")


def _later(error: Unwelcome) -> bool:
    """Whether it is not about us: the server is busy, or is starting."""
    return error.code in ("LOADING", "BUSY", "MASTERDOWN", "TRYAGAIN") or "max number of clients" in str(error)


def _said(error: BaseException) -> str:
    return shown(_words(error))


def _words(error: BaseException) -> str:
    text = str(error).partition(", with args beginning with")[0]  # a server that knows no AUTH echoes the password there
    return text.rstrip(". ") or type(error).__name__

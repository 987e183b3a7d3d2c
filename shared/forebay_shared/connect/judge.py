"""What an error of a Redis client means: come back later, mend something, or the call is wrong."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator

from redis import exceptions


class Moved(exceptions.ConnectionError):
    """Another server serves this slot now; the call was not carried out."""


class NoPrimary(exceptions.ConnectionError):
    """Nobody can say where the primary is, or it is none any more: a failover, or an outage."""


class WrongPlace(exceptions.ConnectionError):
    """What answers is not what the URL says it is; the operator must mend the URL."""


class Unconfirmed(exceptions.TimeoutError):
    """The call was carried out, and not as many replicas as asked for had it in time."""


_AWAY = (
    exceptions.ConnectionError,  # also LOADING, a wrong password and "no connection available"
    exceptions.TimeoutError,
    exceptions.ClusterError,  # also CLUSTERDOWN and MASTERDOWN
    exceptions.SlotNotCoveredError,
    exceptions.ReadOnlyError,
    exceptions.TryAgainError,
    exceptions.AskError,
)
_LOGIN = (exceptions.AuthenticationError, exceptions.AuthorizationError)
# Codes that redis-py has no class for. BUSY: a script runs for too long, nothing else does.
_AWAY_CODES = frozenset(["MISCONF", "NOREPLICAS", "BUSY", "UNBLOCKED"])
_CODE = re.compile(r"(?:Command # .* caused error: \(['\"])?([A-Z]+)\b", re.DOTALL)
# Ends of a TLS connection that say nothing of its certificates.
_TLS_CUT = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError, ssl.SSLWantReadError)


def redis_away(exc: BaseException) -> bool:
    """Whether Redis cannot serve now and may later: repeat the call, fail no request for it.

    True for lost and refused connections, time-outs, LOADING, READONLY, MISCONF, NOREPLICAS,
    MASTERDOWN, CLUSTERDOWN, TRYAGAIN, ASK, BUSY, a failover, and a write that replicas did not
    confirm in time. After a time-out or a lost connection the call may have been carried out. A
    full Redis is `redis_full`.
    """
    if isinstance(exc, exceptions.MovedError):
        return False  # to a client of one server: see `why_unusable`
    return isinstance(exc, _AWAY) or _code(exc) in _AWAY_CODES


def redis_full(exc: BaseException) -> bool:
    """Whether Redis refused the call whole because it is at maxmemory."""
    return isinstance(exc, exceptions.OutOfMemoryError) or _code(exc) == "OOM"


def why_unusable(exc: BaseException) -> str:
    """What the operator must mend before Redis can serve this process; empty for anything else.

    A wrong user or password, certificates that do not fit, a URL of another kind than what answers.
    `redis_away` is mostly true as well: a running process keeps what it holds and waits for the
    operator, a starting one had better say so and end.
    """
    # redis-py wraps what goes wrong while it connects, and so do we.
    for one in _chain(exc):
        if isinstance(one, Moved):
            return ""
        if isinstance(one, _LOGIN):
            return "it refused user or password"
        if isinstance(one, WrongPlace):
            return str(one)
        if isinstance(one, exceptions.MovedError):
            return "it is a node of a cluster: name it with redis+cluster://"
        if isinstance(one, ssl.SSLError) and not isinstance(one, _TLS_CUT):
            return _tls_trouble(one)
    return ""


def _tls_trouble(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not trusted ({error.verify_message}): "
            "name the right CA with ?ssl_ca_certs="
        )
    return (
        f"TLS fails ({getattr(error, 'reason', None) or error}): does it speak TLS on this port, "
        "and want a certificate (?ssl_certfile= and ?ssl_keyfile=)?"
    )


def _chain(exc: BaseException) -> Iterator[BaseException]:
    """The error, and those that it came from."""
    one: BaseException | None = exc
    while one is not None:
        yield one
        one = one.__cause__ or one.__context__


def _code(exc: BaseException) -> str | None:
    """The first word of an error reply; redis-py puts its own words before it in a pipeline."""
    found = _CODE.match(str(exc)) if isinstance(exc, exceptions.ResponseError) else None
    return found and found[1]

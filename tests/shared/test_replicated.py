"""Calls that wait for replicas: confirmed, or in doubt and then repeated until confirmed."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from redis.asyncio import Redis
from redis.exceptions import ResponseError
from tests.sentinels import Watched
from tests.servers import Server

from forebay_shared.calls import Admission, Admitted, Ending, Intake, Leases, Refusal, Take
from forebay_shared.calls.library import unrefused
from forebay_shared.calls.replicated import Replicated
from forebay_shared.connect import Unconfirmed, connect, redis_away
from forebay_shared.ids import new_request_id
from forebay_shared.records import Envelope, Result
from forebay_shared.settings import PoolSettings

pytestmark = pytest.mark.anyio

WAITING = PoolSettings(wait_replicas=1, wait_ms=200)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A primary and a replica."""
    with Watched(tmp_path_factory.mktemp("servers"), sentinels=0) as watched:
        yield watched


@pytest.fixture
async def redis(servers: Watched) -> AsyncIterator[Redis]:
    async with connect(servers.servers[0].url) as client:
        await client.flushall()
        yield client


@pytest.fixture
async def library(redis: Redis) -> Replicated:
    one = Replicated(redis, "default", WAITING, lambda: WAITING)
    await one.start()
    return one


@pytest.fixture
def behind(servers: Watched) -> Iterator[Server]:
    """The replica, which has stopped listening to its primary; it goes on after the test."""
    servers.servers[1].pause()
    yield servers.servers[1]
    servers.servers[1].resume()


def one(number: int = 0) -> Admission:
    envelope = Envelope(path="/v1/completions", model="sim", body=b"{}", stream=False)
    return Admission(new_request_id("default"), "normal", "ann", envelope, 60_000 + number)


async def test_admit_returns_once_the_replica_has_it(library: Replicated, servers: Watched) -> None:
    (answer,) = await Intake(library).admit([one()])
    assert isinstance(answer, Admitted) and answer.state == "queued"
    async with connect(servers.servers[1].url) as replica:
        assert await replica.hget(f"fb:{{default}}:request:{answer.request_id}", "state")


async def test_admit_without_replica_is_in_doubt(library: Replicated, behind: Server) -> None:
    """It was carried out all the same, and a repeat finds it as soon as the replica has it."""
    intake, wanted = Intake(library), one()
    with pytest.raises(Unconfirmed) as caught:
        await intake.admit([wanted])
    assert redis_away(caught.value)
    assert await intake.show(wanted.request_id)
    behind.resume()
    (answer,) = await intake.admit([wanted])
    assert isinstance(answer, Admitted) and answer.repeated


async def test_repeat_on_another_connection_does_not_pass_for_confirmed(
    library: Replicated, redis: Redis, behind: Server
) -> None:
    """Redis waits for what a connection wrote, and a repeat writes nothing of its own."""
    intake, wanted = Intake(library), one()
    for _ in range(3):
        with pytest.raises(Unconfirmed):
            await intake.admit([wanted])
        await redis.connection_pool.disconnect()


async def test_finish_is_repeated_until_the_replica_has_it(
    library: Replicated, behind: Server
) -> None:
    behind.resume()
    wanted, leases = one(), Leases(library)
    await Intake(library).admit([wanted])
    taken = await leases.take(Take("w", 1, 8, 8, {"normal": 8}))
    ending = Ending(wanted.request_id, taken.grants[0].call, Result("done", status=200, body=b"x"))
    behind.pause()
    for _ in range(2):
        with pytest.raises(Unconfirmed):
            await leases.finish("w", [ending])
    behind.resume()
    assert await leases.finish("w", [ending]) == ["ok"]
    words, more = await leases.finish_take([ending], Take("w", 2, 8, 8, {"normal": 8}))
    assert (words, more.grants) == (["ok"], [])


async def test_several_admits_wait_together(library: Replicated, behind: Server) -> None:
    """In doubt all of them, and confirmed all of them by the repeat, each with its answer."""
    intake, first, second = Intake(library), one(), one()
    for _ in range(2):
        with pytest.raises(Unconfirmed):
            await intake.admit_together([[first], [second]])
    behind.resume()
    answers = unrefused(await intake.admit_together([[first], [second]]))
    assert answers == [[Admitted(one.request_id, "queued", True)] for one in (first, second)]


async def test_a_refused_admit_confirms_no_other(library: Replicated, behind: Server) -> None:
    bad, good = one(), one()
    object.__setattr__(bad, "weight", 0)
    intake = Intake(library)
    with pytest.raises(Unconfirmed):
        await intake.admit_together([[bad], [good]])
    behind.resume()
    refused, admitted = await intake.admit_together([[bad], [good]])
    assert isinstance(refused, ResponseError) and str(refused).startswith("BADCALL")
    assert admitted == [Admitted(good.request_id, "queued", True)]


async def test_what_a_refused_proof_lacks_is_repaired(
    library: Replicated, redis: Redis, behind: Server
) -> None:
    """The self-test of a call in doubt is refused: mended as any other, and the call repeated."""
    intake, wanted = Intake(library), one()
    with pytest.raises(Unconfirmed):
        await intake.admit([wanted])
    behind.resume()
    await redis.function_flush()
    await redis.flushall()
    (answer,) = await intake.admit([wanted])
    assert isinstance(answer, Admitted) and not answer.repeated


async def test_refusal_of_redis_is_told_as_it_is(library: Replicated, redis: Redis) -> None:
    """Functions and layout that are missing are repaired; other errors keep their words."""
    await redis.function_flush()
    await redis.flushall()
    assert isinstance((await Intake(library).admit([one()]))[0], Admitted)
    with pytest.raises(Exception, match=r"^BADCALL") as caught:
        await library.call("admit", "", 1, "id")
    assert "FCALL" not in str(caught.value)


async def test_takes_and_renewals_wait_for_nobody(library: Replicated, behind: Server) -> None:
    assert (await Leases(library).take(Take("w", 1, 8, 8, {"normal": 8}))).grants == []


async def test_without_the_setting_nothing_waits(redis: Redis, behind: Server) -> None:
    plain = Replicated(redis, "default", None, PoolSettings)
    await plain.start()
    (answer,) = await Intake(plain).admit([one()])
    assert isinstance(answer, Admitted) and not isinstance(answer, Refusal)

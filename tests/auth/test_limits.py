"""Rate limits: how often an address or a token may try, and what a failure costs."""

from collections.abc import Callable

import pytest

from agentpost.auth.limits import Limits, Rate, RateLimited, address_key, address_rate, token_key, token_rate
from agentpost.protocol.errors import Code
from agentpost.testing import FakeClock, MemoryStore
from tests.auth.building import ADDRESS, NODE, PLENTY, SEED, Gateway, Visitor
from tests.store.building import refused

KEY = address_key(ADDRESS)


def a_limit(clock: FakeClock, *, burst: float = 3, per_second: float = 1, most: int = 100) -> Limits:
    rate = Rate(burst=burst, per_second=per_second, failure_cost=2)
    return Limits(clock, per_address=rate, per_token=PLENTY, most_buckets=most)


def wait_of(limits: Limits, key: str = KEY) -> int:
    with pytest.raises(RateLimited) as caught:
        limits.attempt([key])
    assert (caught.value.code, caught.value.status) == (Code.RATE_LIMITED, 429)
    return caught.value.retry_after_seconds


@pytest.mark.req("AUTH-6")
def test_a_burst_is_free_and_then_the_rate_counts() -> None:
    """After the burst one has to wait, and is told how long."""
    clock = FakeClock()
    limits = a_limit(clock)
    for _ in range(3):
        limits.attempt([KEY])
    assert wait_of(limits) == 1
    clock.advance(999)
    assert wait_of(limits) == 1
    clock.advance(1)
    limits.attempt([KEY])
    assert wait_of(limits) == 1


@pytest.mark.req("AUTH-6")
def test_whoever_waits_as_long_as_told_gets_through() -> None:
    """The time in the refusal is enough, whatever the debt."""
    for failures in range(6):
        clock = FakeClock()
        limits = a_limit(clock, per_second=0.3)
        limits.attempt([KEY])
        for _ in range(failures):
            limits.failed([KEY])
        for _ in range(3):
            try:
                limits.attempt([KEY])
            except RateLimited as limited:
                clock.advance(limited.retry_after_seconds * 1000)
                limits.attempt([KEY])


@pytest.mark.req("AUTH-6")
def test_a_failure_costs_more_than_a_success() -> None:
    """And may leave a debt, which has its bound."""
    clock = FakeClock()
    limits = a_limit(clock)
    limits.attempt([KEY])
    limits.failed([KEY])
    assert wait_of(limits) == 1
    for _ in range(1000):
        limits.failed([KEY])
    assert wait_of(limits) == 4


@pytest.mark.req("AUTH-6")
def test_addresses_do_not_pay_for_each_other() -> None:
    """Except within one IPv6 network, which is one customer's, and for the two spellings of an IPv4 address."""
    limits = a_limit(FakeClock(), burst=1)
    limits.attempt([address_key("192.0.2.1")])
    limits.attempt([address_key("192.0.2.2")])
    limits.attempt([address_key("2001:db8::1")])
    limits.attempt([address_key("2001:db8:0:1::1")])
    limits.attempt([address_key("a-unix-socket")])
    for same in ("::ffff:192.0.2.1", "2001:db8::ffff", "2001:db8:0:1::2%eth0", "a-unix-socket"):
        wait_of(limits, address_key(same))


@pytest.mark.req("AUTH-6")
def test_nothing_is_taken_where_one_of_two_buckets_is_empty() -> None:
    """A refused attempt costs nothing on the other side."""
    clock = FakeClock()
    limits = Limits(clock, per_address=Rate(burst=5, per_second=1), per_token=Rate(burst=1, per_second=1))
    token = token_key(b"hash")
    limits.attempt([KEY, token])
    for _ in range(10):
        with refused(Code.RATE_LIMITED):
            limits.attempt([KEY, token])
    for _ in range(4):
        limits.attempt([KEY])


@pytest.mark.req("AUTH-6")
def test_a_clock_that_steps_changes_nothing() -> None:
    """Neither back nor forward: only time that passed counts."""
    clock = FakeClock()
    limits = a_limit(clock, burst=1)
    limits.attempt([KEY])
    clock.step_back(3_600_000)
    assert wait_of(limits) == 1
    clock.advance(1000)
    limits.attempt([KEY])


def test_the_number_of_buckets_is_bounded() -> None:
    """A flood of addresses does not fill the memory; whoever is busy keeps his bucket."""
    limits = a_limit(FakeClock(), burst=1, most=10)
    limits.attempt([KEY])
    for number in range(1000):
        limits.attempt([address_key(f"10.0.{number // 250}.{number % 250}")])
        wait_of(limits)
    assert len(limits) == 10


@pytest.mark.req("AUTH-6")
@pytest.mark.parametrize(("rate", "attempts", "back_after_ms"), [(address_rate, 6, 30_000), (token_rate, 6, 60_000)])
def test_a_number_of_attempts_is_a_burst_that_comes_back(
    rate: Callable[[int], Rate], attempts: int, back_after_ms: int
) -> None:
    """All of them at once, none more, and all again when the time is over."""
    clock = FakeClock()
    limits = Limits(clock, per_address=rate(attempts), per_token=PLENTY)
    for _ in range(3):
        for _ in range(attempts):
            limits.attempt([KEY])
        wait_of(limits)
        clock.advance(back_after_ms)


def a_strict_gateway() -> Gateway:
    gateway = Gateway(MemoryStore(node_id=SEED, epoch="first"))
    rate = Rate(burst=10, per_second=1, failure_cost=4)
    return Gateway(gateway.store, options={"limits": Limits(gateway.clock, per_address=rate, per_token=rate)})


@pytest.mark.req("AUTH-6")
async def test_guessing_tokens_is_slow() -> None:
    """After a few wrong ones an address is refused, whatever it brings."""
    gateway = a_strict_gateway()
    visitor = Visitor(gateway)
    invite = await gateway.invite()
    for number in range(2):
        with refused(Code.INVALID_TOKEN):
            await visitor.ticket(f"agp_{number}")
    with refused(Code.RATE_LIMITED) as caught:
        await visitor.ticket(invite.token)
    assert isinstance(caught.value, RateLimited)
    assert caught.value.retry_after_seconds >= 1


@pytest.mark.req("AUTH-6")
async def test_a_token_that_is_tried_from_everywhere_is_limited_too() -> None:
    """A new address for each attempt does not help."""
    gateway = a_strict_gateway()
    visitor = Visitor(gateway)
    token = (await gateway.invite()).token
    codes: list[Code] = []
    for number in range(4):
        request = visitor.request(token, node_proof=None)
        with pytest.raises(Exception) as caught:  # noqa: PT011 - the code is what is looked at
            await gateway.joining.exchange(request, address=f"192.0.2.{number}")
        codes.append(caught.value.code)
    assert codes == [Code.NODE_PROOF_REQUIRED] * 2 + [Code.RATE_LIMITED] * 2


@pytest.mark.req("AUTH-6")
async def test_tickets_and_challenges_are_limited_as_well() -> None:
    """Each door has its own measure, so that one does not block the other."""
    gateway = a_strict_gateway()
    for _ in range(2):
        with refused(Code.INVALID_TICKET):
            await gateway.redeem("nonsense")
    with refused(Code.RATE_LIMITED):
        await gateway.redeem("nonsense")
    for _ in range(10):
        gateway.joining.challenge(NODE, address=ADDRESS)
    with refused(Code.RATE_LIMITED):
        gateway.joining.challenge(NODE, address=ADDRESS)
    await Visitor(gateway).gateway.invite()


async def test_a_row_of_rate_limits_is_one_line_in_the_audit_log() -> None:
    """A flood does not fill the disk; when it has ended, the next one is a new line."""
    gateway = a_strict_gateway()

    async def flood() -> None:
        for _ in range(50):
            with pytest.raises(Exception, match=r"too many|ticket"):
                await gateway.redeem("nonsense")

    await flood()
    codes = [entry.detail["code"] for entry in gateway.store.audit_log()]
    assert codes == ["invalid_ticket"] * 2 + ["rate_limited"]
    gateway.clock.advance(3_600_000)
    await flood()
    codes = [entry.detail["code"] for entry in gateway.store.audit_log()]
    assert codes.count("rate_limited") <= 2

"""Allowances of wrong attempts."""

from space.control.attempts import Attempts


class _Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_an_allowance_is_spent_and_comes_back() -> None:
    time = _Time()
    attempts = Attempts(3, 0.5, time)
    for _ in range(3):
        assert attempts.allowed("1.2.3.4")
        attempts.wrong("1.2.3.4")
    assert not attempts.allowed("1.2.3.4")
    assert attempts.allowed("1.2.3.5")
    time.now = 1.9
    assert not attempts.allowed("1.2.3.4")
    time.now = 2.0
    assert attempts.allowed("1.2.3.4")
    attempts.wrong("1.2.3.4")
    assert not attempts.allowed("1.2.3.4")
    time.now = 1000.0
    for _ in range(3):
        assert attempts.allowed("1.2.3.4")
        attempts.wrong("1.2.3.4")
    assert not attempts.allowed("1.2.3.4")


def test_an_address_of_ipv6_stands_for_its_network() -> None:
    attempts = Attempts(1, 0.0)
    attempts.wrong("2001:db8::1")
    assert not attempts.allowed("2001:db8::ffff:1")
    assert attempts.allowed("2001:db8:0:1::1")
    assert attempts.allowed("no address")


def test_it_is_bounded() -> None:
    attempts = Attempts(1, 0.0)
    for number in range(20_000):
        attempts.wrong(f"10.0.{number // 256}.{number % 256}")
    assert len(attempts._spent) == 10_000
    assert attempts.allowed("10.0.0.0"), "the oldest is forgotten"
    assert not attempts.allowed("10.0.78.31")

"""The fingerprint of a processor: equal where a memory snapshot may be taken from one host to the other."""

from space.host import cpu

ONE = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 85
model name\t: Some CPU @ 2.50GHz
stepping\t: 7
microcode\t: 0x5003605
cpu MHz\t\t: 2500.000
flags\t\t: fpu vme avx2

processor\t: 1
vendor_id\t: GenuineIntel
"""


def test_clock_rate_and_order_of_flags_make_no_difference() -> None:
    assert cpu.fingerprint(ONE.replace("2500.000", "3100.123").replace("fpu vme", "vme fpu")) == cpu.fingerprint(ONE)


def test_another_model_stepping_or_feature_does() -> None:
    others = [ONE.replace("85", "86"), ONE.replace(": 7", ": 6"), ONE.replace(" avx2", ""), ONE.replace("605", "604")]
    assert len({cpu.fingerprint(text) for text in (ONE, *others)}) == len(others) + 1


def test_of_this_host() -> None:
    assert len(cpu.fingerprint()) == 12

"""A link is read from what a user writes, and said in words."""

import pytest

from distdl_jupyter.azure.vm_sizes import link_of
from distdl_jupyter.core import link
from distdl_jupyter.core.errors import InvalidSpec


@pytest.mark.parametrize(
    ("text", "bits", "latency", "shown"),
    [
        ("1gbit", 1e9, 0.0, "1 Gb/s"),
        ("1Gbit/s, 0.2ms", 1e9, 2e-4, "1 Gb/s, 0.2 ms"),
        ("500mbit,50us", 5e8, 5e-5, "500 Mb/s, 50 µs"),
        ("NC64as_T4_v3", 32e9, 0.0, "NC64as_T4_v3: 32 Gb/s"),
        ("standard_nc64as_t4_v3,1ms", 32e9, 1e-3, "NC64as_T4_v3: 32 Gb/s, 1 ms"),
    ],
)
def test_a_rate_or_a_size_and_a_latency_are_a_link(text, bits, latency, shown):
    found = link_of(text)
    assert (found.bits_per_second, found.latency_seconds, str(found)) == (bits, pytest.approx(latency), shown)


def test_the_source_of_rate_and_latency_is_said():
    assert link_of("1gbit,1ms").source == "set by you"
    size = link_of("NC64as_T4_v3").source
    assert size.startswith("Ethernet rate: ")
    assert ".md@" in size
    assert size.endswith("latency: not documented")


@pytest.mark.parametrize("text", ["", "0mbit", "5", "1gbit,fast", "1gbit,1ms,1ms", "1.2.3gbit"])
def test_what_is_no_link_is_refused_with_an_example(text):
    with pytest.raises(InvalidSpec, match="is not a valid link") as caught:
        link.words(text)
    assert "NC64as_T4_v3,0.2ms" in caught.value.hint


def test_a_size_without_a_stated_rate_is_refused():
    with pytest.raises(InvalidSpec, match="The network rate of NC24r is not documented"):
        link_of("NC24r")

"""Sizes and cores as Kubernetes writes them."""

import pytest

from towline.api.quantities import parse_bytes, parse_millis
from towline.api.sandboxclass import Resources


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1", 1), ("1k", 1000), ("1Ki", 1024), ("1.5Gi", 1_610_612_736), ("512Mi", 536_870_912), ("0.3", 1)],
)
def test_a_size_is_read_as_bytes(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize(("text", "expected"), [("2", 2000), ("0.5", 500), ("1.25", 1250), ("500m", 500), ("1m", 1)])
def test_cores_are_read_as_thousandths(text: str, expected: int) -> None:
    assert parse_millis(text) == expected


@pytest.mark.parametrize("text", ["", "-1", "1 Gi", "1gi", "1e3", "Mi", "1.Mi", "0", "0Mi", "500m", "٣Mi", "1Mi\n"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["", "-1", "1k", "0.5m", "0", "0m", "1.0001", "1\n"])
def test_what_is_no_amount_of_cores_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_millis(text)


def test_a_whole_number_needs_no_quotes_and_a_fraction_does() -> None:
    assert Resources.from_wire({"cpu": 2, "memory": 1048576}) == Resources(cpu="2", memory="1048576")
    with pytest.raises(ValueError, match=r'is 0.5; expected a whole number, or the fraction as text: "0.5"'):
        Resources.from_wire({"cpu": 0.5})

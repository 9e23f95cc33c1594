"""Speeds that are kept between commands: read back as written, and never in the way."""

from pathlib import Path

import pytest

from cyberkv.cli.rates import FETCH, FILE_NAME, MOST_RATES, keep_rate, keep_rates, read_rate, read_rates
from cyberkv.cybergraph.cid import Cid


def model(number: int) -> Cid:
    return Cid.of(b"%d" % number, "dag-cbor", "sha2-256")


def test_each_model_has_the_speed_of_its_last_prefill(tmp_path: Path) -> None:
    assert read_rate(tmp_path, model(1)) is None
    keep_rate(tmp_path, model(1), 481.5)
    keep_rate(tmp_path, model(2), 10.0)
    keep_rate(tmp_path, model(1), 500.25)
    assert [read_rate(tmp_path, model(number)) for number in (1, 2, 3)] == [500.25, 10.0, None]
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "rates", ["", "{", "[]", "7", "null", '{"1": null}', '{"1": "fast"}', '{"1": %s}' % ("9" * 400), "[" * 100_000]
)
def test_a_damaged_file_is_as_good_as_none(tmp_path: Path, rates: str) -> None:
    (tmp_path / FILE_NAME).write_text(f'{{"prefill_tokens_s": {rates}}}')
    assert read_rates(tmp_path) == {}
    keep_rate(tmp_path, model(1), 2.0)
    assert read_rate(tmp_path, model(1)) == 2.0


@pytest.mark.parametrize("rate", ["0", "-1", "NaN", "Infinity", "1e999"])
def test_a_speed_that_cannot_be_is_left_out(tmp_path: Path, rate: str) -> None:
    (tmp_path / FILE_NAME).write_text(f'{{"prefill_tokens_s": {{"{model(1)}": {rate}, "{model(2)}": 3.5}}}}')
    assert read_rates(tmp_path) == {str(model(2)): 3.5}


def test_what_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    keep_rate(tmp_path / "none", model(1), 2.0)
    assert list(tmp_path.iterdir()) == []


def test_the_file_stays_small(tmp_path: Path) -> None:
    rows = ", ".join(f'"{number}": 1.5' for number in range(MOST_RATES))
    (tmp_path / FILE_NAME).write_text(f'{{"prefill_tokens_s": {{{rows}}}}}')
    keep_rate(tmp_path, model(1), 2.0)
    assert len(read_rates(tmp_path)) == MOST_RATES
    assert read_rate(tmp_path, model(1)) == 2.0


def test_kinds_of_speeds_are_kept_side_by_side(tmp_path: Path) -> None:
    keep_rate(tmp_path, model(1), 2.0)
    keep_rates(tmp_path, FETCH, {"http://a": 3.0, "http://b": 4.0})
    keep_rate(tmp_path, model(2), 5.0)
    keep_rates(tmp_path, FETCH, {"http://a": 6.0})
    assert read_rates(tmp_path) == {str(model(1)): 2.0, str(model(2)): 5.0}
    assert read_rates(tmp_path, FETCH) == {"http://a": 6.0, "http://b": 4.0}

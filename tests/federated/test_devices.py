"""Speeds: drawn by address, or read from files that say exactly what they should."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rayfed_ssl.base.schema import UserError
from rayfed_ssl.federated.devices import make_devices
from rayfed_ssl.settings.system import LogNormal, SystemConfig


def test_what_is_not_given_takes_no_time() -> None:
    devices = make_devices(SystemConfig(), 0, 3)
    assert devices.seconds(1, 10**9, 10**6, 10**9) == 0


def test_seconds_are_latency_plus_transfers_plus_work() -> None:
    system = SystemConfig(seconds_per_image=0.5, down_mbps=8, up_mbps=4, latency_s=3)
    devices = make_devices(system, 0, 2)
    assert devices.seconds(0, 2_000_000, 10, 1_000_000) == pytest.approx(3 + 2 + 5 + 2)
    assert devices.seconds(0, 0, 10, 0) == pytest.approx(5)  # nothing crosses: no exchange to be late in


def test_log_normal_draws_have_their_median_and_spread_and_an_address() -> None:
    system = SystemConfig(seconds_per_image=LogNormal(median=0.02, sigma=0.5), latency_s=LogNormal(median=1, sigma=0.5))
    many = make_devices(system, 7, 20_000)
    logs = np.log(many.seconds_per_image)
    assert np.median(logs) == pytest.approx(math.log(0.02), abs=0.02)
    assert logs.std() == pytest.approx(0.5, abs=0.02)
    few = make_devices(system, 7, 10)
    np.testing.assert_array_equal(
        few.seconds_per_image, many.seconds_per_image[:10]
    )  # whichever other clients take part
    assert abs(np.corrcoef(logs, np.log(many.latency))[0, 1]) < 0.03  # an address for each quantity
    assert (make_devices(system, 8, 10).seconds_per_image != few.seconds_per_image).all()


def write(path: Path, **columns: list[float]) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


def test_a_devices_file_has_its_columns_and_leaves_the_rest(tmp_path: Path) -> None:
    path = write(tmp_path / "d.parquet", client=[2, 0, 1], seconds_per_image=[0.3, 0.1, 0.2], up_mbps=[24.0, 8.0, 16.0])
    devices = make_devices(SystemConfig(devices=path, latency_s=5), 0, 3)
    np.testing.assert_array_equal(devices.seconds_per_image, [0.1, 0.2, 0.3])
    np.testing.assert_array_equal(devices.up, [1e6, 2e6, 3e6])
    assert np.isinf(devices.down).all()
    np.testing.assert_array_equal(devices.latency, 5.0)


@pytest.mark.parametrize(
    ("columns", "given", "line"),
    [
        ({"client": [0, 1, 1], "latency_s": [1.0] * 3}, {}, r"found client 1 in row 2 of .*allowed: 0 to 2, once"),
        ({"client": [0, 2], "latency_s": [1.0] * 2}, {}, r"found no row for client 1 in .*one per client"),
        ({"client": [0, 1, 2], "speed": [1.0] * 3}, {}, r"found speed in .*allowed columns: client, seconds_per_image"),
        ({"client": [0, 1, 2]}, {}, r"found the client alone"),
        ({"client": [0, 1, 2], "up_mbps": [1.0, 0, 1]}, {}, r"found up_mbps 0 of client 1 in .*allowed: above 0"),
        ({"client": [0, 1, 2], "latency_s": [1.0] * 3}, {"latency_s": 2}, r"system.latency_s: found a value beside"),
    ],
)
def test_a_wrong_devices_file_is_one_line(columns: dict, given: dict, line: str, tmp_path: Path) -> None:
    path = write(tmp_path / "d.parquet", **columns)
    with pytest.raises(UserError, match=line) as caught:
        make_devices(SystemConfig(devices=path, **given), 0, 3)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_none_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_text("no table")
    for path in (tmp_path / "x.parquet", tmp_path / "absent.parquet", tmp_path / "absent.csv"):
        with pytest.raises(UserError, match=r"system\.devices: .* cannot be read \(.*\); needs a Parquet or CSV file"):
            make_devices(SystemConfig(devices=path), 0, 3)

import pytest

from sequoia_core.design.devices import Device, _shipped, find_device

WANTED = {"a100-80g", "h100", "h200", "l40", "l40s", "rtx-3090", "rtx-4090", "rtx-5090", "m3-max"}


def device(**changes) -> Device:
    fields = {"bytes_per_sec": 1e9, "operations_per_sec": {"float32": 1e12}, "memory_bytes": 1e9} | changes
    return Device("toy", "Toy", **fields)


def test_every_number_of_the_table_has_a_source():
    assert set(_shipped()) == WANTED
    for name in _shipped():
        found = find_device(name.upper())
        stated = {key for key, value in found.to_json().items() if value is not None} - {"name", "title"}
        assert stated <= set(found.sources) and all(len(source) > 20 for source in found.sources.values())
        assert set(found.operations_per_sec) == {"float32", "bfloat16", "float16"}
        assert found.rate("float32") <= found.rate("bfloat16")


def test_dense_peaks_and_one_way_links():
    """The figures that datasheets like to double: half of what sparsity gives, half of a link's two ways."""
    assert find_device("a100-80g").rate("bfloat16") == 312e12 and find_device("h100").rate("float16") == 989.4e12
    assert find_device("rtx-3090").rate("bfloat16") == 71e12 and find_device("l40").rate("float16") == 181.05e12
    assert find_device("l40").link("host") == pytest.approx(16e9 * 16 * 128 / 130 / 8, rel=1e-3)


def test_what_a_device_does_not_have_is_refused():
    with pytest.raises(ValueError, match="device: found 'tpu', expected one of a100-80g"):
        find_device("tpu")
    with pytest.raises(ValueError, match="dtype: found 'int8', expected one of float32"):
        device().rate("int8")
    with pytest.raises(ValueError, match="offload: found 'tape', expected one of host, disk"):
        device().link("tape")
    with pytest.raises(ValueError, match="offload: found 'host', expected another place: Apple M3 Max"):
        find_device("m3-max").link("host")


@pytest.mark.parametrize(
    "changes", [{"bytes_per_sec": 0.0}, {"operations_per_sec": {"float32": float("inf")}}, {"layer_sec": -1.0},
                {"host_bytes_per_sec": -1.0}, {"memory_bytes": float("nan")}]
)  # fmt: skip
def test_numbers_out_of_range_are_refused(changes):
    with pytest.raises(ValueError, match=f"toy: {next(iter(changes))}.*: found .*, expected"):
        device(**changes)

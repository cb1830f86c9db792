"""The matrix unit in software: its arithmetic against NumPy's, and against the unit itself where there is one."""

import ctypes
import subprocess
import sys

import numpy as np
import pytest
import torch

from sequoia_core.native import compile_c, instruction_sets, llama_x86
from tests.core.native.test_compile_c import has_compiler

pytestmark = [
    pytest.mark.skipif(not has_compiler(), reason="no C compiler"),
    pytest.mark.skipif(
        not instruction_sets.BY_NAME["amx-emulated"].is_here,
        reason="the processor has no AVX-512, which the emulation needs",
    ),
]
AMX, EMULATED = instruction_sets.BY_NAME["amx"], instruction_sets.BY_NAME["amx-emulated"]
PROBE = r"""
#include <immintrin.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

int granted(void) { return syscall(SYS_arch_prctl, 0x1023, 18) == 0; }

static void configure(int m, int k, int n) {  // tiles: 0 and 3 [m, n], 1 [m, 2 k], 2 [2 k, n]
    struct { uint8_t palette, start, zero[14]; uint16_t width[16]; uint8_t rows[16]; } config = {.palette = 1};
    config.rows[0] = config.rows[3] = config.rows[1] = m, config.rows[2] = k;
    config.width[0] = config.width[3] = config.width[2] = 4 * n, config.width[1] = 4 * k;
    __asm__ volatile("" ::: "memory");
    _tile_loadconfig(&config);
}

void multiply(int m, int k, int n, const uint16_t *a, const uint16_t *b, float *sum, float *zero) {
    configure(m, k, n);
    _tile_loadd(0, sum, 64);
    _tile_loadd(1, a, 64);
    _tile_stream_loadd(2, b, 64);
    _tile_dpbf16ps(0, 1, 2);
    _tile_zero(3);
    _tile_stored(0, sum, 64);
    _tile_stored(3, zero, 64);
    _tile_release();
}

void narrow(const float *from, uint16_t *to) {
    _mm256_storeu_si256((__m256i *)to, (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(from)));
}

void misuse(int how) {
    if (how != 0) configure(16, 16, how == 1 ? 8 : 16);
    if (how == 2) _tile_release();
    if (how == 1) _tile_dpbf16ps(1, 0, 2); else _tile_zero(0);
}
"""


def probe(folder, *, emulated: bool) -> ctypes.CDLL:
    source = folder / "probe.c"
    source.write_text(PROBE)
    if emulated:
        header = compile_c.FOLDER / llama_x86.EMULATION
        flags = [*EMULATED.flags, "-include", str(header)]
        path = compile_c.build([source], [*llama_x86.FLAGS, *flags], folder / "built", reads=[header])
    else:
        path = compile_c.build([source], [*llama_x86.FLAGS, *AMX.flags], folder / "built")
    library = ctypes.CDLL(str(path))
    assert library.granted() == 1
    return library


@pytest.fixture(scope="module")
def emulation(tmp_path_factory):
    return probe(tmp_path_factory.mktemp("emulated"), emulated=True)


@pytest.fixture(scope="module", params=["emulated", "real"])
def unit(request, emulation, tmp_path_factory):
    """The emulation, and what it emulates where there is one: the same tests hold for both."""
    if request.param == "emulated":
        return emulation
    if not AMX.is_here:
        pytest.skip("the processor has no matrix unit")
    return probe(tmp_path_factory.mktemp("real"), emulated=False)


def bits_of(values: np.ndarray) -> np.ndarray:
    """Cut float32 to the upper half, bfloat16 as uint16."""
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def widened(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def multiply(unit, m, k, n, a, b, start):
    """Return start + a b, float32 [16, 16], by the unit; a, b: uint16 [16, 32], start: float32 [16, 16]."""
    found, zero = start.copy(), np.ones((16, 16), dtype=np.float32)
    unit.multiply(m, k, n, *(ctypes.c_void_p(array.ctypes.data) for array in (a, b, found, zero)))
    assert not zero[:m, :n].any() and (zero[m:] == 1).all() and (zero[:, n:] == 1).all()
    return found


@pytest.mark.parametrize("m, k, n", [(16, 16, 16), (1, 16, 16), (5, 3, 7), (16, 1, 16)])
def test_products_add_in_the_units_order(unit, m, k, n):
    """Bit for bit; products of bfloat16 and their sums are exact in float64, so each rounding here is a single one."""
    rng = np.random.default_rng(m + k + n)
    a, b = (bits_of(rng.normal(size=(16, 32))) for _ in range(2))
    start = rng.normal(size=(16, 16)).astype(np.float32)
    wanted = start.copy()
    for row in range(m):
        sums = np.zeros((2, n), dtype=np.float32)
        for pair in range(k):
            for half in range(2):
                left, right = widened(a[row, 2 * pair + half]), widened(b[pair, half : 2 * n : 2])
                sums[half] = (sums[half].astype(np.float64) + np.float64(left) * right).astype(np.float32)
        wanted[row, :n] = start[row, :n] + (sums[0] + sums[1])
    found = multiply(unit, m, k, n, a, b, start)
    np.testing.assert_array_equal(found.view(np.uint32), wanted.view(np.uint32))


def test_what_is_too_small_for_a_normal_number_is_zero(unit):
    smallest = np.float32(2.0**-126)
    for left, right, start in [
        (smallest / 2, 1.0, 0.0),  # a factor
        (2.0**-100, 2.0**-27, 0.0),  # a product
        (0.0, 0.0, smallest / 2),  # what was there before
    ]:
        a, b = (bits_of(np.full((16, 32), value)) for value in (left, right))
        assert not multiply(unit, 16, 16, 16, a, b, np.full((16, 16), start, dtype=np.float32)).any()
    a, b = (bits_of(np.full((16, 32), value)) for value in (smallest, 1.0))
    found = multiply(unit, 16, 1, 16, a, b, np.zeros((16, 16), dtype=np.float32))
    assert (found == 2 * smallest).all()


def test_narrowing_rounds_to_nearest_even(unit):
    rng = np.random.default_rng(1)
    edges = [0.0, -0.0, 1e-40, -1e-40, 2.0**-126, np.inf, -np.inf, 1.00390625, 1.01171875, -1.00390625, 3.4e38, 1.0]
    edges += [-3.4e38, 7, 8, 9]
    for values in (np.array(edges), *rng.normal(size=(20, 16)), *(10.0 ** rng.uniform(-30, 30, size=(20, 16)))):
        values, found = values.astype(np.float32), np.empty(16, dtype=np.uint16)
        unit.narrow(ctypes.c_void_p(values.ctypes.data), ctypes.c_void_p(found.ctypes.data))
        wanted = torch.from_numpy(np.where(abs(values) < 2.0**-126, np.copysign(0, values), values)).bfloat16()
        np.testing.assert_array_equal(found, wanted.view(torch.int16).numpy().view(np.uint16))


def test_a_number_that_is_none_stays_none(unit):
    values, found = np.array([0x7F800001, 0xFFC12345] * 8, dtype=np.uint32), np.empty(16, dtype=np.uint16)
    unit.narrow(ctypes.c_void_p(values.ctypes.data), ctypes.c_void_p(found.ctypes.data))
    assert found.tolist() == [0x7FC0, 0xFFC1] * 8


@pytest.mark.parametrize(
    "how, words", [(0, "tile 0: not configured"), (1, "tile 1: its size"), (2, "tile 0: not configured")]
)
def test_tiles_that_are_not_configured_end_the_process(how, words, emulation):
    code = f"import ctypes; ctypes.CDLL({emulation._name!r}).misuse({how})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode < 0 and words in done.stderr


@pytest.mark.parametrize("name", ["amx", "avx512-bf16"])
def test_code_that_runs_emulated_also_builds_for_the_processor(name, tmp_path):
    """Else the tests could pass here with code that no processor with these instructions ever runs."""
    wanted, empty = instruction_sets.BY_NAME[name], tmp_path / "empty.c"
    empty.write_text("")
    try:
        compile_c.build([empty], wanted.flags, tmp_path / "built")
    except OSError as error:
        pytest.skip(f"the compiler does not know the instructions: {error}")
    sources = [compile_c.FOLDER / name for name in llama_x86.SOURCES]
    flags = [*llama_x86.FLAGS, *wanted.flags, f'-DPRODUCTS="{wanted.products}"']
    compile_c.build(sources, flags, tmp_path / "built")

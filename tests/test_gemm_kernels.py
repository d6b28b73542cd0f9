"""Every kernel and every loop of every instruction set this machine has, called at its address, gives the exact result.

Operands hold small integers, so equality is exact.  Every buffer ends at a page that cannot be touched, what lies between and
before its elements is NaN, and after a call all its bytes are compared: a kernel that writes beside its tile fails the comparison,
one that goes past the end of its operands is a crash, which pytest's fault handler names.
"""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import oracle
import pytest

from fastgemm.gemm import job, multiply
from fastgemm.gemm import table as t
from fastgemm.gemm.mirror import mirror

DTYPES = ("f4", "f8", "c8", "c16")
DEPTHS = (0, 1, 3, 4, 5, 9)


def function(address, arguments):
    """What is at an address, as a function of so many 64-bit integers."""
    assert address != 0
    return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * arguments)(int(address))


class Memory:
    """Bytes whose end is the end of what may be touched."""

    def __init__(self, size):
        page = mmap.PAGESIZE
        self.size = -(-size // page) * page
        self._map = mmap.mmap(-1, self.size + page)
        self.bytes = np.frombuffer(self._map, np.uint8, self.size)
        libc = ctypes.CDLL(None) if hasattr(mmap, "PROT_READ") else None
        if libc is not None:
            assert libc.mprotect(ctypes.c_void_p(self.bytes.ctypes.data + self.size), ctypes.c_size_t(page), 0) == 0

    def array(self, shape, dtype, strides, buffer=None):
        """An array of these byte strides at the very end of the memory (or in a copy of its bytes)."""
        dtype = np.dtype(dtype)
        reach = sum(max(0, (extent - 1) * stride) for extent, stride in zip(shape, strides, strict=True))
        start = self.size - reach - dtype.itemsize if all(shape) else self.size - dtype.itemsize
        return np.ndarray(shape, dtype, self.bytes if buffer is None else buffer, start, strides)

    def blank(self):
        """Fill with NaN."""
        self.bytes[:] = 0xFF


SMALL = tuple(Memory(1 << 15) for _ in range(3))  # for a kernel's operands
MEMORY = tuple(Memory(1 << 19) for _ in range(4))  # for a loop's
rng = np.random.default_rng(5)


def integers(shape, dtype):
    """Whole numbers in [-4, 4]."""
    values = rng.integers(-4, 5, shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.integers(-4, 5, shape)
    return values.astype(dtype)


def laid(memory, values, strides):
    """The values at the end of a memory that is NaN otherwise; axes of stride 0 repeat their first element."""
    memory.blank()
    array = memory.array(values.shape, values.dtype, strides)
    array[...] = values[tuple(slice(1) if stride == 0 else slice(None) for stride in strides)]
    return array


class Result:
    """An output in memory: NaN all over, or (``add``) holding integers; afterwards every byte is compared."""

    def __init__(self, memory, shape, dtype, strides, add):
        self.memory, self.strides = memory, strides
        self.array = laid(memory, integers(shape, dtype), strides)
        if not add:
            memory.blank()
        self.expected_bytes = memory.bytes.copy()
        self.expected = memory.array(shape, dtype, strides, self.expected_bytes)

    @property
    def at(self):
        return self.array.ctypes.data

    def check(self, what):
        """Compare; ``what`` says what was called."""
        if not np.array_equal(self.memory.bytes, self.expected_bytes):
            where = np.argwhere(self.array != self.expected)
            places = f"{len(where)} elements, first {where[0]}" if len(where) else "bytes outside the tile"
            raise AssertionError(f"{what}: {places}")


def row_layouts(rows, k, item):
    """name -> byte strides (a_row, a_k) of an A of this extent."""
    odd = item + 3
    return {
        "rows": (k * item + 8, item),
        "columns": (item, rows * item + 4),
        "reversed": (-(k * item), -item),
        "odd": (k * odd + 5, odd),
        "odd, upside down": (-(k * odd + 1), odd),
        "odd, mirrored": (odd, -(rows * odd + 3)),
        "one column": (item, 0),
    }


def tables():
    return [pytest.param((isa, dtype), id=f"{isa}-{dtype}") for isa in t.usable_isas() for dtype in DTYPES]


@pytest.fixture(params=tables())
def table(request):
    """The kernels of an instruction set and an element type, the loops' addresses filled in."""
    isa, dtype = request.param
    job.loaded(np.dtype(dtype), isa)
    return t.kernel_table(np.dtype(dtype), isa)


class Kernel:
    """One micro-kernel of a table, and what it covers, in elements."""

    def __init__(self, table, width, vecs, masked, rows):
        self.dtype, self.rows, self.masked = table.element.dtype, rows, masked
        self.lanes = int(table.vector[t.LANES]) // (2 if width else 1)
        self.whole = (vecs - 1) * self.lanes  # columns of the vectors that have no mask
        self.per_column = int(table.vector[t.COL_LANES])
        self.call = function(table.vector[t.KERNEL + ((width * 5 + vecs) * 2 + masked) * 17 + rows], 14)
        self.name = (
            f"{table.isa.name} {self.dtype} {rows} x {vecs}{' half' if width else ''}{' masked' if masked else ''}"
        )

    def check(self, k, strides, add, *, cols=None, count=1, moving="ac"):
        """Run it on ``count`` tiles, of which the operands named in ``moving`` differ."""
        cols = self.lanes if cols is None else cols
        width, item, rows = self.whole + cols, self.dtype.itemsize, self.rows
        a_row, a_k = strides
        a_step = (abs(a_row) * rows + abs(a_k) * k + 9) * ("a" in moving)
        b_k = width * item + (k % 2) * 5
        b_step = (k * b_k + 3) * ("b" in moving)
        c_row = width * item + (k % 3) * 7
        c_step = rows * c_row + 11
        a = laid(SMALL[0], integers((count, rows, k), self.dtype), (a_step, a_row, a_k))
        b = laid(SMALL[1], integers((count, k, width), self.dtype), (b_step, b_k, item))
        c = Result(SMALL[2], (count, rows, width), self.dtype, (c_step, c_row, item), add)
        oracle.micro_kernel(a, b, c.expected, add)
        lanes = cols * self.per_column if self.masked else 0
        self.call(
            a.ctypes.data, b.ctypes.data, c.at, k, a_row, a_k, b_k, c_row, count, a_step, b_step, c_step, add, lanes
        )
        c.check(f"{self.name}, k={k}, strides={strides}, add={add}, cols={cols}, count={count}, moving={moving}")


def kernels(table):
    """All micro-kernels that a table has an address for."""
    for index in np.flatnonzero(table.vector[t.KERNEL : t.TABLE_SIZE]):
        shape, rows = divmod(int(index), 17)
        yield Kernel(table, shape // 10, shape % 10 // 2, shape % 2, rows)


def test_a_table_holds_every_kernel_its_row_names(table):
    per_row = int(table.vector[t.COL_LANES])
    expected = {
        (0, vecs, masked, rows)
        for vecs, tallest in table.isa.tiles.items()
        for masked in (0, 1)
        for rows in range(1, tallest // per_row + 1)
    }
    if table.isa.half:
        expected |= {(1, 1, 1, rows) for rows in range(1, table.isa.tiles[1] // per_row + 1)}
    found = set()
    for index in np.flatnonzero(table.vector[t.KERNEL : t.TABLE_SIZE]):
        shape, rows = divmod(int(index), 17)
        found.add((shape // 10, shape % 10 // 2, shape % 2, rows))
    assert found == expected
    for width, vecs, _, _ in expected:
        tallest = max(rows for w, v, _, rows in expected if (w, v) == (width, vecs))
        heights = table.vector[t.HEIGHT + (width * 5 + vecs) * 17 :][:17]
        assert heights.tolist() == [min(rows, tallest) for rows in range(17)]


def test_kernels_for_every_depth_and_every_layout_of_a(table):
    for kernel in kernels(table):
        for number, k in enumerate(DEPTHS):
            for turn, strides in enumerate(row_layouts(kernel.rows, k, kernel.dtype.itemsize).values()):
                # every K both ways with every layout in the course of the kernels
                kernel.check(k, strides, (number + turn + kernel.rows) % 2)


def test_masked_kernels_touch_their_columns_only(table):
    for kernel in kernels(table):
        if kernel.masked:
            for cols in range(1, kernel.lanes + 1):
                for add in (0, 1):
                    kernel.check(3, (3 * kernel.dtype.itemsize, kernel.dtype.itemsize), add, cols=cols)


@pytest.mark.parametrize("moving", ["c", "ac", "bc", "abc"])
def test_kernels_do_several_tiles_a_call(table, moving):
    for kernel in kernels(table):
        for k, count in ((0, 2), (5, 3)):
            strides = row_layouts(kernel.rows, k, kernel.dtype.itemsize)["odd" if count == 3 else "rows"]
            for add in (0, 1):
                cols = max(1, kernel.lanes - 1) if kernel.masked else None
                kernel.check(k, strides, add, cols=cols, count=count, moving=moving)


def test_infinity_comes_through_a_kernel_and_nan_stays_in_its_column(table):
    for kernel in kernels(table):
        if table.element.paired:
            continue  # infinity times a complex number is several things; numpy's own products differ
        item, width = kernel.dtype.itemsize, kernel.whole + kernel.lanes
        a = laid(SMALL[0], np.ones((kernel.rows, 2), kernel.dtype), (2 * item, item))
        b = laid(SMALL[1], np.ones((2, width), kernel.dtype), (width * item, item))
        b[0, 0], b[1, -1] = np.inf, np.nan
        c = Result(SMALL[2], (kernel.rows, width), kernel.dtype, (width * item, item), 0)
        c.expected[...] = 2
        c.expected[:, 0] = np.inf
        kernel.call(
            a.ctypes.data,
            b.ctypes.data,
            c.at,
            2,
            2 * item,
            item,
            width * item,
            width * item,
            1,
            0,
            0,
            0,
            0,
            kernel.lanes,
        )
        assert np.isnan(c.array[:, -1]).all()
        if width > 1:
            c.expected[:, -1] = c.array[:, -1]
            c.check(kernel.name)


@pytest.mark.parametrize("log", range(4))
def test_dot_kernels(table, log):
    if table.element.paired:
        assert table.vector[t.DOT + log] == 0
        return
    call, rows = function(table.vector[t.DOT + log], 14), 1 << log
    dtype, lanes = table.element.dtype, int(table.vector[t.LANES])
    item = dtype.itemsize
    for k in (*range(2 * lanes + 2), 5 * lanes + 3):
        for a_row in (k * item, k * item + 3, -(k * item + 1)):
            for add in (0, 1):
                a = laid(SMALL[0], integers((1, rows, k), dtype), (0, a_row, item))
                b = laid(SMALL[1], integers((1, k, 1), dtype), (0, item, 1))
                c = Result(SMALL[2], (1, rows, 1), dtype, (0, item + 5, 1), add)
                oracle.micro_kernel(a, b, c.expected, add)
                call(a.ctypes.data, b.ctypes.data, c.at, k, a_row, 0, 0, item + 5, 1, 0, 0, 0, add, 0)
                c.check(f"dot {rows}, k={k}, a_row={a_row}, add={add}")


@pytest.mark.parametrize("log", range(4))
def test_axpy_kernels(table, log):
    if table.element.paired:
        assert table.vector[t.AXPY + log] == 0
        return
    call, rows = function(table.vector[t.AXPY + log], 14), 1 << log
    dtype, lanes = table.element.dtype, int(table.vector[t.LANES])
    item = dtype.itemsize
    for cols in (*range(1, 2 * lanes + 2), 5 * lanes + 3):
        for count, a_k, b_k in ((1, item, cols * item), (3, -item - 1, cols * item + 3), (2, item + 1, -(cols * item))):
            for add in (0, 1):
                k = count * rows
                a = laid(SMALL[0], integers((1, 1, k), dtype), (0, 0, a_k))
                b = laid(SMALL[1], integers((1, k, cols), dtype), (0, b_k, item))
                c = Result(SMALL[2], (1, 1, cols), dtype, (0, 0, item), add)
                oracle.micro_kernel(a, b, c.expected, add)
                call(a.ctypes.data, b.ctypes.data, c.at, 0, 0, a_k, b_k, 0, count, rows * a_k, rows * b_k, 0, add, cols)
                c.check(f"axpy {rows}, cols={cols}, count={count}, a_k={a_k}, b_k={b_k}, add={add}")


# --- packing kernels -----------------------------------------------------------------------------------------------------------


def test_row_packing_kernels(table):
    dtype, lanes = table.element.dtype, int(table.vector[t.LANES])
    item, per_column = dtype.itemsize, int(table.vector[t.COL_LANES])
    for vecs in range(1, table.isa.panel_vecs + 1):
        call, width = function(table.vector[t.PACK_ROWS + vecs], 7), vecs * lanes
        for rows, panels in ((1, 1), (3, 1), (2, 3)):
            for cols in range(1, lanes + 1):
                n = panels * width - lanes + cols
                stride = (n * item + 3) * (1 if cols % 2 else -1)
                b = laid(SMALL[0], integers((rows, n), dtype), (stride, item))
                apart = rows * width * item + 13
                target = Result(SMALL[1], (panels, rows, width), dtype, (apart, width * item, item), 0)
                whole = np.zeros((rows, panels * width), dtype)
                whole[:, :n] = b
                target.expected[...] = whole.reshape(rows, panels, width).transpose(1, 0, 2)
                call(b.ctypes.data, stride, target.at, apart, rows, panels, cols * per_column)
                target.check(f"pack {vecs}, rows={rows}, panels={panels}, cols={cols}")


def test_transposing_kernel_leaves_out_absent_columns(table):
    dtype, lanes = table.element.dtype, int(table.vector[t.LANES])
    item = dtype.itemsize
    if lanes == 1:
        assert table.vector[t.PACK_SQUARE] == 0
        return
    call = function(table.vector[t.PACK_SQUARE], 7)
    for cols in range(lanes + 1):
        for stride in (lanes * item, lanes * item + 3, -(lanes * item + 1)):
            SMALL[0].blank()  # NaN where the absent columns would be; the last present one ends at the border
            b = SMALL[0].array((cols, lanes), dtype, (stride, item))
            b[...] = integers((cols, lanes), dtype)
            target = Result(SMALL[1], (lanes, lanes), dtype, (lanes * item + 5, item), 0)
            target.expected[...] = 0
            target.expected[:, :cols] = b.T
            call(b.ctypes.data if cols else SMALL[0].array((1,), dtype, (item,)).ctypes.data, stride, target.at,
                 lanes * item + 5, 0, 0, cols)  # fmt: skip
            target.check(f"square, cols={cols}, stride={stride}")


# --- the loops -----------------------------------------------------------------------------------------------------------------


def loop(word, *arguments):
    """Run a loop by its address, arguments in a block of words, as jitted code does."""
    block = np.array(arguments, np.int64)
    function(multiply.LOOPS[word].address, 3)(block.ctypes.data, 0, 0)


def exact(a, b, c, add):
    """a @ b (+ c) in exact arithmetic."""
    wide = np.result_type(a.dtype, "f8")
    return a.astype(wide) @ b.astype(wide) + (c.astype(wide) if add else 0)


def widths(table):
    """Extents of B around every way a row can be cut into vectors, masks and half vectors."""
    lanes, vecs, wide = (int(table.vector[i]) for i in (t.LANES, t.PANEL_VECS, t.WIDE_VECS))
    found = {1, 2, 3}
    for vectors in (1, 2, 3, 4, 5, vecs + wide, 2 * wide + 1):
        found |= {vectors * lanes + d for d in (-1, 0, 1, lanes // 2, lanes // 2 + 1)}
    return sorted(n for n in found if n > 0)


def check_in_place(table, m, n, k, strides, add):
    dtype = table.element.dtype
    item = dtype.itemsize
    a = laid(MEMORY[0], integers((m, k), dtype), strides)
    b_k, c_row = n * item + (n % 3) * 5, n * item + (m % 2) * 7
    b = laid(MEMORY[1], integers((k, n), dtype), (b_k, item))
    c = Result(MEMORY[2], (m, n), dtype, (c_row, item), add)
    c.expected[...] = exact(a, b, c.expected, add)
    loop(multiply.IN_PLACE, table.address, a.ctypes.data, *strides, b.ctypes.data, b_k, c.at, c_row, m, n, k, add)
    c.check(f"in place {m} x {n} x {k}, strides={strides}, add={add}")


def test_in_place_by_columns(table):
    rows = int(table.vector[t.PANEL_ROWS])
    for n in widths(table):
        for m in (1, 2, rows, rows + 1, 2 * rows + 1, 25, 37):
            for k in (1, 7):
                layouts = list(row_layouts(m, k, table.element.dtype.itemsize).values())
                check_in_place(table, m, n, k, layouts[(m + n + k) % len(layouts)], (m + k) % 2)


def test_in_place_by_rows(table):
    """k <= 32, m > 64 and n beyond four panels."""
    width = int(table.vector[t.PANEL_VECS] * table.vector[t.LANES])
    for n in (4 * width + 1, 4 * width + width // 3 + 1, 5 * width - 1, 5 * width):
        for m, k in ((65, 3), (71, 32)):
            check_in_place(table, m, n, k, (k * table.element.dtype.itemsize, table.element.dtype.itemsize), n % 2)


def test_in_place_with_rows_a_page_apart(table):
    item, lanes = table.element.dtype.itemsize, int(table.vector[t.LANES])
    for n in (1, lanes, 2 * lanes + 1):
        check_in_place(table, 35, n, 5, (4096, item), 0)


def b_layouts(k, n, dtype):
    """name -> (byte strides of B, its dtype): every way the packing loops know a B."""
    item = dtype.itemsize
    return {
        "rows": ((n * item + 3, item), dtype),
        "rows upside down": ((-(n * item), item), dtype),
        "columns": ((item, k * item + 5), dtype),
        "columns, right to left": ((item, -(k * item)), dtype),
        "every second": ((2 * n * item, 2 * item), dtype),
        "k backwards": ((-item, k * item), dtype),
        "odd": ((n * (item + 1), item + 1), dtype),
        "swapped rows": ((n * item, item), dtype.newbyteorder()),
        "swapped columns": ((item, k * item), dtype.newbyteorder()),
    }


@pytest.mark.parametrize("layout", list(b_layouts(1, 1, np.dtype("f4"))))
def test_packing_and_the_packed_product(table, layout):
    dtype = table.element.dtype
    item, lanes, vecs = dtype.itemsize, int(table.vector[t.LANES]), int(table.vector[t.PANEL_VECS])
    for number, n in enumerate(
        (1, lanes, lanes + 1, vecs * lanes - 1, vecs * lanes, 2 * vecs * lanes + lanes // 2 + 1)
    ):
        k = (1, 2 * lanes + 3, 17)[number % 3]
        strides, stored = b_layouts(k, n, dtype)[layout]
        b = laid(MEMORY[0], integers((k, n), dtype).astype(stored), strides)
        ordered = oracle.panels(b.astype(dtype), vecs, lanes)
        packed = Result(MEMORY[1], ordered.shape, dtype, (item,), 0)
        packed.expected[...] = ordered
        cut = k // 2
        for first, rows in ((0, cut), (cut, k - cut)):  # in slices, as the executor packs between multiplications
            if rows:
                loop(
                    multiply.PACK, table.address, b.ctypes.data, *strides, stored != dtype, packed.at, first, rows, k, n
                )
        packed.check(f"pack {layout}, {k} x {n}")
        check_packed(table, packed, b.astype(dtype), n, number % 2)


def check_packed(table, packed, b, n, add):
    dtype = table.element.dtype
    item, k = dtype.itemsize, b.shape[0]
    for m, layout in ((1, "odd"), (19, "rows"), (9, "columns")):
        strides = row_layouts(m, k, item)[layout]
        a = laid(MEMORY[2], integers((m, k), dtype), strides)
        c_row = n * item + 3
        c = Result(MEMORY[3], (m, n), dtype, (c_row, item), add)
        c.expected[...] = exact(a, b, c.expected, add)
        loop(multiply.PACKED, table.address, a.ctypes.data, *strides, packed.at, n, c.at, c_row, m, n, k, add)
        c.check(f"packed {m} x {n} x {k}, A by {layout}, add={add}")


@pytest.mark.parametrize("add", [0, 1])
def test_packed_product_of_a_strided_a_goes_in_slabs(table, add):
    """A column-major A is taken in K slabs that stay in the L1 cache."""
    dtype = table.element.dtype
    item, lanes, vecs = dtype.itemsize, int(table.vector[t.LANES]), int(table.vector[t.PANEL_VECS])
    k, n, m = 600, vecs * lanes + lanes // 2 + 1, 11
    b = integers((k, n), dtype)
    packed = laid(MEMORY[1], oracle.panels(b, vecs, lanes), (item,))
    for strides in ((item, m * item), (-item, m * item), (2 * k * item, 2 * item)):
        a = laid(MEMORY[2], integers((m, k), dtype), strides)
        c = Result(MEMORY[3], (m, n), dtype, (n * item, item), add)
        c.expected[...] = exact(a, b, c.expected, add)
        loop(
            multiply.PACKED, table.address, a.ctypes.data, *strides, packed.ctypes.data, n, c.at, n * item, m, n, k, add
        )
        c.check(f"packed in slabs, strides={strides}")


def test_lower_columns_of_a_packed_matrix(table):
    """A product with fewer columns than are packed does whole panels and leaves the others alone."""
    dtype = table.element.dtype
    item, lanes, vecs = dtype.itemsize, int(table.vector[t.LANES]), int(table.vector[t.PANEL_VECS])
    width = vecs * lanes
    n, k, m = 3 * width + 1, 5, 7
    b = integers((k, n), dtype)
    packed = laid(MEMORY[1], oracle.panels(b, vecs, lanes), (item,))
    for columns in (1, width, width + 1, 3 * width, n):
        done = min(n, -(-columns // width) * width)
        a = laid(MEMORY[2], integers((m, k), dtype), (k * item, item))
        c = Result(MEMORY[3], (m, n), dtype, (n * item, item), 0)
        c.expected[:, :done] = exact(a, b[:, :done], None, 0)
        loop(
            multiply.PACKED, table.address, a.ctypes.data, k * item, item, packed.ctypes.data, n, c.at, n * item, m,
            columns, k, 0,
        )  # fmt: skip
        c.check(f"{columns} of {n} columns")


@pytest.mark.parametrize("layout", ["rows", "columns", "columns, right to left", "every second", "k backwards", "odd"])
def test_laying_out_rows(table, layout):
    dtype = table.element.dtype
    item, lanes = dtype.itemsize, int(table.vector[t.LANES])
    for k, n in (
        (1, 1),
        (lanes, lanes),
        (2 * lanes, lanes + 1),
        (2 * lanes + 1, 3 * lanes),
        (lanes + 3, 2 * lanes - 1),
        (2, 40),
    ):
        strides, _ = b_layouts(k, n, dtype)[layout]
        b = laid(MEMORY[0], integers((k, n), dtype), strides)
        target = Result(MEMORY[1], (k, n), dtype, (n * item, item), 0)
        target.expected[...] = b
        loop(multiply.ROWS, table.address, b.ctypes.data, *strides, target.at, k, n)
        target.check(f"rows of {k} x {n} by {layout}")


@pytest.mark.parametrize("layout", list(b_layouts(1, 1, np.dtype("f4"))))
def test_copying_elements(table, layout):
    dtype = table.element.dtype
    item = dtype.itemsize
    for m, n in ((1, 1), (5, 7), (16, 3)):
        strides, stored = b_layouts(m, n, dtype)[layout]
        source = laid(MEMORY[0], integers((m, n), dtype).astype(stored), strides)
        to = (item + 1, -(m * (item + 1) + 3))
        target = Result(MEMORY[1], (m, n), dtype, to, 0)
        target.expected[...] = source
        loop(multiply.COPY, table.address, source.ctypes.data, *strides, stored != dtype, target.at, *to, m, n)
        target.check(f"copy {m} x {n} by {layout}")


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 37, 128, 150])
def test_mirroring_fills_the_upper_triangle_from_the_lower_alone(table, n, threads):
    """Nothing above the diagonal is read, and nothing outside the matrix touched."""
    dtype = table.element.dtype
    values = integers((n, n), dtype)
    c = Result(MEMORY[0], (n, n), dtype, (n * dtype.itemsize + 16, dtype.itemsize), 0)
    lower = np.tril_indices(n)
    c.array[lower] = values[lower]
    c.expected[...] = np.tril(values) + np.tril(values, -1).T
    mirror(table.address, c.at, c.array.strides[0], n, threads)
    c.check(f"mirror {n} x {n}")

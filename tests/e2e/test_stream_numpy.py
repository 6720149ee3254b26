# SPDX-License-Identifier: BSD-3-Clause
"""The stream plugin's kernels against numpy: random shapes, strides, types and values, in a real host."""

import pytest

MANIFEST = "[plugin stream]\nlibrary = stream\nqueue = 4096\n[app app]\nobject = app:App\n"

APP = {
    "app.py": '''
        import asyncio
        import math

        import numpy

        import bulkhead

        TYPES = (numpy.float32, numpy.float64)
        SPECIAL = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1e30, -1e-30)
        BATCH = 64


        class Cases:
            """Random arrays, the same for a seed."""

            def __init__(self, seed, special):
                self.random = numpy.random.default_rng(seed)
                self.special = special

            def pick(self, *choices):
                return choices[self.random.integers(len(choices))]

            def dims(self, n):
                """n extents; sometimes 0, 1, or long enough to be cut into chunks; 9000 elements or so."""
                most = (9000, 150, 30, 12)[n - 1] if n else 0
                few = [k for k in (0, 1, 1, 2, 3, 5, 64, 65) if k <= 4 * most]
                shape = [self.pick(*few, *self.random.integers(2, most + 1, 5)) for _ in range(n)]
                if n > 1 and math.prod(shape) > 30_000:
                    shape[0] = 2
                return tuple(int(k) for k in shape)

            def values(self, shape, dtype):
                a = self.random.standard_normal(shape).astype(dtype)
                if self.special and a.size:
                    for _ in range(self.random.integers(0, 4)):
                        a.flat[self.random.integers(a.size)] = self.pick(*SPECIAL)
                return a

            def strided(self, shape, dtype, written=False):
                """An array of this shape in memory that is sliced, reversed, transposed, broadcast, or plain."""
                if not shape:
                    return numpy.array(self.values((), dtype))
                how = self.pick("plain", "plain", "sliced", "reversed", "transposed", "inner", "mixed", "broadcast")
                if how == "sliced":
                    big = self.values(tuple(2 * n + 1 for n in shape), dtype)
                    return big[tuple(slice(1, 2 * n + 1, 2) for n in shape)]
                if how == "reversed":
                    return self.values(shape, dtype)[tuple(slice(None, None, -1) for _ in shape)]
                if how == "transposed":
                    return self.values(shape[::-1], dtype).T
                if how == "inner":
                    return self.values(shape[:-1] + (shape[-1] + 3,), dtype)[..., 1 : shape[-1] + 1]
                if how == "mixed":
                    order = self.random.permutation(len(shape))
                    big = self.values(tuple(shape[i] + 2 for i in order), dtype)
                    turned = big.transpose(numpy.argsort(order))
                    return turned[tuple(slice(n, 0, -1) if self.random.random() < 0.5 else slice(1, n + 1)
                                        for n in shape)]
                if how == "broadcast" and not written:
                    few = tuple(1 if self.random.random() < 0.5 else n for n in shape)
                    return numpy.broadcast_to(self.values(few, dtype), shape)
                return self.values(shape, dtype)


        def close(got, want, allowed):
            """Elementwise: equal, both NaN, or not further apart than allowed."""
            with numpy.errstate(all="ignore"):
                off = numpy.abs(got.astype("f8") - want.astype("f8"))
                return bool(numpy.all((got == want) | (numpy.isnan(got) & numpy.isnan(want)) | (off <= allowed)))


        def tell(op, seed, *arrays):
            return f"{op}, seed {seed}: " + ", ".join(f"{a.dtype} {a.shape} {a.strides}" for a in arrays)


        class App:
            def start(self):
                self.stream = bulkhead.pool("stream")

            # Each case is a coroutine that runs one op and gives None, or what is wrong.

            async def elementwise(self, op, seed, special):
                cases = Cases(seed, special)
                dtype = cases.pick(*TYPES)
                shape = cases.dims(cases.pick(0, 1, 1, 2, 2, 3, 4))
                out = cases.strided(shape, dtype, written=True)
                x, y = cases.strided(shape, dtype), cases.strided(shape, dtype)
                if cases.random.random() < 0.2:
                    x = out
                number = float(cases.pick(0.1, -2.0, 0.0, *(SPECIAL if special else ())))
                eps = numpy.finfo(dtype).eps
                allowed = 0
                with numpy.errstate(all="ignore"):
                    if op == "fill":
                        want, args = numpy.full(shape, number, dtype), (out, number)
                    elif op == "copy":
                        want, args = x.copy(), (out, x)
                    elif op == "scale":
                        want, args = out * dtype(number), (out, number)
                    elif op == "axpy":
                        want, args = out + dtype(number) * x, (out, number, x)
                        allowed = 2 * eps * (abs(out) + abs(dtype(number) * x)).astype("f8")
                        allowed = numpy.nan_to_num(allowed)
                    elif op == "add":
                        want, args = x + y, (out, x, y)
                    else:
                        want, args = x * y, (out, x, y)
                keep = x.copy() if x is not out else None
                await getattr(self.stream, op)(*args)
                if keep is not None and not close(x, keep, 0):
                    return "an input was written to: " + tell(op, seed, out, x, y)
                return None if close(out, numpy.asarray(want), allowed) else tell(op, seed, out, x, y)

            async def sums(self, op, seed, special):
                cases = Cases(seed, special)
                dtype = cases.pick(*TYPES)
                shape = cases.dims(1 if op == "dot" else cases.pick(0, 1, 1, 2, 3, 4))
                a, b = cases.strided(shape, dtype), cases.strided(shape, dtype)
                with numpy.errstate(all="ignore"):
                    terms = (a * b if op == "dot" else a).ravel()
                    plain = [float(term) for term in terms]
                    if numpy.isfinite(terms).all():
                        want = math.fsum(plain)
                        allowed = 262 * numpy.finfo(dtype).eps * math.fsum(map(abs, plain)) + 1e-45 * len(plain)
                    else:
                        want, allowed = float(numpy.sum(terms.astype("f8"))), 0
                got = await getattr(self.stream, op)(*((a, b) if op == "dot" else (a,)))
                return None if close(numpy.float64(got), numpy.float64(want), allowed) else (
                    f"{got} is not {want}: " + tell(op, seed, a, b))

            async def max(self, seed, special):
                cases = Cases(seed, special)
                a = cases.strided(cases.dims(cases.pick(0, 1, 1, 2, 3)), cases.pick(*TYPES))
                if a.size == 0:
                    try:
                        await self.stream.max(a)
                    except bulkhead.PluginError as error:
                        return None if "at least one" in error.facts["accepted"] else repr(error)
                    return "no error for the max of nothing: " + tell("max", seed, a)
                got = await self.stream.max(a)
                return None if close(numpy.float64(got), numpy.float64(a.max()), 0) else tell("max", seed, a)

            async def top_k(self, seed, special):
                cases = Cases(seed, special)
                a = cases.strided(cases.dims(1), cases.pick(*TYPES))
                if cases.random.random() < 0.5:
                    a = numpy.round(a)  # ties
                k = int(cases.pick(0, 1, 3, 50, 10**12))
                order = numpy.argsort(-a, kind="stable")
                want = [[int(i), float(a[i])] for i in order if not math.isnan(a[i])][:k]
                return None if await self.stream.top_k(a, k) == want else tell("top_k", seed, a)

            async def product(self, op, seed, special):
                cases = Cases(seed, special)
                dtype = cases.pick(*TYPES)
                m, k, n = cases.dims(2) + cases.dims(1)
                n = min(n, 150)
                a = cases.strided((m, k), dtype)
                b = cases.strided((k,) if op == "matvec" else (k, n), dtype)
                out = cases.strided((m,) if op == "matvec" else (m, n), dtype, written=True)
                await getattr(self.stream, op)(out, a, b)
                with numpy.errstate(all="ignore"):
                    want = a.astype("f8") @ b.astype("f8")
                    size = abs(a.astype("f8")) @ abs(b.astype("f8"))
                # Products that leave the type's range, or cancel infinities: numpy's own answer in the type differs
                # by the order of its sums; where all is finite the bound holds.
                whole = numpy.isfinite(size) & (size < numpy.finfo(dtype).max / 4)
                eps = numpy.finfo(dtype).eps
                allowed = eps * (max(k, 262) + 2) * size[whole]
                if not close(out[whole], want[whole], allowed):
                    return tell(op, seed, out, a, b)
                nan = numpy.isnan(want) & ~(numpy.isinf(a).any() | numpy.isinf(b).any())
                return None if numpy.isnan(out[nan]).all() else "NaN was lost: " + tell(op, seed, out, a, b)

            def case(self, op, seed, special):
                if op in ("sum", "dot"):
                    return self.sums(op, seed, special)
                if op in ("matvec", "matmul"):
                    return self.product(op, seed, special)
                if op in ("max", "top_k"):
                    return getattr(self, op)(seed, special)
                return self.elementwise(op, seed, special)

            @bulkhead.endpoint
            async def check(self, op: str, first: int, cases: int, special: bool) -> list:
                wrong = []
                for begin in range(first, first + cases, BATCH):
                    seeds = range(begin, min(begin + BATCH, first + cases))
                    wrong += [r for r in await asyncio.gather(*(self.case(op, s, special) for s in seeds)) if r]
                return wrong[:5]

            @bulkhead.endpoint
            async def mistakes(self) -> dict:
                """What the awaiting side is told about what does not fit."""
                a = numpy.zeros((4, 6), "f4")
                told = {}
                for name, call in {
                    "types": lambda: self.stream.add(a, a, a.astype("f8")),
                    "integers": lambda: self.stream.sum(numpy.arange(3)),
                    "shapes": lambda: self.stream.add(a, a, a[:2]),
                    "overlap": lambda: self.stream.copy(a[1:], a[:-1]),
                    "written": lambda: self.stream.fill(numpy.lib.stride_tricks.as_strided(a, (3, 3), (4, 4)), 1),
                    "product": lambda: self.stream.matmul(a, a, a),
                    "unaligned": lambda: self.stream.sum(numpy.frombuffer(bytes(9), "f4", 2, 1)),
                    "nine": lambda: self.stream.sum(numpy.zeros((1,) * 9, "f4")),
                    "readonly": lambda: self.stream.fill(numpy.broadcast_to(a, (2, 4, 6)), 1),
                }.items():
                    try:
                        await call()
                    except bulkhead.BulkheadError as error:
                        told[name] = [type(error).__name__, error.code, error.facts.get("parameter"),
                                      error.facts.get("accepted"), error.facts.get("reason", "")]
                    else:
                        told[name] = "no error"
                return told

            @bulkhead.endpoint
            async def apart(self) -> bool:
                """Views of one array that share no element may be written and read at once."""
                a = numpy.arange(48, dtype="f8").reshape(6, 8)
                await self.stream.copy(a[:, 0], a[:, 1])
                await self.stream.add(a[:, :4], a[:, 4:], a[:, 4:])
                await self.stream.copy(a[::2], a[1::2])
                await self.stream.add(a, a, a)
                return True
    '''
}

OPS = ("fill", "copy", "scale", "axpy", "add", "mul", "sum", "dot", "max", "top_k", "matvec", "matmul")
CASES = 150  # of each op, with ordinary values and with special ones


@pytest.fixture
def stream(host, needs):
    needs("numpy")
    return host(MANIFEST, APP)


def test_every_kernel_gives_what_numpy_gives_for_random_shapes_and_strides(stream):
    for op in OPS:
        assert stream.call("check", op, 1000, CASES, False, timeout=120) == [], op


def test_every_kernel_treats_nan_infinity_and_zeros_as_numpy_does(stream):
    for op in OPS:
        assert stream.call("check", op, 500_000, CASES, True, timeout=120) == [], op


def test_views_of_one_array_are_told_apart_by_their_elements(stream):
    assert stream.call("apart") is True


def test_what_does_not_fit_is_refused_with_what_would(stream):
    told = stream.call("mistakes")
    code = {name: what[1] for name, what in told.items()}
    assert code == {"types": "stream.dtype", "integers": "stream.dtype", "shapes": "stream.shape",
                    "overlap": "stream.overlap", "written": "stream.overlap", "product": "stream.shape",
                    "unaligned": "stream.alignment", "nine": "op.argument", "readonly": "op.argument"}  # fmt: skip
    assert "convert" in told["types"][3] and told["types"][2] == "b"
    assert "float32 or float64" in told["integers"][3]
    assert told["shapes"][3] == "[4, 6]"
    assert told["overlap"][3] == "memory of its own, or exactly that of a"
    assert "at most 8" in told["nine"][4]
    assert told["readonly"][3] == "a writable buffer, strided or not (a bulkhead.Buffer, a numpy array, a PyTorch tensor of the CPU's, a bytearray)"

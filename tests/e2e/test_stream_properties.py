# SPDX-License-Identifier: BSD-3-Clause
"""The stream plugin's kernels against numpy, on arrays that hypothesis makes up: what it finds wrong it makes small.

All arrays of a case are views of one block of memory, apart from one another or not. They are described to an app,
which makes them there and gives the whole block back: so that what must not be written to is seen as well. numpy and
hypothesis are needed here only, not by the host's Python.
"""

import base64
import math

import pytest
from exporters import EXPORTERS

hypothesis = pytest.importorskip("hypothesis", reason="Debian's python3-hypothesis is not installed")
numpy = pytest.importorskip("numpy", reason="Debian's python3-numpy is not installed")
as_strided = numpy.lib.stride_tricks.as_strided
from hypothesis import given, note, settings, strategies as st  # noqa: E402

# Derandomized: the same cases in each run, so that a change is judged by what it changes.
EXAMPLES = settings(deadline=None, derandomize=True, database=None, print_blob=False,
                    suppress_health_check=list(hypothesis.HealthCheck))  # fmt: skip

MANIFEST = "[plugin stream]\nlibrary = stream\n[app app]\nobject = app:App\n"

APP = {
    "exporters.py": EXPORTERS,
    "app.py": """
        import base64
        import bulkhead
        from exporters import Memory

        class App:
            @bulkhead.endpoint
            async def run(self, op: str, memory: bytes, args: list) -> dict:
                block = Memory(memory)
                made = [block.view(**arg) if isinstance(arg, dict) else float(arg) if isinstance(arg, str) else arg for arg in args]
                try:
                    result, error = await getattr(bulkhead.pool("stream"), op)(*made), None
                except bulkhead.PluginError as told:
                    result, error = None, {"code": told.code, "facts": told.facts}
                if isinstance(result, float):
                    result = repr(result)                    # JSON has no NaN
                elif isinstance(result, list):
                    result = [[index, repr(score)] for index, score in result]
                return {"result": result, "error": error, "memory": base64.b64encode(bytes(block)).decode()}
    """,
}


class Case:
    """A block of memory, and views of it by name."""

    def __init__(self):
        self.size = 0
        self.described = {}
        self.dtypes = {}

    def add(self, name, dtype, shape, strides, at):
        """The lowest byte of the view lies `at` bytes from the block's beginning."""
        dtype = numpy.dtype(dtype)
        spans = [(n - 1) * s for n, s in zip(shape, strides) if n > 0]
        low, high = sum(s for s in spans if s < 0), sum(s for s in spans if s > 0) + dtype.itemsize
        self.size = max(self.size, at + high - low)
        self.dtypes[name] = dtype
        self.described[name] = {"format": dtype.char if dtype.isnative else dtype.byteorder + dtype.char, "itemsize": dtype.itemsize,
                                "offset": at - low, "shape": list(shape), "strides": list(strides)}  # fmt: skip

    def make(self, palette):
        """Fills the block with the bytes of `palette`, again and again."""
        one = numpy.array(palette)
        n = self.size // one.itemsize + 2
        self.before = numpy.resize(one, n).view("u1")[: self.size].copy()

    def array(self, memory, name):
        d = self.described[name]
        base = numpy.ndarray((), self.dtypes[name], memory, d["offset"])
        return as_strided(base, d["shape"], d["strides"])

    def run(self, host, op, *args):
        """Reply of the app: views by their names, the rest as it is."""
        given = [self.described[arg] if isinstance(arg, str) else repr(float(arg)) if isinstance(arg, float) else arg for arg in args]
        note(f"{op} {given}")
        reply = host.call("run", op=op, memory=base64.b64encode(self.before.tobytes()).decode(), args=given)
        self.after = numpy.frombuffer(base64.b64decode(reply["memory"]), "u1").copy()
        return reply

    def others_unchanged(self, *written):
        """No byte has changed that belongs to none of the `written`."""
        mine = numpy.zeros(self.size, bool)
        for name in written:
            d = self.described[name]
            if math.prod(d["shape"]):
                base = numpy.ndarray((), bool, mine, d["offset"])
                as_strided(base, [*d["shape"], d["itemsize"]], [*d["strides"], 1])[...] = True
        return bool((self.after == self.before)[~mine].all())

    def is_aligned(self, *names):
        return all(a.size == 0 or a.flags.aligned and all(n < 2 or s % a.itemsize == 0 for n, s in zip(a.shape, a.strides))
                   for a in (self.array(self.before, name) for name in names))  # fmt: skip


# ---- what is made up ---------------------------------------------------------------------------------

TYPES = st.sampled_from(["f4", "f8"])
# Lengths at which kernels change their ways are 16, 64, 96, 256, 1024 and 4096.
LENGTHS = st.one_of(st.integers(0, 5), st.integers(0, 100), st.sampled_from([255, 256, 257, 1023, 1025, 4095, 4096, 4097, 5000]))
FEW = st.one_of(st.integers(0, 4), st.sampled_from([15, 16, 17, 63, 65, 97]))


def numbers(dtype, kind="any"):
    """Of one kind: "mild", "edges" as well, or "any"."""
    width = 8 * numpy.dtype(dtype).itemsize
    mild, limits = st.floats(-1e3, 1e3, width=width), numpy.finfo(dtype)
    limits = [float(limit) for limit in (limits.max, limits.tiny, limits.smallest_subnormal)]
    edges = st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, *limits, -limits[0]])
    return {"mild": mild, "edges": st.one_of(mild, edges), "any": st.floats(width=width)}[kind]


@st.composite
def palettes(draw, dtype):
    kind = draw(st.sampled_from(["mild", "edges", "edges", "any"]))
    return numpy.array(draw(st.lists(numbers(dtype, kind), min_size=1, max_size=13)), dtype)


@st.composite
def shapes(draw, dims):
    n = draw(st.sampled_from(dims))
    if n == 1:
        return (draw(LENGTHS),)
    shape = [draw(FEW) for _ in range(n)]
    while math.prod(shape) > 8000:
        shape[shape.index(max(shape))] = 2
    return tuple(shape)


@st.composite
def strides_of(draw, shape, itemsize, broadcast):
    """Nested in any order of the dimensions, with gaps, backwards; 0 where it is broadcast."""
    strides, step = [0] * len(shape), itemsize
    for i in draw(st.permutations(range(len(shape)))):
        if broadcast and draw(st.integers(0, 5)) == 0:
            continue
        step *= draw(st.sampled_from([1, 1, 1, 2, 3]))
        strides[i] = step * draw(st.sampled_from([1, 1, -1]))
        step *= max(shape[i], 1)
    return tuple(strides)


@st.composite
def views(draw, case, name, dtype, shape, overlap, written=False):
    """Adds a view. With `overlap` it may begin anywhere in what there is, or be exactly an earlier one."""
    itemsize = numpy.dtype(dtype).itemsize
    at = -(-case.size // 8) * 8
    if overlap and case.described:
        same = [d for d in case.described.values() if tuple(d["shape"]) == tuple(shape) and d["itemsize"] == itemsize]
        if same and draw(st.booleans()):
            case.described[name], case.dtypes[name] = dict(draw(st.sampled_from(same))), numpy.dtype(dtype)
            return
        if draw(st.booleans()):
            at = itemsize * draw(st.integers(0, min(case.size // itemsize, 40)))
    if draw(st.integers(0, 19)) == 0:
        at += draw(st.sampled_from([1, 4]))
    # What is written may be broadcast as well: that has to be refused.
    broadcast = draw(st.integers(0, 9)) == 0 if written else draw(st.booleans())
    case.add(name, dtype, shape, draw(strides_of(shape, itemsize, broadcast)), at)


# ---- what has to come of it --------------------------------------------------------------------------


def is_same(a, b):
    return a.__array_interface__["data"] == b.__array_interface__["data"] and all(
        n < 2 or s == t for n, s, t in zip(a.shape, a.strides, b.strides))  # fmt: skip


def lies_on_itself(a):
    return a.size > 0 and any(n > 1 and s == 0 for n, s in zip(a.shape, a.strides))


def overlap_of(case, out, reads, same_allowed):
    """"must", "may" or "must not" be refused because of who lies where."""
    target, verdict = case.array(case.before, out), "must not"
    if lies_on_itself(target):
        return "must"
    for name in reads:
        source = case.array(case.before, name)
        if not target.size or not source.size or same_allowed and is_same(target, source):
            continue
        if not numpy.may_share_memory(target, source):  # by where they begin and end
            continue
        try:
            if numpy.shares_memory(target, source, max_work=100_000):
                return "must"
        except numpy.TooHardError:
            pass
        verdict = "may"
    return verdict


def refused_rightly(case, reply, verdict, names):
    """Whether it was refused, and had to be or could be; nothing has been written then."""
    error = reply["error"]
    if not case.is_aligned(*names):
        assert error and error["code"] in ("stream.alignment", "stream.overlap"), reply
    elif verdict == "must":
        assert error and error["code"] == "stream.overlap", "elements that are read or written twice were not noticed"
    elif verdict == "must not":
        assert error is None, error
    if error is None:
        return False
    assert {"op", "parameter", "given", "accepted"} <= error["facts"].keys() and error["facts"]["parameter"] in names
    assert (case.after == case.before).all(), "refused, and yet written to"
    return True


def differ(got, want, allowed=0.0):
    """Where the two differ by more than is allowed; equal, or both NaN, is never too much."""
    with numpy.errstate(all="ignore"):
        off = numpy.abs(got.astype("f8") - want.astype("f8"))
        return ~((got == want) | (numpy.isnan(got) & numpy.isnan(want)) | (off <= allowed))


ELEMENTWISE = {"fill": "out", "copy": "out a", "scale": "y", "axpy": "y x", "add": "out a b", "mul": "out a b"}


@st.composite
def elementwise(draw, op):
    case, dtype, overlap = Case(), draw(TYPES), draw(st.booleans())
    shape = draw(shapes((0, 1, 1, 2, 2, 3, 4)))
    names = ELEMENTWISE[op].split()
    for i, name in enumerate(names):
        draw(views(case, name, dtype, shape, overlap, written=i == 0))
    case.make(draw(palettes(dtype)))
    return case, names, draw(st.one_of(numbers(dtype), numbers(dtype, "edges")))


def elementwise_result(op, dtype, number, out, *read):
    """What numpy gives, and what one that rounds once may give."""
    number = numpy.dtype(dtype).type(number)
    if op == "fill":
        return [numpy.full(out.shape, number)]
    if op == "copy":
        return [read[0]]
    if op == "scale":
        return [out * number]
    if op == "axpy":
        fused = (out.astype("g") + numpy.longdouble(number) * read[0].astype("g")).astype(dtype)
        return [out + number * read[0], fused]
    return [read[0] + read[1] if op == "add" else read[0] * read[1]]


@pytest.fixture
def stream(host):
    return host(MANIFEST, APP)


def test_what_works_element_by_element_gives_what_numpy_gives_or_refuses_and_touches_nothing_else(stream):
    seen = {}

    def holds(op, made):
        case, names, number = made
        scalar = [number] if op in ("fill", "scale", "axpy") else []
        args = [names[0], *scalar, *names[1:]]
        reply = case.run(stream, op, *args)
        verdict = overlap_of(case, names[0], names[1:], same_allowed=True)
        refused = refused_rightly(case, reply, verdict, names)
        seen[op, refused] = seen.get((op, refused), 0) + 1
        if refused:
            return
        arrays = [case.array(case.before, name) for name in names]
        with numpy.errstate(all="ignore"):
            wanted = elementwise_result(op, case.dtypes[names[0]], number, *arrays)
        got = case.array(case.after, names[0])
        wrong = numpy.logical_and.reduce([differ(got, want) for want in wanted])
        assert not wrong.any(), (got[wrong][:3], [numpy.asarray(want)[wrong][:3] for want in wanted])
        assert case.others_unchanged(names[0]), "written beyond the elements"

    for op in ELEMENTWISE:
        settings(EXAMPLES, max_examples=100)(given(st.just(op), elementwise(op))(holds))()
    assert all(seen.get((op, refused), 0) >= 5 for op in ELEMENTWISE for refused in (True, False)), seen


@st.composite
def reductions(draw, op):
    case, dtype = Case(), draw(TYPES)
    shape = draw(shapes((1,) if op in ("dot", "top_k") else (0, 1, 1, 2, 3)))
    names = {"dot": ["a", "b"], "top_k": ["scores"]}.get(op, ["a"])
    for name in names:
        draw(views(case, name, dtype, shape, overlap=True))
    case.make(draw(palettes(dtype)))
    k = draw(st.one_of(st.integers(0, 70), st.just(2**62))) if op == "top_k" else None
    return case, names, k


def total_is_right(got, terms, plain, dtype, n_rounded):
    """By the bound that the docs give; beyond the type's range anything that is no finite number will do."""
    limits = numpy.finfo(dtype)
    size = sum(abs(t) for t in plain if math.isfinite(t))  # fsum() does not overflow to infinity
    if any(map(math.isnan, terms)):
        return math.isnan(got)
    if size > float(limits.max) / 4:  # a part of it may have been too much
        return True
    if not all(map(math.isfinite, plain)):
        want = sum(t for t in plain if not math.isfinite(t))
        return math.isnan(got) if math.isnan(want) else got == want
    allowed = 262 * float(limits.eps) * size + n_rounded * float(limits.smallest_subnormal)
    return abs(got - math.fsum(plain)) <= allowed


def test_what_makes_one_of_many_is_as_exact_as_the_docs_say_and_writes_nothing(stream):
    seen = {}

    def holds(op, made):
        case, names, k = made
        reply = case.run(stream, op, *names, *([k] if op == "top_k" else []))
        assert (case.after == case.before).all(), "an input was written to"
        arrays = [case.array(case.before, name) for name in names]
        if op == "max" and arrays[0].size == 0 and case.is_aligned(*names):
            assert reply["error"]["code"] == "stream.shape" and "at least one" in reply["error"]["facts"]["accepted"]
            return
        if refused_rightly(case, reply, "must not", names):
            return
        with_nan = bool(numpy.isnan(arrays[0]).any())
        seen[op, with_nan] = seen.get((op, with_nan), 0) + 1
        a, result = arrays[0], reply["result"]
        if op == "top_k":
            order = numpy.argsort(-a, kind="stable")
            want = [[int(i), float(a[i])] for i in order if not math.isnan(a[i])][:k]
            assert [[i, float(score)] for i, score in result] == want
        elif op == "max":
            assert not differ(numpy.float64(result), a.max().astype("f8"))
        else:
            with numpy.errstate(all="ignore"):
                terms = a * arrays[1] if op == "dot" else a
                exact = a.astype("f8") * arrays[1].astype("f8") if op == "dot" else a.astype("f8")
            # Products of doubles are exact only as far as doubles go.
            assert total_is_right(float(result), terms.ravel().tolist(), exact.ravel().tolist(), a.dtype, 2 * a.size), result

    ops = ("sum", "dot", "max", "top_k")
    for op in ops:
        settings(EXAMPLES, max_examples=120)(given(st.just(op), reductions(op))(holds))()
    assert all(seen.get((op, False), 0) >= 40 and seen.get((op, True), 0) >= 8 for op in ops), seen


@st.composite
def products(draw, op):
    case, dtype, overlap = Case(), draw(TYPES), draw(st.integers(0, 3)) == 0
    m, k = draw(FEW), draw(FEW)
    inner = () if op == "matvec" else (draw(FEW),)
    names = ["out", "m", "x"] if op == "matvec" else ["out", "a", "b"]
    for i, (name, shape) in enumerate(zip(names, [(m, *inner), (m, k), (k, *inner)])):
        draw(views(case, name, dtype, shape, overlap, written=i == 0))
    case.make(draw(palettes(dtype)))
    return case, names


def test_products_of_matrices_are_as_exact_as_the_docs_say_or_refused(stream):
    seen = {}

    def holds(op, made):
        case, names = made
        reply = case.run(stream, op, *names)
        verdict = overlap_of(case, names[0], names[1:], same_allowed=False)
        refused = refused_rightly(case, reply, verdict, names)
        seen[op, refused] = seen.get((op, refused), 0) + 1
        if refused:
            return
        a, b = (case.array(case.before, name).astype("f8") for name in names[1:])
        got, dtype = case.array(case.after, names[0]), case.dtypes["out"]
        limits = numpy.finfo(dtype)
        with numpy.errstate(all="ignore"):
            want, size = a @ b, abs(a) @ abs(b)
            whole = numpy.isfinite(size) & (size < float(limits.max) / 4)
            k = a.shape[1]
            allowed = float(limits.eps) * (max(k, 262) + 2) * size + 2 * (k + 1) * float(limits.smallest_subnormal)
        wrong = differ(got, want, allowed) & whole
        assert not wrong.any(), (got[wrong][:3], want[wrong][:3], allowed[wrong][:3])
        # A NaN that comes in goes out: in its row, and in its column.
        nan = numpy.isnan(a).any(axis=1)
        nan = nan | numpy.isnan(b).any() if op == "matvec" else nan[:, None] | numpy.isnan(b).any(axis=0)[None, :]
        assert numpy.isnan(got[numpy.broadcast_to(nan, got.shape)]).all(), "NaN was lost"
        assert case.others_unchanged("out"), "written beyond the elements"

    for op in ("matvec", "matmul"):
        settings(EXAMPLES, max_examples=150)(given(st.just(op), products(op))(holds))()
        assert seen.get((op, False), 0) >= 40 and seen.get((op, True), 0) >= 5, seen


TAKEN = ("f4", "f8")


@st.composite
def mismatched(draw):
    """Types and shapes that mostly do not go together."""
    case, op = Case(), draw(st.sampled_from(["copy", "add", "mul", "dot", "matvec", "matmul"]))
    names = {"copy": ["out", "a"], "dot": ["a", "b"], "matvec": ["out", "m", "x"]}.get(op, ["out", "a", "b"])
    dtypes, kinds = [], st.sampled_from(["f4", "f8"] * 4 + ["f2", "i4", "i8", "u1", "?", ">f4", ">f8", "c8"])
    pool = [draw(kinds) for _ in range(2)]
    extents = st.integers(0, 3)
    shape = tuple(draw(st.lists(extents, max_size=3)))
    for name in names:
        dtypes.append(draw(st.sampled_from(pool)))
        own = shape if draw(st.booleans()) else tuple(draw(st.lists(extents, max_size=3)))
        itemsize = numpy.dtype(dtypes[-1]).itemsize
        case.add(name, dtypes[-1], own, draw(strides_of(own, itemsize, False)), -(-case.size // 8) * 8)
    case.make(numpy.arange(1, 14, dtype="f4"))
    return case, op, names, dtypes


def fit(op, shapes):
    if op in ("copy", "add", "mul"):
        return len(set(shapes)) == 1
    if op == "dot":
        return len(shapes[0]) == 1 and shapes[0] == shapes[1]
    out, a, b = shapes
    return len(a) == 2 and len(b) == (1 if op == "matvec" else 2) and b[0] == a[1] and out == (a[0], *b[1:])


def test_types_and_shapes_that_do_not_go_together_are_refused_by_name_and_nothing_is_written(stream):
    seen = {}

    @settings(EXAMPLES, max_examples=250)
    @given(mismatched())
    def holds(made):
        case, op, names, dtypes = made
        reply = case.run(stream, op, *names)
        fits = fit(op, [tuple(case.described[name]["shape"]) for name in names])
        types = len(set(dtypes)) == 1 and dtypes[0] in TAKEN
        code = reply["error"] and reply["error"]["code"]
        seen[code] = seen.get(code, 0) + 1
        if fits and types:
            assert code is None, reply
            return
        assert code in (["stream.dtype"] if fits else ["stream.shape"] if types else ["stream.dtype", "stream.shape"]), reply
        facts = reply["error"]["facts"]
        assert facts["op"] == op and facts["parameter"] in names and facts["given"] and facts["accepted"], facts
        assert (case.after == case.before).all(), "refused, and yet written to"

    holds()
    assert min(seen.get(code, 0) for code in (None, "stream.dtype", "stream.shape")) >= 10, seen

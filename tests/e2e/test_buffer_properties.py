# SPDX-License-Identifier: BSD-3-Clause
"""Memory given to ops, of whatever format and shape hypothesis makes up: it arrives as what it is, or is refused in words.

One host for all; the exporters are made in it, so that any of its Pythons will do, and none needs numpy.
"""

import base64
import math

import pytest
from exporters import EXPORTERS
from test_buffers import TENSORS

hypothesis = pytest.importorskip("hypothesis", reason="Debian's python3-hypothesis is not installed")
from hypothesis import given, note, settings, strategies as st  # noqa: E402

EXAMPLES = settings(deadline=None, derandomize=True, database=None, print_blob=False,
                    suppress_health_check=list(hypothesis.HealthCheck))  # fmt: skip

MANIFEST = "[plugin types]\nlibrary = t_types\n[app app]\nobject = app:App\n"

APP = {
    "exporters.py": EXPORTERS,
    "tensors.py": TENSORS,
    "app.py": """
        import asyncio
        import base64
        import gc
        import bulkhead
        import tensors
        from exporters import Memory

        async def outcome(op, *args):
            try:
                return {"result": await op(*args)}
            except bulkhead.BadArgument as error:
                return {"refused": error.facts}

        patience = [10000]

        async def true(condition):
            for _ in range(patience[0]):
                if condition():
                    return True
                await asyncio.sleep(0.001)
            patience[0] = 50         # what is wrong once is wrong again while the case is made smaller
            return False

        def released(view):
            try:
                view.release()
            except BufferError:
                return False
            return True

        class App:
            async def start(self):
                self.types = bulkhead.pool("types")

            async def all_ops(self, memory, written):
                types, said = self.types, {}
                said["info"] = await outcome(types.info, memory)
                said["strides"] = await outcome(types.strides, memory)
                said["fill"] = await outcome(types.fill, memory, 0xA5)
                said["filled"] = base64.b64encode(written()).decode()
                said["mark"] = await outcome(types.mark, memory, 0x5A) if len(said["strides"].get("result", ())) == 1 else None
                said["marked"] = base64.b64encode(written()).decode()
                return said

            @bulkhead.endpoint
            async def views(self, data: bytes, view: dict) -> dict:
                block = Memory(data)
                made = block.view(**view)
                said = await self.all_ops(made, lambda: bytes(block))
                said["released"] = await true(lambda: released(made))    # nobody has kept an export
                return said

            @bulkhead.endpoint
            async def tensors(self, kind: str, size: int, tensor: dict) -> dict:
                if "device" in tensor:
                    tensor["device"] = tuple(tensor["device"])
                made = getattr(tensors, kind)(tuple(tensor.pop("shape")), size=size, **tensor)
                memory = made.memory
                said = await self.all_ops(made, lambda: bytes(memory))
                del made
                gc.collect()
                said["deleted"] = await true(lambda: not tensors.LIVE)
                said["twice"] = len(tensors.TWICE)
                return said
    """,
}

INT, UINT, FLOAT, OPAQUE = 0, 1, 2, 3  # as DLPack numbers them; see include/bulkhead/plugin.h
LETTERS = dict.fromkeys("bhilqn", INT) | dict.fromkeys("BHILQN", UINT) | dict.fromkeys("efd", FLOAT)
SIZES = {"b": 1, "B": 1, "h": 2, "H": 2, "i": 4, "I": 4, "l": 8, "L": 8, "q": 8, "Q": 8, "n": 8, "N": 8, "e": 2, "f": 4, "d": 8, "?": 1,
         "c": 1, "P": 8, "g": 16, "2i": 8, "Zf": 8, "Zd": 16, "T{i:a:d:b:}": 16, "3x": 3, "w": 4, "(2,3)f": 24, "40s": 40, "": 1}  # fmt: skip


def code_of(format, itemsize):
    if format is None:
        return UINT
    order = format[0] if format[:1] in tuple("@=<>!") else "@"
    letter = format.removeprefix(order)
    return OPAQUE if order in ">!" and itemsize > 1 else LETTERS.get(letter, OPAQUE)


@st.composite
def formats(draw):
    """A format, and how many bytes an element of it has."""
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return None, 1
    if kind == 1:  # of somebody's own: only the length can be believed
        return draw(st.text("bBhiIefdZT{}:,()<>=!@ x?0123456789ä", max_size=6)), draw(st.sampled_from([1, 3, 5, 31, 32, 255, 300]))
    letter = draw(st.sampled_from(sorted(SIZES)))
    return draw(st.sampled_from(["", "", "", "@", "=", "<", ">", "!"])) + letter, SIZES[letter]


@st.composite
def lying(draw, itemsize, most, odd=7):
    """Shape, strides (bytes; `odd` may be one), offset and size of a block that holds it all."""
    n = draw(st.sampled_from([0, 1, 1, 1, 2, 2, 3, 4, 8, 9, 12]))
    shape = [draw(st.sampled_from([0, 1, 1, 2, 3, 5])) if n > 1 else draw(st.integers(0, 20)) for _ in range(n)]
    while math.prod(shape) * itemsize > most:
        shape[shape.index(max(shape))] = 1
    plain, step = [0] * n, itemsize
    for i in reversed(range(n)):
        plain[i] = step
        step *= shape[i]
    strides = list(plain)
    if draw(st.booleans()):
        for i in range(n):
            strides[i] = draw(st.sampled_from([plain[i], plain[i], -plain[i], 2 * plain[i], itemsize, 0, odd]))
    spans = [(extent - 1) * stride for extent, stride in zip(shape, strides) if extent]
    if 0 in shape:
        spans = []
    low, high = sum(s for s in spans if s < 0), sum(s for s in spans if s > 0) + itemsize
    offset = draw(st.integers(0, 9)) - low
    return shape, strides, offset, offset + high + draw(st.integers(0, 9))


def places(shape, strides, offset):
    """Where each element begins."""
    found = [offset]
    for extent, stride in zip(shape, strides):
        found = [at + i * stride for at in found for i in range(extent)]
    return found


def contiguous(shape, strides, itemsize):
    """None where nobody can say: of nothing any strides are as good as others."""
    if 0 in shape:
        return None
    step = itemsize
    for extent, stride in zip(reversed(shape), reversed(strides)):
        if extent > 1 and stride != step:
            return False
        step *= extent
    return True


def written(before, shape, strides, offset, itemsize, value, whole):
    after = bytearray(before)
    for at in places(shape, strides, offset):
        after[at : at + (itemsize if whole else 1)] = bytes([value]) * (itemsize if whole else 1)
    return bytes(after)


def check_refusal(op, answer, *words):
    facts = answer["refused"]
    assert facts["pool"] == "types" and facts["op"] == op and facts["parameter"] and facts["given"] and facts["accepted"], facts
    assert any(word in facts["reason"] for word in words), (facts, words)


def check_all(said, before, lies, itemsize, expected, readonly, seen):
    """What info, strides, fill and mark said and did, for memory that may be taken if its dimensions allow it."""
    shape, strides, offset, _ = lies
    kept = contiguous(shape, strides, itemsize)
    whole, marked, filled = said["info"], base64.b64decode(said["marked"]), base64.b64decode(said["filled"])
    if len(shape) > 8:
        for op in ("info", "strides", "fill"):
            check_refusal(op, said[op], "at most 8", "not C-contiguous", "read-only", "contiguous")
        assert filled == marked == before
        return seen.append("dimensions")
    if "result" in whole:
        assert kept is not False and whole["result"] == expected, whole
    else:
        assert kept is not True
        check_refusal("info", whole, "contiguous")
        seen.append("strided")
    got = said["strides"]["result"]  # any strides will do there
    assert all(g == s for g, s, n in zip(got, strides, shape) if n > 1) and len(got) == len(shape) or 0 in shape, got
    if readonly:
        check_refusal("fill", said["fill"], "read-only")
        assert said["mark"] is None or "read-only" in said["mark"]["refused"]["reason"]
        assert filled == marked == before, "written to what is read-only"
        return seen.append("read-only")
    if "result" in said["fill"]:
        assert "result" in whole and filled == written(before, shape, strides, offset, itemsize, 0xA5, whole=True)
        seen.append("filled")
    else:
        check_refusal("fill", said["fill"], "contiguous")
        assert "refused" in whole and filled == before
    if said["mark"] is not None:
        assert marked == written(filled, shape, strides, offset, itemsize, 0x5A, whole=False), said["mark"]
        seen.append("marked")


@st.composite
def exported(draw):
    format, itemsize = draw(formats())
    return format, itemsize, draw(lying(itemsize, 3000)), draw(st.booleans())


def test_any_exporters_memory_arrives_as_what_it_is_or_is_refused_and_is_let_go_of(host):
    h, seen = host(MANIFEST, APP), []

    @settings(EXAMPLES, max_examples=400)
    @given(exported())
    def holds(made):
        format, itemsize, lies, readonly = made
        shape, strides, offset, size = lies
        before = bytes(i % 251 for i in range(size))
        view = {"format": format, "itemsize": itemsize, "offset": offset, "shape": shape, "strides": strides, "readonly": readonly}
        said = h.call("views", data=base64.b64encode(before).decode(), view=view)
        note(str(said))
        bits = 8 * itemsize if itemsize <= 31 else 0  # more than the field holds
        expected = [code_of(format, itemsize), bits, int(not readonly), itemsize * math.prod(shape), *shape]
        check_all(said, before, lies, itemsize, expected, readonly, seen)
        assert said["released"], "an export was kept"

    holds()
    assert {what for what in seen if seen.count(what) >= 15} == {"dimensions", "strided", "read-only", "filled", "marked"}
    assert h.stop() == 0


@st.composite
def tensors(draw):
    kind = draw(st.sampled_from(["Tensor", "Modern", "Frozen"]))
    bits = draw(st.sampled_from([8, 16, 32, 32, 64, 128, 24, 240]))
    lies = draw(lying(bits // 8, 2000, odd=3 * (bits // 8)))
    tensor = {"code": draw(st.integers(0, 7)), "bits": bits, "shape": lies[0]}
    shape, strides, offset, size = lies
    if draw(st.booleans()):
        tensor["strides"] = [s // (bits // 8) for s in strides]
    else:  # none: one behind the other
        strides, step = [0] * len(shape), bits // 8
        for i in reversed(range(len(shape))):
            strides[i], step = step, step * shape[i]
        size, lies = offset + max(step, bits // 8), (shape, strides, offset, size)
    fault = draw(st.sampled_from([{}] * 5 + [{"bits": 4}, {"bits": 0}, {"lanes": 2}, {"device": [2, 0]}, {"device": [8, 1]}, {"null": True}]))
    return kind, bits // 8, lies, tensor | fault, fault, size


FAULTS = {"bits": "bits", "lanes": "lanes", "device": "tensor.cpu()", "null": "no memory"}


def test_any_tensor_arrives_as_what_it_is_or_is_refused_and_its_deleter_is_called_once(host):
    h, seen = host(MANIFEST, APP), []

    @settings(EXAMPLES, max_examples=300)
    @given(tensors())
    def holds(made):
        kind, itemsize, lies, tensor, fault, size = made
        shape, strides, offset, _ = lies
        said = h.call("tensors", kind=kind, size=size - offset, tensor=tensor | {"offset": offset})
        note(str(said))
        assert said["deleted"] and said["twice"] == 0
        before = bytes(size + 1)  # as tensors.py makes it
        if fault and not (fault.get("null") and 0 in shape):
            word = FAULTS[next(iter(fault))]
            for op in ("info", "strides", "fill"):
                # Of two faults either may be named.
                check_refusal(op, said[op], word, "at most 8", *(["read-only"] if kind == "Frozen" and op == "fill" else []))
            assert base64.b64decode(said["marked"]) == before
            seen.append("fault")
            return
        readonly = kind == "Frozen"
        code = tensor["code"] if tensor["code"] < 3 else OPAQUE
        expected = [code, tensor["bits"], int(not readonly), itemsize * math.prod(shape), *shape]
        check_all(said, before, lies, itemsize, expected, readonly, seen)

    holds()
    assert {what for what in seen if seen.count(what) >= 8} == {"dimensions", "strided", "read-only", "filled", "marked", "fault"}
    assert h.stop() == 0

# SPDX-License-Identifier: BSD-3-Clause
"""For apps of tests: memory of any format, shape and strides behind the buffer protocol, on any Python, without numpy.

EXPORTERS is the text of a module for the host.
"""

EXPORTERS = '''
    """A memoryview whose description is made up: what it says is the caller's to get right."""

    import ctypes

    class PyBuffer(ctypes.Structure):
        _fields_ = [("buf", ctypes.c_void_p), ("obj", ctypes.c_void_p), ("len", ctypes.c_ssize_t),
                    ("itemsize", ctypes.c_ssize_t), ("readonly", ctypes.c_int), ("ndim", ctypes.c_int),
                    ("format", ctypes.c_char_p), ("shape", ctypes.POINTER(ctypes.c_ssize_t)),
                    ("strides", ctypes.POINTER(ctypes.c_ssize_t)), ("suboffsets", ctypes.POINTER(ctypes.c_ssize_t)),
                    ("internal", ctypes.c_void_p)]

    from_buffer = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.POINTER(PyBuffer))(("PyMemoryView_FromBuffer", ctypes.pythonapi))

    class Memory:
        """A block of bytes and views of it. It must outlive them: they borrow it."""

        def __init__(self, data):
            self.size = len(data)
            self.block = (ctypes.c_double * (len(data) // 8 + 1))()   # of doubles: aligned as they are
            self.address = ctypes.addressof(self.block)
            ctypes.memmove(self.address, data, len(data))
            self.kept = []

        def __bytes__(self):
            return ctypes.string_at(self.address, self.size)

        def view(self, format, itemsize, offset, shape, strides, readonly=False):
            """`format` None: none is given. Offset and strides in bytes."""
            n, length = len(shape), itemsize
            for extent in shape:
                length *= extent
            numbers = ctypes.c_ssize_t * max(n, 1)
            text = None if format is None else format.encode()
            description = PyBuffer(self.address + offset, None, length, itemsize, readonly, n, text,
                                   numbers(*shape), numbers(*strides), None, None)
            self.kept.append((description, text))
            return from_buffer(ctypes.byref(description))
'''

# SPDX-License-Identifier: BSD-3-Clause
"""The app behind bulkhead.testing.run(): runs one importable coroutine function in the host."""

from __future__ import annotations

import base64
import importlib
import json
import pickle
import traceback
from typing import Any

from ._endpoint import endpoint


class Runner:
    @endpoint
    async def run(self, name: str, payload: str) -> str:
        """`name`: module:attribute; `payload`: its arguments. Returns what became of it, as JSON."""
        try:
            module, _, path = name.partition(":")
            function: Any = importlib.import_module(module)
            for attribute in path.split("."):
                function = getattr(function, attribute)
            return json.dumps({"result": _pack(await function(*pickle.loads(base64.b64decode(payload))))})
        except Exception as error:
            shown = "".join(traceback.format_exception(error))
            try:
                packed = _pack(error)
                pickle.loads(base64.b64decode(packed))  # some can be pickled, but not made again
            except Exception:
                packed = _pack(RuntimeError(f"{type(error).__name__}: {error}"))
            return json.dumps({"raised": packed, "traceback": shown})


def _pack(value: Any) -> str:
    return base64.b64encode(pickle.dumps(value)).decode()

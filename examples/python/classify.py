"""As examples/c/classify.c, in Python with NumPy alone: the package's own loader.py is all that it imports.

modelc compile MODEL.onnx -o net.modelc
python classify.py net.modelc input.bin
"""

from __future__ import annotations

import sys

import numpy as np

package, file = sys.argv[1:]
sys.path.insert(0, package)
from loader import load  # noqa: E402

with load(package, threads=1) as model:
    given, taken = model.inputs[0], model.outputs[0]
    x = np.fromfile(file, np.float32).reshape(given.shape)
    y = model.run({given.name: x})[taken.name].reshape(-1)
print(int(y.argmax()), f"{y.max():.6f}")

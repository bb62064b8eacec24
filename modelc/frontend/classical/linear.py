"""What converters of scikit-learn, XGBoost and LightGBM emit (domain ai.onnx.ml) in ONNX's own words. Labels that are
strings are refused; trees are in trees.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modelc.frontend.building.build import Builder, OnnxNode
from modelc.ir.expr import DTYPES

ML = "ai.onnx.ml"
ZERO = 1e-7  # below it SOFTMAX_ZERO takes a score for none
ERFINV = 0.147  # the constant of Winitzki's inverse of erf, which ONNX Runtime's PROBIT is made of


def number(b: Builder, n: OnnxNode, value: Any, dtype: str) -> str:
    return b.constant(np.asarray(value).astype(DTYPES[dtype]), f"{n.outputs[0]}_constant")


def cast(b: Builder, n: OnnxNode, x: str, dtype: str, outputs: Sequence[str] | None = None) -> str:
    if b.value(x).dtype == dtype and outputs is None:
        return x
    return b.emit(n, "Cast", (x,), {"to": dtype}, outputs)


def rows(b: Builder, n: OnnxNode, x: str) -> str:
    """A matrix of one row for each sample: a vector is one sample."""
    shape = b.shape(x)
    if len(shape) not in (1, 2):
        raise n.fail(f"expected samples of one or two dimensions, found {list(shape)}")
    return x if len(shape) == 2 else b.reshape(n, x, (1, *shape))


def features(b: Builder, n: OnnxNode, x: str) -> int:
    """The last dimension of `x`."""
    if not b.shape(x):
        raise n.fail("expected an array that has features, found a number")
    return b.shape(x)[-1]


def floats(n: OnnxNode, name: str) -> NDArray[Any]:
    return np.asarray(n.attrs.get(name) or (), np.float32)


def strings_refused(name: str) -> str:
    """Why a node whose attribute or input of that name is of strings is refused."""
    return (
        f"its {name} are strings, which a package does not have; convert the model with whole numbers as labels, and "
        "look the strings up after it"
    )


def refuse_strings(n: OnnxNode, *names: str) -> None:
    if used := [name for name in names if n.attrs.get(name)]:
        raise n.fail(strings_refused(used[0]))


def labels_of(n: OnnxNode, ints: str, count: int) -> NDArray[Any]:
    """The classes' labels; without any, 0, 1, ..."""
    labels = np.asarray(n.attrs.get(ints) or np.arange(max(count, 2)), np.int64)
    if len(labels) < count:
        raise n.fail(f"expected {count} labels, found {len(labels)}")
    return labels


# --- scores ---------------------------------------------------------------------------------------------------------


def transformed(b: Builder, n: OnnxNode, scores: str, transform: str, output: str) -> None:
    """`output`: the scores [samples, classes] after `post_transform`."""
    dtype = b.value(scores).dtype
    if transform == "SOFTMAX":
        b.emit(n, "Softmax", (scores,), {"axis": -1}, (output,))
    elif transform == "LOGISTIC":
        b.emit(n, "Sigmoid", (scores,), {}, (output,))
    elif transform == "SOFTMAX_ZERO":
        _softmax_zero(b, n, scores, dtype, output)
    elif transform == "PROBIT":
        _probit(b, n, scores, dtype, output)
    elif transform == "NONE":
        b.bind(n, output, scores)
    else:
        raise n.fail(f"expected post_transform NONE, SOFTMAX, LOGISTIC, SOFTMAX_ZERO or PROBIT, found {transform!r}")


def _softmax_zero(b: Builder, n: OnnxNode, x: str, dtype: str, output: str) -> None:
    """Softmax over those that are not zero; the others are scaled alike."""
    axes = b.constant(np.array([-1], np.int64), f"{n.outputs[0]}_axes")
    most = b.emit(n, "ReduceMax", (x, axes), {"keepdims": 1})
    power = b.emit(n, "Exp", (b.emit(n, "Sub", (x, most)),))
    there = b.emit(n, "Greater", (b.emit(n, "Abs", (x,)), number(b, n, ZERO, dtype)))
    total = b.emit(n, "Where", (there, power, number(b, n, 0, dtype)))
    total = b.emit(n, "ReduceSum", (total, axes), {"keepdims": 1})
    scaled = b.emit(n, "Mul", (x, b.emit(n, "Exp", (b.emit(n, "Neg", (most,)),))))
    b.emit(n, "Div", (b.emit(n, "Where", (there, power, scaled)), total), {}, (output,))


def _probit(b: Builder, n: OnnxNode, x: str, dtype: str, output: str) -> None:
    def of(op: str, *inputs: str) -> str:
        return b.emit(n, op, inputs)

    def c(value: float) -> str:
        return number(b, n, value, dtype)

    y = of("Sub", of("Mul", x, c(2)), c(1))
    log = of("Log", of("Mul", of("Sub", c(1), y), of("Add", c(1), y)))
    half = of("Add", of("Mul", log, c(0.5)), c(2 / (np.pi * ERFINV)))
    inner = of("Sub", of("Sqrt", of("Sub", of("Mul", half, half), of("Mul", log, c(1 / ERFINV)))), half)
    sign = of("Sub", c(1), of("Mul", c(2), cast(b, n, of("Less", y, c(0)), dtype)))
    b.emit(n, "Mul", (of("Mul", sign, of("Sqrt", inner)), c(2**0.5)), {}, (output,))


def chosen(b: Builder, n: OnnxNode, index: str, labels: NDArray[Any], output: str) -> None:
    """`output`: the labels of the classes `index`."""
    b.emit(n, "Gather", (b.constant(labels, f"{output}_labels"), index), {"axis": 0}, (output,))


def best(b: Builder, n: OnnxNode, scores: str) -> str:
    """The class of the greatest score, the first of equal ones."""
    return b.emit(n, "ArgMax", (scores,), {"axis": 1, "keepdims": 0})


def positive(b: Builder, n: OnnxNode, score: str, above: float) -> str:
    """1 where the only score [samples, 1] is greater than `above`."""
    count = b.shape(score)[0]
    hit = b.emit(n, "Greater", (b.reshape(n, score, (count,)), number(b, n, above, b.value(score).dtype)))
    return cast(b, n, hit, "int64")


# --- linear models ----------------------------------------------------------------------------------------------------


def _linear(b: Builder, n: OnnxNode, count: int) -> str:
    """Scores [samples, count]."""
    x = rows(b, n, cast(b, n, n.inputs[0], "float32"))
    width, weights, bias = b.shape(x)[1], floats(n, "coefficients"), floats(n, "intercepts")
    if weights.size != count * width or bias.size not in (0, count):
        raise n.fail(f"expected {count} x {width} coefficients, found {weights.size}, and {bias.size} intercepts")
    given = [b.constant(weights.reshape(count, width), f"{n.outputs[0]}_coefficients")]
    given += [b.constant(bias, f"{n.outputs[0]}_intercepts")] if bias.size else []
    return b.emit(n, "Gemm", (x, *given), {"transB": 1})


def _linear_regressor(b: Builder, n: OnnxNode) -> None:
    scores = _linear(b, n, int(n.attrs.get("targets", 1)))
    transformed(b, n, scores, str(n.attrs.get("post_transform", "NONE")), n.outputs[0])


def _linear_classifier(b: Builder, n: OnnxNode) -> None:
    refuse_strings(n, "classlabels_strings")
    count = max(len(floats(n, "intercepts")), 1)
    transform = str(n.attrs.get("post_transform", "NONE"))
    scores, labels = _linear(b, n, count), labels_of(n, "classlabels_ints", count)
    alone = count == 1
    if n.wants(0):
        index = positive(b, n, scores, 0) if alone else best(b, n, scores)
        two = labels if not alone or len(labels) == 2 else np.arange(2)
        chosen(b, n, index, two, n.outputs[0])
    if n.wants(1) and alone and len(n.attrs.get("classlabels_ints") or ()) == 2:
        both(b, n, scores, transform, n.outputs[1])
    elif n.wants(1):
        transformed(b, n, scores, transform, n.outputs[1])


def both(b: Builder, n: OnnxNode, score: str, transform: str, output: str, signed: bool = False) -> None:
    """`output`: scores of two classes from that of the second: a probability, or with `signed` a distance."""
    if transform == "LOGISTIC":
        b.emit(n, "Sigmoid", (b.emit(n, "Concat", (b.emit(n, "Neg", (score,)), score), {"axis": 1}),), {}, (output,))
        return
    if transform == "PROBIT":
        raise n.fail("expected scores of both classes for post_transform PROBIT, found one")
    first = b.emit(n, "Neg", (score,)) if signed else b.emit(n, "Sub", (number(b, n, 1, b.value(score).dtype), score))
    pair = b.emit(n, "Concat", (first, score), {"axis": 1})
    b.bind(n, output, pair)


# --- preparation ------------------------------------------------------------------------------------------------------


def _scaler(b: Builder, n: OnnxNode) -> None:
    x = cast(b, n, n.inputs[0], "float32")
    for op, name in (("Sub", "offset"), ("Mul", "scale")):
        values = floats(n, name)
        if values.size not in (1, features(b, n, x)):
            raise n.fail(f"expected 1 or {features(b, n, x)} numbers in {name}, found {values.size}")
        x = b.emit(n, op, (x, number(b, n, values, "float32")), {}, n.outputs if op == "Mul" else None)


def _normalizer(b: Builder, n: OnnxNode) -> None:
    x, norm = cast(b, n, n.inputs[0], "float32"), str(n.attrs.get("norm", "MAX"))
    reduction = {"MAX": "ReduceMax", "L1": "ReduceL1", "L2": "ReduceL2"}.get(norm)
    if reduction is None:
        raise n.fail(f"expected norm MAX, L1 or L2, found {norm!r}")
    features(b, n, x)
    axes = b.constant(np.array([-1], np.int64), f"{n.outputs[0]}_axes")
    size = b.emit(n, reduction, (x, axes), {"keepdims": 1})
    none = b.emit(n, "Equal", (size, number(b, n, 0, "float32")))
    b.emit(n, "Div", (x, b.emit(n, "Where", (none, number(b, n, 1, "float32"), size))), {}, n.outputs)


def _imputer(b: Builder, n: OnnxNode) -> None:
    x = n.inputs[0]
    dtype = b.value(x).dtype
    real = dtype.startswith("float")
    values = n.attrs.get("imputed_value_floats" if real else "imputed_value_int64s") or ()
    missing = n.attrs.get("replaced_value_float" if real else "replaced_value_int64", 0)
    if len(values) not in (1, features(b, n, x)):
        raise n.fail(f"expected 1 or {features(b, n, x)} imputed values of {dtype}, found {len(values)}")
    if real and np.isnan(missing):
        there = b.emit(n, "IsNaN", (x,))
    else:
        there = b.emit(n, "Equal", (x, number(b, n, missing, dtype)))
    b.emit(n, "Where", (there, number(b, n, values, dtype), x), {}, n.outputs)


def _binarizer(b: Builder, n: OnnxNode) -> None:
    dtype = b.value(n.inputs[0]).dtype
    above = b.emit(n, "Greater", (n.inputs[0], number(b, n, n.attrs.get("threshold", 0.0), dtype)))
    cast(b, n, above, dtype, n.outputs)


def _array_feature_extractor(b: Builder, n: OnnxNode) -> None:
    x, index = n.inputs
    shape, count = b.shape(x), int(np.prod(b.shape(index)))
    features(b, n, x)
    x = b.reshape(n, x, (1, *shape)) if len(shape) == 1 else x
    b.emit(n, "Gather", (x, b.reshape(n, index, (count,))), {"axis": len(b.shape(x)) - 1}, n.outputs)


def _feature_vectorizer(b: Builder, n: OnnxNode) -> None:
    parts = [rows(b, n, cast(b, n, x, "float32")) for x in n.inputs]
    sizes = tuple(n.attrs.get("inputdimensions") or (b.shape(x)[1] for x in parts))
    if sizes != tuple(b.shape(x)[1] for x in parts):
        raise n.fail(f"expected inputs of {list(sizes)} features, found {[b.shape(x)[1] for x in parts]}")
    b.emit(n, "Concat", parts, {"axis": 1}, n.outputs)


def _one_hot_encoder(b: Builder, n: OnnxNode) -> None:
    refuse_strings(n, "cats_strings")
    x = cast(b, n, n.inputs[0], "int64")
    shape = b.shape(x)
    cats = b.constant(np.asarray(n.attrs.get("cats_int64s") or (), np.int64), f"{n.outputs[0]}_categories")
    hit = b.emit(n, "Equal", (b.reshape(n, x, (*shape, 1)), cats))
    cast(b, n, hit, "float32", n.outputs)


KINDS = {"int64s": "int64", "floats": "float32"}


def _label_encoder(b: Builder, n: OnnxNode) -> None:
    """Equality with every key; of the keys that are equal the first."""
    refuse_strings(n, "keys_strings", "values_strings", "classes_strings")
    keys, values = _mapping(n, "keys"), _mapping(n, "values")
    kind = "int64" if values.dtype == np.int64 else "float"
    default = n.attrs.get("default_tensor", n.attrs.get(f"default_{kind}", -1 if kind == "int64" else -0.0))
    x, dtype = n.inputs[0], values.dtype.name
    if np.size(default) != 1:
        raise n.fail(f"expected one number as default, found {np.size(default)}")
    if keys.shape != values.shape or keys.ndim != 1 or not keys.size:
        raise n.fail(f"expected as many keys as values, found {keys.size} and {values.size}")
    shape = b.shape(x)
    each = b.reshape(n, cast(b, n, x, keys.dtype.name), (*shape, 1))
    table = b.constant(keys, f"{n.outputs[0]}_keys")
    hit = b.emit(n, "Equal", (each, table))
    if keys.dtype.kind == "f" and np.isnan(keys).any():
        none = b.constant(np.isnan(keys), f"{n.outputs[0]}_none")
        hit = b.emit(n, "Or", (hit, b.emit(n, "And", (b.emit(n, "IsNaN", (each,)), none))))
    matches = cast(b, n, hit, "int32")
    at = b.emit(n, "ArgMax", (matches,), {"axis": len(shape), "keepdims": 0})
    axes = b.constant(np.array([len(shape)], np.int64), f"{n.outputs[0]}_axes")
    there = cast(b, n, b.emit(n, "ReduceMax", (matches, axes), {"keepdims": 0}), "bool")
    value = b.emit(n, "Gather", (b.constant(values, f"{n.outputs[0]}_values"), at), {"axis": 0})
    otherwise = number(b, n, np.asarray(default).reshape(()), dtype)
    b.emit(n, "Where", (there, value, otherwise), {}, n.outputs)


def _mapping(n: OnnxNode, name: str) -> NDArray[Any]:
    if f"{name}_tensor" in n.attrs:
        return np.asarray(n.attrs[f"{name}_tensor"])
    for suffix, dtype in KINDS.items():
        if n.attrs.get(f"{name}_{suffix}"):
            return np.asarray(n.attrs[f"{name}_{suffix}"], dtype)
    raise n.fail(f"expected {name} that are numbers, found none")


CLASSICAL: dict[tuple[str, str], Callable[[Builder, OnnxNode], None]] = {
    (ML, "LinearRegressor"): _linear_regressor,
    (ML, "LinearClassifier"): _linear_classifier,
    (ML, "Scaler"): _scaler,
    (ML, "Normalizer"): _normalizer,
    (ML, "Imputer"): _imputer,
    (ML, "Binarizer"): _binarizer,
    (ML, "ArrayFeatureExtractor"): _array_feature_extractor,
    (ML, "FeatureVectorizer"): _feature_vectorizer,
    (ML, "OneHotEncoder"): _one_hot_encoder,
    (ML, "LabelEncoder"): _label_encoder,
}

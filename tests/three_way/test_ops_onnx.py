"""ONNX's own node tests through the operator library."""

from onnx_node_tests import main


def test_onnx_node_tests_pass() -> None:
    counts = main()
    assert counts["fail"] == 0
    assert counts["pass"] >= 1300

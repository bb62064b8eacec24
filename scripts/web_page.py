"""A picture classified in a browser: one page runs a model as a WebAssembly module of modelc and by onnxruntime-web, by
turns on one thread, and the script prints both times, their ratio, and what either weighs.

    npm install onnxruntime-web
    python scripts/web_page.py mobilenet-v2.onnx --ort node_modules/onnxruntime-web/dist [--picture FILE]"""

from __future__ import annotations

import argparse
import json
import queue
import subprocess
import tempfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from paths import ROOT  # first, for it makes the others be found

from browser import CHROMIUM, LACKING  # isort: skip

import modelc

PAGE = """<!doctype html><meta charset="utf-8"><title>modelc in a browser</title><img id="picture" src="/picture">
<script type="module">
async function main() {
    const { load } = await import("/package/NAME.mjs");
    const model = await load();
    const [{ name, shape }] = model.inputs, [, channels, rows, columns] = shape;
    const image = document.getElementById("picture");
    await image.decode();
    const canvas = new OffscreenCanvas(columns, rows), drawn = canvas.getContext("2d");
    drawn.drawImage(image, 0, 0, columns, rows);
    const pixels = drawn.getImageData(0, 0, columns, rows).data;
    const mean = [0.485, 0.456, 0.406], deviation = [0.229, 0.224, 0.225];
    const x = new Float32Array(channels * rows * columns);
    for (let i = 0; i < rows * columns; i++)
        for (let c = 0; c < channels; c++)
            x[c * rows * columns + i] = (pixels[4 * i + c] / 255 - mean[c]) / deviation[c];

    const ort = await import("/ort/ort.wasm.min.mjs");
    ort.env.wasm.numThreads = 1;
    ort.env.wasm.wasmPaths = "/ort/";
    const session = await ort.InferenceSession.create("/model.onnx", { executionProviders: ["wasm"] });
    const feeds = { [session.inputNames[0]]: new ort.Tensor("float32", x, shape) };
    const ours = () => model.run({ [name]: x })[model.outputs[0].name];
    const theirs = async () => (await session.run(feeds))[session.outputNames[0]].data;

    const best = (scores) => scores.indexOf(Math.max(...scores));
    const a = ours(), b = await theirs();
    const apart = Math.max(...a.map((value, k) => Math.abs(value - b[k]))), size = Math.max(...b.map(Math.abs));
    const times = { modelc: [], ort: [] };
    for (let i = 0; i < TURNS; i++) {
        let start = performance.now();
        ours();
        times.modelc.push(performance.now() - start);
        start = performance.now();
        await theirs();
        times.ort.push(performance.now() - start);
    }
    return { classes: [best(a), best(b)], error: apart / size, times };
}
main().catch((error) => ({ failed: String(error.stack ?? error) }))
    .then((said) => fetch("/said", { method: "POST", body: JSON.stringify(said) }));
</script>
"""
SECONDS = 240


class Handler(SimpleHTTPRequestHandler):
    """Gives the browser the page and the files of both engines, and takes what the page says."""

    def __init__(self, *args: Any, files: dict[str, Path | str], said: queue.Queue[Any], **kwargs: Any) -> None:
        self.files, self.said = files, said
        super().__init__(*args, **kwargs)

    def do_GET(self) -> None:
        folder, _, name = self.path.strip("/").partition("/")
        content = self.files.get(folder)
        if isinstance(content, Path):
            path = content / name if content.is_dir() else content
            content = path.read_bytes() if path.is_file() else None  # type: ignore[assignment]
        if content is None:
            self.send_error(404)
            return
        data = content.encode() if isinstance(content, str) else bytes(content)  # type: ignore[arg-type]
        kinds = {".mjs": "text/javascript", ".js": "text/javascript", ".wasm": "application/wasm", ".jpg": "image/jpeg"}
        self.send_response(200)
        self.send_header("Content-Type", kinds.get(Path(name or folder).suffix, "text/html"))
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_POST(self) -> None:
        self.said.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


def in_browser(files: dict[str, Path | str]) -> dict[str, Any]:
    """What the page says in headless Chromium."""
    said: queue.Queue[Any] = queue.Queue()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, files=files, said=said))
    Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
        command = [str(CHROMIUM), *flags, f"http://127.0.0.1:{server.server_port}/"]
        browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            answer: dict[str, Any] = said.get(timeout=SECONDS)
        except queue.Empty:
            answer = {"failed": f"the page said nothing within {SECONDS} s"}
        finally:
            browser.terminate()
            browser.wait()
            server.shutdown()
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--ort", type=Path, required=True, help="the folder dist of onnxruntime-web")
    parser.add_argument("--picture", type=Path, default=ROOT / "examples/faces.jpg")
    parser.add_argument("--package", type=Path, help="one that is compiled for wasm32-simd")
    parser.add_argument("--turns", type=int, default=20)
    arguments = parser.parse_args()
    if CHROMIUM is None:
        parser.error(LACKING)
    with tempfile.TemporaryDirectory() as name:
        package = arguments.package or Path(name, "web.modelc")
        if arguments.package is None:
            modelc.compile(arguments.model, "wasm32-simd", package, verify=False)
        (module,) = package.glob("*.wasm")
        page = PAGE.replace("NAME", module.stem).replace("TURNS", str(arguments.turns))
        files = {"": page, "package": package, "ort": arguments.ort, "model.onnx": arguments.model}
        said = in_browser({**files, "picture": arguments.picture})
        if "failed" in said:
            parser.exit(1, f"{said['failed']}\n")
        ours, theirs = (min(said["times"][engine]) for engine in ("modelc", "ort"))
        engine = max(path.stat().st_size for path in arguments.ort.glob("ort-wasm-simd-threaded.wasm"))
        print(
            f"class        modelc {said['classes'][0]}, onnxruntime-web {said['classes'][1]}; apart {said['error']:.1e}"
        )
        ratio = theirs / ours
        print(f"fastest run  modelc {ours:.1f} ms, onnxruntime-web {theirs:.1f} ms: {ratio:.2f} times as fast")
        model = arguments.model.stat().st_size
        print(f"bytes        modelc {module.stat().st_size:,}, onnxruntime-web {engine:,} + model {model:,}")


if __name__ == "__main__":
    main()

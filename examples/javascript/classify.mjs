// As examples/c/classify.c, in JavaScript, by a WebAssembly module. In a browser fetch takes the place of readFile.
//
//     modelc compile MODEL.onnx --target wasm32-simd --prefix net -o net.modelc
//     node classify.mjs net.modelc input.bin
import { readFile } from "node:fs/promises";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, file] = process.argv.slice(2);
const { load } = await import(pathToFileURL(resolve(folder, "net.mjs")));
const model = await load(), bytes = await readFile(file);
const x = new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length));
const y = model.run({ [model.inputs[0].name]: x })[model.outputs[0].name];
const best = y.reduce((at, value, i) => (value > y[at] ? i : at), 0);
console.log(best, y[best].toFixed(6));

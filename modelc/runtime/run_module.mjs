// Runs a package that is a WebAssembly module, in Node.js, as run_main.c runs others: the same arguments, and the same output.
import { existsSync, readFileSync, writeFileSync, writeSync } from "node:fs";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";

const FRAME = { a: 0, P: 4, i: 8, o: 12, r: 16, s: 20, z: 24 }; // where modelc_frame has its pointers
const ITERATION = 32;
const WATCHER = new Uint8Array([ // a module that makes of a function of JavaScript's one of its own, which tables hold
    0, 0x61, 0x73, 0x6d, 1, 0, 0, 0, 1, 9, 1, 0x60, 5, 0x7f, 0x7f, 0x7f, 0x7f, 0x7f, 0,
    2, 7, 1, 1, 0x65, 1, 0x66, 0, 0, 7, 5, 1, 1, 0x66, 0, 0]);

function die(what, code = 100) {
    console.error(what);
    process.exit(code);
}

function check(model, status) {
    if (status) die(model.lastError(), status);
}

// What steps read and wrote goes to an open file.
function watch(model, rows, descriptor) {
    const places = rows.trim().split("\n").filter(Boolean).map((line) => {
        const [step, after, space, index, ...numbers] = line.split(" ");
        const [offset, stride, bytes, most] = numbers.map(Number);
        return { step: +step, after: +after, space, index: +index, offset, stride, bytes, most, calls: 0 };
    });
    const write = (bytes) => {
        for (let at = 0; at < bytes.length;) {
            try {
                at += writeSync(descriptor, bytes, at);
            } catch (error) {
                if (error.code !== "EAGAIN") throw error;
            }
        }
    };
    const head = (row, call) => write(new Uint8Array(new BigInt64Array([BigInt(row), BigInt(call)]).buffer));
    const watcher = (context, variant, step, after, frame) => {
        const memory = new DataView(model.exports.memory.buffer);
        const word = (at) => memory.getUint32(at, true);
        places.forEach((place, row) => {
            if (place.step !== step || place.after !== after) return;
            const call = place.calls++;
            if (call >= place.most && call & (call - 1)) return;
            let base = word(frame + FRAME[place.space]);
            if ("ios".includes(place.space)) base = word(base + 4 * place.index);
            if (place.space === "z") base += 8 * place.index;
            base += place.offset + Number(memory.getBigInt64(frame + ITERATION, true)) * place.stride;
            head(row, call);
            write(new Uint8Array(model.exports.memory.buffer, base, place.bytes));
        });
    };
    const made = new WebAssembly.Instance(new WebAssembly.Module(WATCHER), { e: { f: watcher } });
    const table = model.exports.__indirect_function_table, index = table.grow(1);
    table.set(index, made.exports.f);
    check(model, model.call("watch", model.handle, index, 0));
    return () => head(-1, -1);
}

const [folder, prefix, given, taken, ...flags] = process.argv.slice(2);
const number = (flag, otherwise) => (flags.includes(flag) ? +flags[flags.indexOf(flag) + 1] : otherwise);
const start = process.hrtime.bigint();
const loader = resolve(folder, `${prefix}.mjs`);
if (!existsSync(loader)) die(`there is no ${loader}`);
const model = await (await import(pathToFileURL(loader))).load();
const opened = process.hrtime.bigint() - start;
if (given === "--describe") {
    model.variants.forEach((variant, v) => {
        for (const [kind, tensors] of [["input", variant.inputs], ["output", variant.outputs]])
            for (const tensor of tensors) console.log([v, kind, tensor.code, ...tensor.shape].join(" "));
    });
    process.exit(0);
}
const chosen = number("--variant", 0), variant = model.variants[chosen];
const extents = flags.includes("--extents") ? flags.slice(flags.indexOf("--extents") + 1).map(BigInt) : null;
const memory = () => new Uint8Array(model.exports.memory.buffer);
let shapes = 0;
const sizes = variant.inputs.map((tensor) => tensor.bytes);
if (extents) {
    const tables = variant.inputs.map((tensor, k) => {
        const shape = extents.splice(0, tensor.shape.length), at = model.reserve(8 * shape.length + 8);
        new BigInt64Array(model.exports.memory.buffer, at, shape.length).set(shape);
        sizes[k] = shape.reduce((size, extent) => size * Number(extent), tensor.array.BYTES_PER_ELEMENT);
        return at;
    });
    shapes = model.reserve(4 * tables.length + 4);
    new Uint32Array(model.exports.memory.buffer, shapes, tables.length).set(tables);
}
const bytes = readFileSync(given);
sizes.reduce((at, size, k) => {
    memory().set(bytes.subarray(at, at + size), model.buffers.inputs[k]);
    return at + size;
}, 0);
const end = flags.includes("--watch")
    ? watch(model, readFileSync(flags[flags.indexOf("--watch") + 1], "utf8"), +flags[flags.indexOf("--watch") + 2]) : null;
let best = Infinity;
for (let i = 0; i < number("--repeat", 1); i++) {
    const before = process.hrtime.bigint();
    const tables = [model.tables.inputs, model.tables.outputs];
    const status = shapes
        ? model.call("run_shaped", model.handle, chosen, shapes, ...tables)
        : model.call("run", model.handle, chosen, ...tables);
    check(model, status);
    best = Math.min(best, Number(process.hrtime.bigint() - before));
}
end?.();
writeFileSync(taken, Buffer.concat(variant.outputs.map((tensor, k) =>
    Buffer.from(memory().slice(model.buffers.outputs[k], model.buffers.outputs[k] + tensor.bytes)))));
console.log(`open ${opened}\nnanoseconds ${best}\nresident ${process.memoryUsage.rss()}`);
variant.outputs.forEach((tensor, k) => {
    const at = model.reserve(8 * tensor.shape.length + 8);
    check(model, model.call("output_shape", model.handle, chosen, k, at));
    const shape = new BigInt64Array(model.exports.memory.buffer, at, tensor.shape.length);
    console.log(["shape", k, ...shape].join(" "));
});

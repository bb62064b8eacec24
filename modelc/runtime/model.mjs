// Loads PREFIX.wasm, in a browser or in Node.js, and runs the model in it. It needs nothing else.
//
//     import { load } from "./PREFIX.mjs";
//     const model = await load();                          // or load(bytes), load(url)
//     const outputs = model.run({ input: new Float32Array(3 * 224 * 224) });
//
// Inputs and outputs are typed arrays in row-major order, by name: BigInt64Array of int64, Uint8Array of bool; of float16
// and bfloat16 the bits in Uint16Array. model.inputs and model.outputs say names, dtypes and shapes.

const DTYPES = [
    null, ["float32", Float32Array], ["float64", Float64Array], ["float16", Uint16Array], ["bfloat16", Uint16Array],
    ["int8", Int8Array], ["int16", Int16Array], ["int32", Int32Array], ["int64", BigInt64Array], ["uint8", Uint8Array],
    ["uint16", Uint16Array], ["uint32", Uint32Array], ["uint64", BigUint64Array], ["bool", Uint8Array],
]; // those that follow take a byte each
const PAGE = 65536, LINE = 64, TENSOR_BYTES = 20;

// The functions of C that kernels may call.
function functionsOfC(memory) {
    const bytes = () => new Uint8Array(memory().buffer);
    const away = (x) => (x < 0 ? -Math.floor(0.5 - x) : Math.floor(x + 0.5));
    const C = {
    memcpy(to, from, size) { bytes().copyWithin(to, from, from + size); return to; },
    memmove(to, from, size) { bytes().copyWithin(to, from, from + size); return to; },
    memset(to, value, size) { bytes().fill(value, to, to + size); return to; },
    fmod: (x, y) => x % y,
    fmodf: (x, y) => x % y,
    round: away,
    roundf: away,
    };
    const both =
        "acos acosh asin asinh atan atan2 atanh cbrt ceil cos cosh exp expm1 floor hypot log log10 log1p log2 pow sin sinh sqrt tan tanh trunc";
    for (const name of both.split(" ")) C[name] = C[`${name}f`] = Math[name];
    return C;
}
// ---- end of C

export class Model {
    constructor(instance) {
        this.exports = instance.exports;
        const { memory, __heap_base: base } = this.exports;
        this.free = (base.value + LINE - 1) & -LINE;
        this.handle = this.call("init", this.reserve(this.call("memory_size")));
        if (!this.handle) throw new Error(this.lastError());
        this.memory = memory;
        this.variants = [];
        for (let v = 0; v < this.call("variant_count", this.handle); v++)
            this.variants.push({ inputs: this.tensors("input", v), outputs: this.tensors("output", v) });
        this.buffers = { inputs: this.room("inputs"), outputs: this.room("outputs") };
        this.tables = { inputs: this.table("inputs"), outputs: this.table("outputs") };
    }

    get inputs() { return this.variants[0].inputs; }

    get outputs() { return this.variants[0].outputs; }

    get metadata() { return JSON.parse(this.text(this.call("metadata", this.handle))); }

    // The outputs by name. An input that an error names is missing, or has another number of elements.
    run(feeds) {
        const sizes = (v) => v.inputs.every((t) => feeds[t.name]?.length === t.elements);
        const number = Math.max(0, this.variants.findIndex(sizes)), variant = this.variants[number];
        variant.inputs.forEach((tensor, k) => {
            const given = feeds[tensor.name];
            if (!(given instanceof tensor.array) || given.length !== tensor.elements)
                throw new TypeError(
                    `input '${tensor.name}' is ${given ? `${given.constructor.name} of ${given.length}` : "missing"}; ` +
                    `expected ${tensor.array.name} of ${tensor.elements} (${tensor.shape.join(" x ")})`);
            this.view(tensor, this.buffers.inputs[k]).set(given);
        });
        if (this.call("run", this.handle, number, this.tables.inputs, this.tables.outputs)) throw new Error(this.lastError());
        return Object.fromEntries(
            variant.outputs.map((tensor, k) => [tensor.name, this.view(tensor, this.buffers.outputs[k]).slice()]));
    }

    call(name, ...values) { return this.exports[`PREFIX_${name}`](...values); }

    lastError() { return this.text(this.call("last_error")); }

    view(tensor, at) { return new tensor.array(this.exports.memory.buffer, at, tensor.elements); }

    // Memory of so many bytes, which the module has to itself.
    reserve(bytes) {
        const place = this.free, memory = this.exports.memory;
        this.free = (place + bytes + LINE - 1) & -LINE;
        const lacking = this.free - memory.buffer.byteLength;
        if (lacking > 0) memory.grow(Math.ceil(lacking / PAGE));
        return place;
    }

    room(kind) {
        return this.inputsOrOutputs(kind).map((_, k) =>
            this.reserve(Math.max(1, ...this.variants.map((v) => v[kind][k].bytes))));
    }

    table(kind) {
        const at = this.reserve(4 * this.buffers[kind].length + 4);
        new Uint32Array(this.exports.memory.buffer, at, this.buffers[kind].length).set(this.buffers[kind]);
        return at;
    }

    inputsOrOutputs(kind) { return this.variants[0][kind]; }

    tensors(kind, variant) {
        const count = this.call(`${kind}_count`, this.handle, variant);
        return Array.from({ length: count }, (_, k) => {
            const at = this.call(kind, this.handle, variant, k);
            const fields = new DataView(this.exports.memory.buffer, at, TENSOR_BYTES);
            const [name, code, rank, shape, bytes] = [0, 4, 8, 12, 16].map((offset) => fields.getUint32(offset, true));
            const [dtype, array] = DTYPES[code] ?? ["byte", Uint8Array];
            return {
                name: this.text(name), code, dtype, array, bytes, elements: bytes / array.BYTES_PER_ELEMENT,
                shape: Array.from(new BigInt64Array(this.exports.memory.buffer, shape, rank), Number),
            };
        });
    }

    text(at) {
        const bytes = new Uint8Array(this.exports.memory.buffer);
        return new TextDecoder().decode(bytes.slice(at, bytes.indexOf(0, at)));
    }
}

// `source` is the module's bytes or its address; without it PREFIX.wasm beside this file.
export async function load(source = new URL("./PREFIX.wasm", import.meta.url)) {
    let instance;
    const env = functionsOfC(() => instance.exports.memory);
    ({ instance } = await WebAssembly.instantiate(await bytesOf(source), { env }));
    return new Model(instance);
}

async function bytesOf(source) {
    if (source instanceof ArrayBuffer || ArrayBuffer.isView(source)) return source;
    const address = new URL(source, import.meta.url);
    if (address.protocol === "file:") return (await import("node:fs/promises")).readFile(address);
    const answer = await fetch(address);
    if (!answer.ok) throw new Error(`cannot read ${address}: ${answer.status} ${answer.statusText}`);
    return answer.arrayBuffer();
}

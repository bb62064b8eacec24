// Loads PREFIX.wasm, in a browser or in Node.js, and runs the model in it. It needs nothing else.
//
//     import { load } from "./PREFIX.mjs";
//     const model = await load();                          // or load(bytes), load(url)
//     const outputs = model.run({ input: new Float32Array(3 * 224 * 224) });
//     const scores = model.runShaped({ ids: [1, 12] }, { ids: new BigInt64Array(12) }).scores;
//     const shape = model.outputShape("scores");
//
// Inputs and outputs are typed arrays in row-major order, by name: BigInt64Array of int64, Uint8Array of bool; of float16
// and bfloat16 the bits in Uint16Array. model.inputs and model.outputs say names, dtypes and shapes. Functions are those of C,
// which PREFIX.h describes.

const DTYPES = [
    null, ["float32", Float32Array], ["float64", Float64Array], ["float16", Uint16Array], ["bfloat16", Uint16Array],
    ["int8", Int8Array], ["int16", Int16Array], ["int32", Int32Array], ["int64", BigInt64Array], ["uint8", Uint8Array],
    ["uint16", Uint16Array], ["uint32", Uint32Array], ["uint64", BigUint64Array], ["bool", Uint8Array],
]; // those that follow take a byte each
const PAGE = 65536, LINE = 64, TENSOR_BYTES = 20, PROFILE_BYTES = 40, SHAPE_BYTES = 8 * 32;
const BAD_ARGUMENT = 1, INTERRUPTED = 10, LATE = 11; // of modelc_status

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

// A function of the module's tables that calls one of JavaScript, of so many numbers of 32 bits.
function functionOfModule(call, parameters, results) {
    const i32 = (count) => [count, ...Array(count).fill(0x7f)], type = [1, 0x60, ...i32(parameters), ...i32(results)];
    const bytes = [0, 0x61, 0x73, 0x6d, 1, 0, 0, 0, 1, type.length, ...type, 2, 7, 1, 1, 0x65, 1, 0x66, 0, 0, 7, 5, 1, 1, 0x66, 0, 0];
    return new WebAssembly.Instance(new WebAssembly.Module(new Uint8Array(bytes)), { e: { f: call } }).exports.f;
}

// The elements of an array of `shape` that lie in its corner of the shape `actual`.
function cornerOf(array, shape, actual) {
    let axes = shape.length; // behind them the shapes are equal
    while (axes && shape[axes - 1] === actual[axes - 1]) axes--;
    const sizes = (of) => of.reduceRight((all, extent) => [extent * all[0], ...all], [1]), [from, to] = [sizes(shape), sizes(actual)];
    if (axes < 2) return array.slice(0, to[0]);
    const corner = new array.constructor(to[0]);
    const copy = (axis, source, target) => {
        if (axis === axes - 1) corner.set(array.subarray(source, source + to[axis]), target);
        else for (let i = 0; i < actual[axis]; i++) copy(axis + 1, source + i * from[axis + 1], target + i * to[axis + 1]);
    };
    if (to[0]) copy(0, 0, 0);
    return corner;
}

// `status` is a modelc_status.
export class ModelError extends Error {
    constructor(status, sentence) {
        super(sentence);
        this.status = status;
    }
}

export class Model {
    constructor(instance) {
        this.exports = instance.exports;
        const { memory, __heap_base: base } = this.exports;
        this.free = (base.value + LINE - 1) & -LINE;
        this.handle = this.call("init", this.reserve(this.call("memory_size")));
        if (!this.handle) throw new ModelError(BAD_ARGUMENT, this.lastError());
        this.memory = memory;
        this.latest = null; // the variant that ran last
        this.limit = Infinity;
        this.variants = [];
        for (let v = 0; v < this.call("variant_count", this.handle); v++)
            this.variants.push({ inputs: this.tensors("input", v), outputs: this.tensors("output", v) });
        this.buffers = { inputs: this.room("inputs"), outputs: this.room("outputs") };
        this.tables = { inputs: this.table("inputs"), outputs: this.table("outputs") };
        this.place = this.reserve(SHAPE_BYTES);
        this.buffers.shapes = this.inputs.map(() => this.reserve(SHAPE_BYTES));
        this.tables.shapes = this.table("shapes");
    }

    get inputs() { return this.variants[0].inputs; }

    get outputs() { return this.variants[0].outputs; }

    get metadata() { return JSON.parse(this.text(this.call("metadata", this.handle))); }

    // Whether outputs lie without gaps, as large as they are in a run.
    get isOfAnySize() { return (this.hasFreeSizes ??= Boolean(this.metadata.any_size)); }

    // The outputs by name, of inputs that are as large as one variant's: where several are so, their shapes decide, and
    // runShaped takes them.
    run(feeds) {
        const fitting = this.variants.filter((v) => v.inputs.every((tensor) => feeds[tensor.name]?.length === tensor.elements));
        if (fitting.length > 1)
            throw new TypeError(
                `${fitting.length} variants take inputs of these sizes, of the shapes ` +
                `${fitting.map((v) => v.inputs.map((tensor) => `${tensor.name} [${tensor.shape}]`).join(", ")).join("; ")}: ` +
                "say which by runShaped");
        const variant = fitting[0] ?? this.variants[0];
        return this.runOn(this.variants.indexOf(variant), null, feeds);
    }

    // The outputs by name, of inputs of these shapes, on the smallest variant that takes them.
    runShaped(shapes, feeds) {
        return this.runOn(this.fit(shapes), shapes, feeds);
    }

    // The number of the smallest variant that takes inputs of these shapes.
    fit(shapes) {
        this.inputs.forEach((tensor, k) => {
            const shape = shapes[tensor.name];
            if (shape?.length !== tensor.shape.length || !Array.from(shape).every(Number.isSafeInteger))
                throw new TypeError(
                    `the shape of input '${tensor.name}' is ${shape ? `[${shape}]` : "missing"}; ` +
                    `expected ${tensor.shape.length} whole numbers, such as [${tensor.shape}]`);
            new BigInt64Array(this.open.memory.buffer, this.buffers.shapes[k], shape.length).set(Array.from(shape, BigInt));
        });
        this.check(this.call("fit", this.handle, this.tables.shapes, this.place));
        return new Int32Array(this.exports.memory.buffer, this.place, 1)[0];
    }

    // The shape that an output had in the last run of a variant; without its number, of the one that ran last.
    outputShape(name, variant = this.latest ?? 0) {
        const index = this.outputs.findIndex((tensor) => tensor.name === name);
        if (index < 0) throw new TypeError(`there is no output '${name}'`);
        this.check(this.call("output_shape", this.handle, variant, index, this.place));
        const rank = this.outputs[index].shape.length;
        return Array.from(new BigInt64Array(this.exports.memory.buffer, this.place, rank), Number);
    }

    // Makes what the model keeps between runs zeros again.
    reset() { this.check(this.call("reset", this.handle)); }

    // From now on the model draws the random numbers of one that was just loaded with this seed, a number or a BigInt.
    seed(seed) {
        const whole = Number.isInteger(seed) || typeof seed === "bigint" ? BigInt(seed) : -1n;
        if (whole !== BigInt.asUintN(64, whole)) throw new TypeError(`the seed is ${seed}; expected a whole number of 64 bits`);
        this.check(this.call("seed", this.handle, whole));
    }

    // From now on a run that lasts longer throws, before its next step or iteration of a loop; Infinity: runs may last.
    timeLimit(milliseconds) {
        if (!(milliseconds > 0)) throw new TypeError(`the time limit is ${milliseconds}; expected milliseconds above 0`);
        this.limit = milliseconds;
        this.poller ??= this.inTable(() => Number(performance.now() > this.deadline), 1, 1);
        this.check(this.call("poll", this.handle, milliseconds < Infinity ? this.poller : 0, 0));
    }

    // From now on runs accumulate what each step takes, from zero on.
    profileStart() {
        this.times = this.variants.map((_, v) =>
            Array.from({ length: this.call("step_count", this.handle, v) }, () => ({ calls: 0, milliseconds: 0 })));
        let start = 0;
        this.watcher ??= this.inTable((context, variant, step, after) => {
            const now = performance.now(), time = this.times[variant][step];
            if (!after) start = now;
            else time.calls++, (time.milliseconds += now - start);
        }, 5, 0);
        this.check(this.call("watch", this.handle, this.watcher, 0));
    }

    profileStop() { this.check(this.call("watch", this.handle, 0, 0)); }

    // What each of the variant's steps took since profileStart, in order: milliseconds over all calls; flops and bytes of one.
    profile(variant = 0) {
        return Array.from({ length: this.call("step_count", this.handle, variant) }, (_, step) => {
            this.check(this.call("profile_read", this.handle, variant, step, this.place));
            const fields = new DataView(this.exports.memory.buffer, this.place, PROFILE_BYTES);
            return {
                name: this.text(fields.getUint32(0, true)), ...(this.times?.[variant][step] ?? { calls: 0, milliseconds: 0 }),
                flops: fields.getFloat64(24, true), bytes: fields.getFloat64(32, true),
            };
        });
    }

    // Gives the module's memory to the collector; the model cannot be used any more.
    close() { this.exports = this.memory = null; }

    runOn(number, shapes, feeds) {
        const variant = this.variants[number];
        variant.inputs.forEach((tensor, k) => {
            const given = feeds[tensor.name], shape = shapes?.[tensor.name] ?? tensor.shape;
            const elements = Array.from(shape).reduce((all, extent) => all * extent, 1);
            if (!(given instanceof tensor.array) || given.length !== elements)
                throw new TypeError(
                    `input '${tensor.name}' is ${given ? `${given.constructor.name} of ${given.length}` : "missing"}; ` +
                    `expected ${tensor.array.name} of ${elements} (${Array.from(shape).join(" x ")})`);
            new tensor.array(this.open.memory.buffer, this.buffers.inputs[k], elements).set(given);
        });
        this.deadline = performance.now() + this.limit;
        this.check(this.call(
            "run_shaped", this.handle, number, shapes ? this.tables.shapes : 0, this.tables.inputs, this.tables.outputs));
        this.latest = number;
        return Object.fromEntries(variant.outputs.map((tensor, k) => {
            const all = this.view(tensor, this.buffers.outputs[k]), shape = this.outputShape(tensor.name);
            if (!this.isOfAnySize) return [tensor.name, cornerOf(all, tensor.shape, shape)];
            return [tensor.name, all.slice(0, shape.reduce((elements, extent) => elements * extent, 1))]; // without gaps
        }));
    }

    check(status) {
        if (status === INTERRUPTED && this.limit < Infinity)
            throw new ModelError(LATE, `the run lasted longer than its limit of ${this.limit} milliseconds`);
        if (status) throw new ModelError(status, this.lastError());
    }

    get open() {
        if (!this.exports) throw new ModelError(BAD_ARGUMENT, "the model is closed");
        return this.exports;
    }

    // Where a function of JavaScript is in the table that pointers to functions lead to.
    inTable(call, parameters, results) {
        const table = this.open.__indirect_function_table, index = table.grow(1);
        table.set(index, functionOfModule(call, parameters, results));
        return index;
    }

    call(name, ...values) { return this.open[`PREFIX_${name}`](...values); }

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

// The types of PREFIX.mjs, which says what each function does.

export interface Inputs {
INPUT_TYPES}

export interface Outputs {
OUTPUT_TYPES}

export type Shapes = { readonly [Name in keyof Inputs]: ArrayLike<number> };

export interface Tensor {
    readonly name: string;
    readonly code: number;
    readonly dtype: string;
    readonly shape: readonly number[];
    readonly elements: number;
    readonly bytes: number;
}

export interface StepProfile {
    readonly name: string;
    readonly calls: number;
    readonly milliseconds: number;
    readonly flops: number;
    readonly bytes: number;
}

export declare class ModelError extends Error {
    readonly status: number;
}

export declare class Model {
    private constructor();
    readonly variants: readonly { readonly inputs: readonly Tensor[]; readonly outputs: readonly Tensor[] }[];
    readonly inputs: readonly Tensor[];
    readonly outputs: readonly Tensor[];
    readonly metadata: { readonly name: string; readonly build_id: string; readonly [key: string]: unknown };
    run(feeds: Readonly<Inputs>): Outputs;
    runShaped(shapes: Shapes, feeds: Readonly<Inputs>): Outputs;
    fit(shapes: Shapes): number;
    outputShape(name: keyof Outputs, variant?: number): number[];
    reset(): void;
    seed(seed: number | bigint): void;
    timeLimit(milliseconds: number): void;
    profileStart(): void;
    profileStop(): void;
    profile(variant?: number): StepProfile[];
    close(): void;
}

export declare function load(source?: ArrayBuffer | ArrayBufferView | URL | string): Promise<Model>;

//! The model PREFIX, which modelc compiled: a static library of C and this, which needs no standard library.
//!
//! Buffers are bytes: `bytes_of` and `bytes_of_mut` give those of numbers. A `Model` may be sent to another thread, and has
//! one run at a time, which a `Stopper` ends from another thread. Functions are those of C, which PREFIX.h describes.
#![no_std]

use core::ffi::{c_char, c_void, CStr};
use core::fmt::{self, Write};
use core::ops::Deref;

/// How many inputs and outputs the model has.
pub const INPUTS: usize = INPUT_COUNT;
pub const OUTPUTS: usize = OUTPUT_COUNT;
/// The most extents that an output has.
const RANK: usize = OUTPUT_RANK;

#[repr(C)]
struct Handle {
    _private: [u8; 0],
}

#[repr(C)]
struct RawTensor {
    name: *const c_char,
    dtype: i32,
    rank: i32,
    shape: *const i64,
    bytes: usize,
}

#[repr(C)]
struct RawProfile {
    name: *const c_char,
    calls: u64,
    nanoseconds: u64,
    flops: f64,
    bytes: f64,
}

extern "C" {
    fn PREFIX_last_error() -> *const c_char;
    fn PREFIX_metadata(handle: *const Handle) -> *const c_char;
    fn PREFIX_variant_count(handle: *const Handle) -> i32;
    fn PREFIX_input(handle: *const Handle, variant: i32, index: i32) -> *const RawTensor;
    fn PREFIX_output(handle: *const Handle, variant: i32, index: i32) -> *const RawTensor;
    fn PREFIX_fit(handle: *const Handle, shapes: *const *const i64, variant: *mut i32) -> i32;
    fn PREFIX_run_shaped(
        handle: *mut Handle,
        variant: i32,
        shapes: *const *const i64,
        inputs: *const *const c_void,
        outputs: *const *mut c_void,
    ) -> i32;
    fn PREFIX_output_shape(handle: *mut Handle, variant: i32, index: i32, shape: *mut i64) -> i32;
    fn PREFIX_step_count(handle: *const Handle, variant: i32) -> i32;
    fn PREFIX_profile_read(handle: *mut Handle, variant: i32, step: i32, profile: *mut RawProfile) -> i32;
    fn PREFIX_reset(handle: *mut Handle) -> i32;
    fn PREFIX_seed(handle: *mut Handle, seed: u64) -> i32;
    fn PREFIX_stop(handle: *mut Handle, stopped: i32);
}

/// The status of a run that was ended by a `Stopper`.
pub const STOPPED: i32 = 9;
const BAD_ARGUMENT: i32 = 1;

/// What went wrong: a modelc_status, and the sentence that the library has for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Error {
    pub status: i32,
    text: [u8; MOST],
    length: usize,
}

const MOST: usize = 512; // bytes of a sentence

impl Error {
    /// Of a call that the library was not asked for.
    fn refused(sentence: fmt::Arguments<'_>) -> Error {
        let mut error = Error { status: BAD_ARGUMENT, text: [0; MOST], length: 0 };
        let _ = error.write_fmt(sentence); // what is longer is cut
        error
    }

    pub fn sentence(&self) -> &str {
        let text = &self.text[..self.length];
        core::str::from_utf8(text).unwrap_or_else(|e| core::str::from_utf8(&text[..e.valid_up_to()]).unwrap_or(""))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.sentence())
    }
}

impl fmt::Write for Error {
    fn write_str(&mut self, words: &str) -> fmt::Result {
        let length = words.len().min(MOST - self.length);
        self.text[self.length..self.length + length].copy_from_slice(&words.as_bytes()[..length]);
        self.length += length;
        Ok(())
    }
}

impl core::error::Error for Error {}

fn check(status: i32) -> Result<(), Error> {
    if status == 0 {
        return Ok(());
    }
    let mut error = Error { status, text: [0; MOST], length: 0 };
    let sentence = unsafe { CStr::from_ptr(PREFIX_last_error()) }.to_bytes();
    error.length = sentence.len().min(MOST);
    error.text[..error.length].copy_from_slice(&sentence[..error.length]);
    Err(error)
}

/// An input or an output; `dtype` is a modelc_dtype of the C header.
#[derive(Debug, Clone, Copy)]
pub struct Tensor {
    pub name: &'static str,
    pub dtype: i32,
    pub shape: &'static [i64],
    pub bytes: usize,
}

/// The shape of an output: as a slice its extents.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    extents: [i64; RANK],
    rank: usize,
}

impl Deref for Shape {
    type Target = [i64];

    fn deref(&self) -> &[i64] {
        &self.extents[..self.rank]
    }
}

/// What a step has taken: `nanoseconds` over all `calls`; flops and bytes of one call.
#[derive(Debug, Clone, Copy)]
pub struct StepProfile {
    pub name: &'static str,
    pub calls: u64,
    pub nanoseconds: u64,
    pub flops: f64,
    pub bytes: f64,
}

/// Numbers that any bytes are.
pub trait Number: Copy {}
impl Number for f32 {}
impl Number for f64 {}
impl Number for i8 {}
impl Number for i16 {}
impl Number for i32 {}
impl Number for i64 {}
impl Number for u8 {}
impl Number for u16 {}
impl Number for u32 {}
impl Number for u64 {}

pub fn bytes_of<T: Number>(numbers: &[T]) -> &[u8] {
    unsafe { core::slice::from_raw_parts(numbers.as_ptr().cast(), core::mem::size_of_val(numbers)) }
}

pub fn bytes_of_mut<T: Number>(numbers: &mut [T]) -> &mut [u8] {
    unsafe { core::slice::from_raw_parts_mut(numbers.as_mut_ptr().cast(), core::mem::size_of_val(numbers)) }
}

HOSTED impl Model {
BARE impl Model<'_> {
    /// JSON: name, build id, target, versions, notes.
    pub fn metadata(&self) -> &'static str {
        text(unsafe { PREFIX_metadata(self.handle) })
    }

    pub fn variants(&self) -> i32 {
        unsafe { PREFIX_variant_count(self.handle) }
    }

    /// Input `index` of a variant. Panics where there is none.
    pub fn input(&self, variant: i32, index: i32) -> Tensor {
        tensor(unsafe { PREFIX_input(self.handle, variant, index) })
    }

    /// Output `index` of a variant. Panics where there is none.
    pub fn output(&self, variant: i32, index: i32) -> Tensor {
        tensor(unsafe { PREFIX_output(self.handle, variant, index) })
    }

    /// Computes the outputs from inputs of the variant's own shapes.
    pub fn run(&mut self, variant: i32, inputs: [&[u8]; INPUTS], outputs: [&mut [u8]; OUTPUTS]) -> Result<(), Error> {
        if variant < 0 || variant >= self.variants() {
            return Err(Error::refused(format_args!(
                "variant {variant} was asked for; the package has {}",
                self.variants()
            )));
        }
        self.run_on(variant, None, inputs, outputs)
    }

    /// The smallest variant that takes inputs of these shapes.
    pub fn fit(&self, shapes: [&[i64]; INPUTS]) -> Result<i32, Error> {
        for (k, shape) in shapes.iter().enumerate() {
            let tensor = self.input(0, k as i32);
            if shape.len() != tensor.shape.len() {
                return Err(Error::refused(format_args!(
                    "a shape of {} extents was given for input '{}', which has {}",
                    shape.len(),
                    tensor.name,
                    tensor.shape.len()
                )));
            }
        }
        let mut variant = -1;
        check(unsafe { PREFIX_fit(self.handle, shapes.map(<[i64]>::as_ptr).as_ptr(), &mut variant) })?;
        Ok(variant)
    }

    /// Computes the outputs from inputs of these shapes, on the variant that fits, which is returned: for `output_shape`, and for
    /// `output`, whose bytes are the most that the buffers have to hold.
    pub fn run_shaped(
        &mut self,
        shapes: [&[i64]; INPUTS],
        inputs: [&[u8]; INPUTS],
        outputs: [&mut [u8]; OUTPUTS],
    ) -> Result<i32, Error> {
        let variant = self.fit(shapes)?;
        self.run_on(variant, Some(shapes), inputs, outputs)?;
        Ok(variant)
    }

    /// The shape that an output had in the last run of a variant.
    pub fn output_shape(&mut self, variant: i32, index: i32) -> Result<Shape, Error> {
        let mut shape = Shape { extents: [0; RANK], rank: 0 };
        check(unsafe { PREFIX_output_shape(self.handle, variant, index, shape.extents.as_mut_ptr()) })?;
        shape.rank = self.output(variant, index).shape.len();
        Ok(shape)
    }

    /// `shapes` fit the variant; None: they are its own.
    fn run_on(
        &mut self,
        variant: i32,
        shapes: Option<[&[i64]; INPUTS]>,
        inputs: [&[u8]; INPUTS],
        outputs: [&mut [u8]; OUTPUTS],
    ) -> Result<(), Error> {
        for (k, given) in inputs.iter().enumerate() {
            let tensor = self.input(variant, k as i32);
            let (all, shaped) = shapes.map_or((1, 1), |s| (elements(tensor.shape), elements(s[k])));
            refuse_unless(given.len() == tensor.bytes / all.max(1) * shaped, "input", tensor, given.len())?;
        }
        for (k, taken) in outputs.iter().enumerate() {
            let tensor = self.output(variant, k as i32);
            refuse_unless(taken.len() >= tensor.bytes, "output", tensor, taken.len())?;
        }
        let given = inputs.map(|bytes| bytes.as_ptr().cast::<c_void>());
        let taken = outputs.map(|bytes| bytes.as_mut_ptr().cast::<c_void>());
        let extents = shapes.map(|shapes| shapes.map(<[i64]>::as_ptr));
        let shapes = extents.as_ref().map_or(core::ptr::null(), |extents| extents.as_ptr());
        check(unsafe { PREFIX_run_shaped(self.handle, variant, shapes, given.as_ptr(), taken.as_ptr()) })
    }

    pub fn steps(&self, variant: i32) -> i32 {
        unsafe { PREFIX_step_count(self.handle, variant) }
    }

HOSTED     /// What a step has taken in the runs since `profile_start`.
BARE     /// The name of a step, its flops and bytes. There is no clock: calls and nanoseconds are 0.
    pub fn profile(&mut self, variant: i32, step: i32) -> Result<StepProfile, Error> {
        let mut raw = RawProfile { name: core::ptr::null(), calls: 0, nanoseconds: 0, flops: 0.0, bytes: 0.0 };
        check(unsafe { PREFIX_profile_read(self.handle, variant, step, &mut raw) })?;
        let RawProfile { calls, nanoseconds, flops, bytes, .. } = raw;
        Ok(StepProfile { name: text(raw.name), calls, nanoseconds, flops, bytes })
    }

    /// Makes what the model keeps between runs zeros again.
    pub fn reset(&mut self) -> Result<(), Error> {
        check(unsafe { PREFIX_reset(self.handle) })
    }

    /// From now on the model draws the random numbers of one that was just opened with this seed.
    pub fn seed(&mut self, seed: u64) -> Result<(), Error> {
        check(unsafe { PREFIX_seed(self.handle, seed) })
    }
}

fn elements(shape: &[i64]) -> usize {
    shape.iter().map(|&extent| extent as usize).product()
}

fn refuse_unless(fits: bool, kind: &str, tensor: Tensor, bytes: usize) -> Result<(), Error> {
    if fits {
        return Ok(());
    }
    Err(Error::refused(format_args!(
        "a buffer of {bytes} bytes was given for {kind} '{}' of {} bytes in the shape {:?}",
        tensor.name, tensor.bytes, tensor.shape
    )))
}

fn text(words: *const c_char) -> &'static str {
    unsafe { CStr::from_ptr(words) }.to_str().unwrap_or("")
}

fn tensor(raw: *const RawTensor) -> Tensor {
    let raw = unsafe { raw.as_ref() }.expect("there is no such tensor");
    let shape = if raw.rank == 0 { &[][..] } else { unsafe { core::slice::from_raw_parts(raw.shape, raw.rank as usize) } };
    Tensor { name: text(raw.name), dtype: raw.dtype, shape, bytes: raw.bytes }
}

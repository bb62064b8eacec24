//! The model PREFIX, which modelc compiled: a static library of C and this, which needs no standard library.
//!
//! Buffers are bytes: `bytes_of` and `bytes_of_mut` give those of numbers. A `Model` may be sent to another thread, and has
//! one run at a time, which a `Stopper` ends from another thread.
#![no_std]

HOSTED extern crate alloc;

HOSTED use alloc::sync::Arc;
use core::ffi::{c_char, c_void, CStr};
use core::fmt;
HOSTED use core::ptr;
BARE use core::marker::PhantomData;

/// How many inputs and outputs the model has.
pub const INPUTS: usize = INPUT_COUNT;
pub const OUTPUTS: usize = OUTPUT_COUNT;

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

HOSTED #[repr(C)]
HOSTED struct Options {
HOSTED     size: usize,
HOSTED     threads: i32,
HOSTED     check: i32,
HOSTED     seed: u64,
HOSTED }

extern "C" {
HOSTED     fn PREFIX_open(path: *const c_char, options: *const Options, handle: *mut *mut Handle) -> i32;
HOSTED     fn PREFIX_close(handle: *mut Handle);
BARE     fn PREFIX_memory_size() -> usize;
BARE     fn PREFIX_init(memory: *mut c_void) -> *mut Handle;
    fn PREFIX_last_error() -> *const c_char;
    fn PREFIX_variant_count(handle: *const Handle) -> i32;
    fn PREFIX_input(handle: *const Handle, variant: i32, index: i32) -> *const RawTensor;
    fn PREFIX_output(handle: *const Handle, variant: i32, index: i32) -> *const RawTensor;
    fn PREFIX_run(handle: *mut Handle, variant: i32, inputs: *const *const c_void, outputs: *const *mut c_void) -> i32;
    fn PREFIX_reset(handle: *mut Handle) -> i32;
    fn PREFIX_stop(handle: *mut Handle, stopped: i32);
}

/// The status of a run that was ended by a `Stopper`.
pub const STOPPED: i32 = 9;

/// What went wrong: a modelc_status, and the sentence that the library has for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Error {
    pub status: i32,
    text: [u8; MOST],
    length: usize,
}

const MOST: usize = 512; // bytes of a sentence

impl Error {
    fn new(status: i32, sentence: &[u8]) -> Error {
        let mut text = [0; MOST];
        let length = sentence.len().min(MOST);
        text[..length].copy_from_slice(&sentence[..length]);
        Error { status, text, length }
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

impl core::error::Error for Error {}

/// Of a status that is not 0.
fn error(status: i32) -> Error {
    Error::new(status, unsafe { CStr::from_ptr(PREFIX_last_error()) }.to_bytes())
}

/// An input or an output; `dtype` is a modelc_dtype of the C header.
#[derive(Debug, Clone, Copy)]
pub struct Tensor {
    pub name: &'static str,
    pub dtype: i32,
    pub shape: &'static [i64],
    pub bytes: usize,
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

HOSTED /// A model that is open; it closes when it is dropped, and its stoppers are.
HOSTED #[derive(Debug)]
HOSTED pub struct Model {
HOSTED     handle: *mut Handle,
HOSTED     open: Arc<Open>,
HOSTED }

HOSTED unsafe impl Send for Model {}

HOSTED #[derive(Debug)]
HOSTED struct Open(*mut Handle);

HOSTED unsafe impl Send for Open {}
HOSTED unsafe impl Sync for Open {}

HOSTED impl Drop for Open {
HOSTED     fn drop(&mut self) {
HOSTED         unsafe { PREFIX_close(self.0) }
HOSTED     }
HOSTED }

HOSTED /// Ends the runs of a model, from any thread.
HOSTED #[derive(Debug, Clone)]
HOSTED pub struct Stopper(Arc<Open>);

HOSTED impl Stopper {
HOSTED     /// With true, the run that goes on and those that begin give an `Error` of the status `STOPPED`, until false.
HOSTED     pub fn stop(&self, stopped: bool) {
HOSTED         unsafe { PREFIX_stop(self.0 .0, stopped.into()) }
HOSTED     }
HOSTED }

HOSTED impl Model {
HOSTED     /// Opens the package in the folder `path`, which may be None where parameters are in the library. 0 `threads`: as many
HOSTED     /// as the machine lets this process have.
HOSTED     pub fn open(path: Option<&CStr>, threads: i32) -> Result<Model, Error> {
HOSTED         let options = Options { size: core::mem::size_of::<Options>(), threads, check: 0, seed: 0 };
HOSTED         let mut handle = ptr::null_mut();
HOSTED         match unsafe { PREFIX_open(path.map_or(ptr::null(), CStr::as_ptr), &options, &mut handle) } {
HOSTED             0 => Ok(Model { handle, open: Arc::new(Open(handle)) }),
HOSTED             status => Err(error(status)),
HOSTED         }
HOSTED     }

HOSTED     /// What ends runs from another thread, while this one runs.
HOSTED     pub fn stopper(&self) -> Stopper {
HOSTED         Stopper(self.open.clone())
HOSTED     }

BARE /// A model in memory of the caller's.
BARE #[derive(Debug)]
BARE pub struct Model<'memory> {
BARE     handle: *mut Handle,
BARE     memory: PhantomData<&'memory mut [u8]>,
BARE }

BARE /// Ends the runs of a model, from another thread or an interrupt.
BARE #[derive(Debug, Clone)]
BARE pub struct Stopper<'memory> {
BARE     handle: *mut Handle,
BARE     memory: PhantomData<&'memory [u8]>,
BARE }

BARE unsafe impl Send for Stopper<'_> {}
BARE unsafe impl Sync for Stopper<'_> {}

BARE impl Stopper<'_> {
BARE     /// With true, the run that goes on and those that begin give an `Error` of the status `STOPPED`, until false.
BARE     pub fn stop(&self, stopped: bool) {
BARE         unsafe { PREFIX_stop(self.handle, stopped.into()) }
BARE     }
BARE }

BARE /// The bytes that `Model::init` wants.
BARE pub fn memory_size() -> usize {
BARE     unsafe { PREFIX_memory_size() }
BARE }

BARE impl<'memory> Model<'memory> {
BARE     /// A handle in `memory`: at least `memory_size()` bytes, at an address that is a multiple of 64.
BARE     pub fn init(memory: &'memory mut [u8]) -> Result<Model<'memory>, Error> {
BARE         if memory.len() < memory_size() {
BARE             return Err(Error::new(1, b"the memory is smaller than memory_size() says"));
BARE         }
BARE         let handle = unsafe { PREFIX_init(memory.as_mut_ptr().cast()) };
BARE         if handle.is_null() { Err(error(1)) } else { Ok(Model { handle, memory: PhantomData }) }
BARE     }

BARE     /// What ends runs from another thread or an interrupt, while this one runs.
BARE     pub fn stopper(&self) -> Stopper<'memory> {
BARE         Stopper { handle: self.handle, memory: PhantomData }
BARE     }

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

    /// Computes the outputs from the inputs.
    pub fn run(&mut self, variant: i32, inputs: [&[u8]; INPUTS], outputs: [&mut [u8]; OUTPUTS]) -> Result<(), Error> {
        if variant < 0 || variant >= self.variants() {
            return Err(Error::new(1, b"there is no such variant"));
        }
        let fit = (0..INPUTS).all(|k| inputs[k].len() == self.input(variant, k as i32).bytes)
            && (0..OUTPUTS).all(|k| outputs[k].len() == self.output(variant, k as i32).bytes);
        if !fit {
            return Err(Error::new(1, b"an input or an output has another number of bytes than its tensor"));
        }
        let given = inputs.map(|bytes| bytes.as_ptr().cast::<c_void>());
        let taken = outputs.map(|bytes| bytes.as_mut_ptr().cast::<c_void>());
        match unsafe { PREFIX_run(self.handle, variant, given.as_ptr(), taken.as_ptr()) } {
            0 => Ok(()),
            status => Err(error(status)),
        }
    }

    /// Makes what the model keeps between runs zeros again.
    pub fn reset(&mut self) -> Result<(), Error> {
        match unsafe { PREFIX_reset(self.handle) } {
            0 => Ok(()),
            status => Err(error(status)),
        }
    }
}

fn tensor(raw: *const RawTensor) -> Tensor {
    let raw = unsafe { raw.as_ref() }.expect("there is no such tensor");
    let shape = if raw.rank == 0 { &[][..] } else { unsafe { core::slice::from_raw_parts(raw.shape, raw.rank as usize) } };
    let name = unsafe { CStr::from_ptr(raw.name) }.to_str().unwrap_or("");
    Tensor { name, dtype: raw.dtype, shape, bytes: raw.bytes }
}

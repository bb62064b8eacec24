// ---- without a system ----

use core::marker::PhantomData;

extern "C" {
    fn PREFIX_memory_size() -> usize;
    fn PREFIX_init(memory: *mut c_void) -> *mut Handle;
}

/// A model in memory of the caller's.
#[derive(Debug)]
pub struct Model<'memory> {
    handle: *mut Handle,
    memory: PhantomData<&'memory mut [u8]>,
}

/// Ends the runs of a model, from another thread or an interrupt.
#[derive(Debug, Clone)]
pub struct Stopper<'memory> {
    handle: *mut Handle,
    memory: PhantomData<&'memory [u8]>,
}

unsafe impl Send for Stopper<'_> {}
unsafe impl Sync for Stopper<'_> {}

impl Stopper<'_> {
    /// With true, the run that goes on and those that begin give an `Error` of the status `STOPPED`, until false.
    pub fn stop(&self, stopped: bool) {
        unsafe { PREFIX_stop(self.handle, stopped.into()) }
    }
}

/// The bytes that `Model::init` wants.
pub fn memory_size() -> usize {
    unsafe { PREFIX_memory_size() }
}

impl<'memory> Model<'memory> {
    /// A handle in `memory`: at least `memory_size()` bytes, at an address that is a multiple of 64.
    pub fn init(memory: &'memory mut [u8]) -> Result<Model<'memory>, Error> {
        if memory.len() < memory_size() {
            return Err(Error::refused(format_args!(
                "the memory has {} bytes; the model takes {}",
                memory.len(),
                memory_size()
            )));
        }
        let handle = unsafe { PREFIX_init(memory.as_mut_ptr().cast()) };
        check(if handle.is_null() { BAD_ARGUMENT } else { 0 })?;
        Ok(Model { handle, memory: PhantomData })
    }

    /// What ends runs from another thread or an interrupt, while this one runs.
    pub fn stopper(&self) -> Stopper<'memory> {
        Stopper { handle: self.handle, memory: PhantomData }
    }
}

// ---- where there is a system ----

extern crate alloc;
use alloc::boxed::Box;
use alloc::sync::Arc;
use core::ptr;
use core::time::Duration;

/// The status of a run that lasted longer than `time_limit` allows.
pub const LATE: i32 = 11;

type Task = extern "C" fn(*mut c_void, i32);

#[repr(C)]
struct RawOptions {
    size: usize,
    threads: i32,
    check: i32,
    seed: u64,
    parallel_for: Option<extern "C" fn(*mut c_void, Task, *mut c_void, i32)>,
    context: *mut c_void,
}

extern "C" {
    fn PREFIX_open(path: *const c_char, options: *const RawOptions, handle: *mut *mut Handle) -> i32;
    fn PREFIX_open_memory(
        params: *const c_void,
        bytes: usize,
        options: *const RawOptions,
        handle: *mut *mut Handle,
    ) -> i32;
    fn PREFIX_open_fd(
        fd: i32,
        offset: u64,
        bytes: u64,
        options: *const RawOptions,
        handle: *mut *mut Handle,
    ) -> i32;
    fn PREFIX_close(handle: *mut Handle);
    fn PREFIX_thread_count(handle: *const Handle) -> i32;
    fn PREFIX_time_limit(handle: *mut Handle, nanoseconds: u64) -> i32;
    fn PREFIX_profile_start(handle: *mut Handle) -> i32;
    fn PREFIX_profile_stop(handle: *mut Handle) -> i32;
}

/// Threads of the application's: is called with a count and a task, and calls the task with each index below the count, on any
/// threads; it returns when these calls have. It must not panic, which aborts.
pub type ParallelFor = Box<dyn Fn(i32, &(dyn Fn(i32) + Sync)) + Send + Sync>;

/// What a model is opened with; the default is that of C.
#[derive(Default)]
pub struct Options {
    pub threads: i32,
    pub check: bool,
    pub seed: u64,
    pub parallel_for: Option<ParallelFor>,
}

struct Arguments(*mut c_void);

unsafe impl Sync for Arguments {}

extern "C" fn share_out(context: *mut c_void, task: Task, arguments: *mut c_void, count: i32) {
    let (parallel_for, arguments) = (unsafe { &*context.cast::<ParallelFor>() }, &Arguments(arguments));
    parallel_for(count, &|index| task({ arguments }.0, index))
}

/// A model that is open; it closes when it is dropped, and its stoppers are.
#[derive(Debug)]
pub struct Model {
    handle: *mut Handle,
    open: Arc<Open>,
}

unsafe impl Send for Model {}

struct Open {
    handle: *mut Handle,
    _parallel_for: Option<Box<ParallelFor>>, // which the handle calls
}

unsafe impl Send for Open {}
unsafe impl Sync for Open {}

impl fmt::Debug for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.handle)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        unsafe { PREFIX_close(self.handle) }
    }
}

/// Ends the runs of a model, from any thread.
#[derive(Debug, Clone)]
pub struct Stopper(Arc<Open>);

impl Stopper {
    /// With true, the run that goes on and those that begin give an `Error` of the status `STOPPED`, until false.
    pub fn stop(&self, stopped: bool) {
        unsafe { PREFIX_stop(self.0.handle, stopped.into()) }
    }
}

impl Model {
    /// Opens the package in the folder `path`, which may be None where parameters are in the library. 0 `threads`: as many
    /// as the machine lets this process have.
    pub fn open(path: Option<&CStr>, threads: i32) -> Result<Model, Error> {
        Model::open_with(path, Options { threads, ..Options::default() })
    }

    pub fn open_with(path: Option<&CStr>, options: Options) -> Result<Model, Error> {
        let path = path.map_or(ptr::null(), CStr::as_ptr);
        Model::opened(options, |options, handle| unsafe { PREFIX_open(path, options, handle) })
    }

    /// On what is in params.bin, in memory that is aligned to 64 bytes.
    pub fn open_memory(params: &'static [u8], options: Options) -> Result<Model, Error> {
        Model::opened(options, |options, handle| unsafe {
            PREFIX_open_memory(params.as_ptr().cast(), params.len(), options, handle)
        })
    }

    /// On what is in params.bin, in an open file: `bytes` from `offset` on, 0: all of them. The descriptor may be closed then.
    pub fn open_fd(fd: i32, offset: u64, bytes: u64, options: Options) -> Result<Model, Error> {
        Model::opened(options, |options, handle| unsafe { PREFIX_open_fd(fd, offset, bytes, options, handle) })
    }

    fn opened(chosen: Options, open: impl Fn(*const RawOptions, *mut *mut Handle) -> i32) -> Result<Model, Error> {
        let parallel_for = chosen.parallel_for.map(Box::new);
        let context = parallel_for.as_deref().map_or(ptr::null_mut(), |p| ptr::from_ref(p).cast_mut().cast());
        let options = RawOptions {
            size: core::mem::size_of::<RawOptions>(),
            threads: chosen.threads,
            check: chosen.check.into(),
            seed: chosen.seed,
            parallel_for: parallel_for.as_ref().map(|_| share_out as _),
            context,
        };
        let mut handle = ptr::null_mut();
        check(open(&options, &mut handle))?;
        Ok(Model { handle, open: Arc::new(Open { handle, _parallel_for: parallel_for }) })
    }

    pub fn threads(&self) -> i32 {
        unsafe { PREFIX_thread_count(self.handle) }
    }

    /// From now on a run that lasts longer gives an `Error` of the status `LATE`; None: runs may last.
    pub fn time_limit(&mut self, limit: Option<Duration>) -> Result<(), Error> {
        let nanoseconds = limit.map_or(0, |limit| limit.as_nanos().clamp(1, u64::MAX.into()) as u64);
        check(unsafe { PREFIX_time_limit(self.handle, nanoseconds) })
    }

    /// From now on runs accumulate what each step takes, from zero on.
    pub fn profile_start(&mut self) -> Result<(), Error> {
        check(unsafe { PREFIX_profile_start(self.handle) })
    }

    pub fn profile_stop(&mut self) -> Result<(), Error> {
        check(unsafe { PREFIX_profile_stop(self.handle) })
    }

    /// What ends runs from another thread, while this one runs.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.open.clone())
    }
}

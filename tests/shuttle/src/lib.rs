//! Locks, waits and threads under Shuttle, with the names that the module `sync` of a crate offers.
//! At every lock, wait and atomic operation another thread may continue.
//!
//! The feature `shuttle` of a crate uses these; only `tests/models` turns it on.

use shuttle::rand::{Rng, thread_rng};
use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

pub use shuttle;
pub use shuttle::sync::atomic;
/// Stands for `std::thread`.
pub mod thread {
    pub use shuttle::thread::*;

    /// The scheduler has no time: other threads run for a while.
    pub fn sleep(_time: std::time::Duration) {
        yield_now();
    }
}

/// Stands for `std::thread::LocalKey` of a `RefCell` or a `Cell`.
#[derive(Debug)]
pub struct LocalKey<T: 'static>(&'static shuttle::thread::LocalKey<RefCell<T>>);

impl<T: 'static> LocalKey<T> {
    /// Made by [`thread_cell`].
    pub const fn new(key: &'static shuttle::thread::LocalKey<RefCell<T>>) -> Self {
        LocalKey(key)
    }

    pub fn with_borrow_mut<R>(&self, body: impl FnOnce(&mut T) -> R) -> R {
        self.0.with(|cell| body(&mut cell.borrow_mut()))
    }

    pub fn take(&self) -> T
    where
        T: Default,
    {
        self.0.with(RefCell::take)
    }

    pub fn set(&self, value: T) {
        self.replace(value);
    }

    pub fn replace(&self, value: T) -> T {
        self.0.with(|cell| cell.replace(value))
    }

    pub fn get(&self) -> T
    where
        T: Copy,
    {
        self.0.with(|cell| *cell.borrow())
    }
}

/// Stands for `std::thread_local`, for a `RefCell` or a `Cell`.
#[macro_export]
macro_rules! thread_cell {
    ($(#[$attribute:meta])* static $name:ident: RefCell<$of:ty> = const { $value:expr };) => {
        $(#[$attribute])*
        static $name: $crate::LocalKey<$of> = {
            $crate::shuttle::thread_local! {
                static INNER: RefCell<$of> = const { $value };
            }
            $crate::LocalKey::new(&INNER)
        };
    };
    ($(#[$attribute:meta])* static $name:ident: Cell<$of:ty> = const { Cell::new($value:expr) };) => {
        $(#[$attribute])*
        static $name: $crate::LocalKey<$of> = {
            $crate::shuttle::thread_local! {
                static INNER: ::std::cell::RefCell<$of> = const { ::std::cell::RefCell::new(Cell::new($value).into_inner()) };
            }
            $crate::LocalKey::new(&INNER)
        };
    };
}

/// Stands for `parking_lot::Mutex`.
#[derive(Debug, Default)]
pub struct Mutex<T>(shuttle::sync::Mutex<T>);

/// Stands for `parking_lot::MutexGuard`.
#[derive(Debug)]
pub struct MutexGuard<'a, T> {
    of: &'a Mutex<T>,
    /// `None` only inside [`MutexGuard::unlocked`] and while a [`Condvar`] waits.
    guard: Option<shuttle::sync::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    pub fn new(value: T) -> Self {
        Mutex(shuttle::sync::Mutex::new(value))
    }

    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    fn guard(&self) -> shuttle::sync::MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard {
            of: self,
            guard: Some(self.guard()),
        }
    }
}

/// Stands for `parking_lot::RwLock`.
#[derive(Debug, Default)]
pub struct RwLock<T>(shuttle::sync::RwLock<T>);

impl<T> RwLock<T> {
    pub fn read(&self) -> shuttle::sync::RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn write(&self) -> shuttle::sync::RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> MutexGuard<'_, T> {
    pub fn unlocked<R>(this: &mut Self, body: impl FnOnce() -> R) -> R {
        this.guard = None;
        let result = body();
        this.guard = Some(this.of.guard());
        result
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.guard.as_ref().expect("locked")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.guard.as_mut().expect("locked")
    }
}

/// Stands for `parking_lot::Condvar`.
#[derive(Debug, Default)]
pub struct Condvar(shuttle::sync::Condvar);

/// Stands for `parking_lot::WaitTimeoutResult`.
#[derive(Debug, Clone, Copy)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    pub fn timed_out(self) -> bool {
        self.0
    }
}

impl Condvar {
    pub fn new() -> Self {
        Condvar(shuttle::sync::Condvar::new())
    }

    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let inner = guard.guard.take().expect("locked");
        let inner = self.0.wait(inner);
        guard.guard = Some(inner.unwrap_or_else(PoisonError::into_inner));
    }

    /// The scheduler has no time: other threads run for a while, and then the time is over or not.
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _time: Duration) -> WaitTimeoutResult {
        MutexGuard::unlocked(guard, thread::yield_now);
        WaitTimeoutResult(thread_rng().gen_bool(0.5))
    }

    pub fn wait_until<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        _until: Instant,
    ) -> WaitTimeoutResult {
        self.wait_for(guard, Duration::ZERO)
    }

    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

//! The faces of `sync` in the crates whose sources are built here, over Shuttle: every lock,
//! wait and atomic is a place where another thread may go on.

use shuttle::rand::{Rng, thread_rng};
use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

pub(crate) use shuttle::sync::atomic;
/// As `std::thread`.
pub(crate) mod thread {
    pub(crate) use shuttle::thread::*;

    /// The scheduler knows no time: others go on for a while.
    pub(crate) fn sleep(_time: std::time::Duration) {
        yield_now();
    }
}

/// As `std::thread::LocalKey` of a `RefCell`.
pub(crate) struct LocalKey<T: 'static>(pub(crate) &'static shuttle::thread::LocalKey<RefCell<T>>);

impl<T: 'static> LocalKey<T> {
    pub(crate) fn with_borrow_mut<R>(&self, body: impl FnOnce(&mut T) -> R) -> R {
        self.0.with(|cell| body(&mut cell.borrow_mut()))
    }

    pub(crate) fn take(&self) -> T
    where
        T: Default,
    {
        self.0.with(RefCell::take)
    }

    pub(crate) fn set(&self, value: T) {
        self.0.with(|cell| cell.replace(value));
    }
}

/// As `std::thread_local`, for a `RefCell`.
macro_rules! thread_cell {
    ($(#[$attribute:meta])* static $name:ident: RefCell<$of:ty> = const { $value:expr };) => {
        $(#[$attribute])*
        static $name: $crate::sync::LocalKey<$of> = {
            shuttle::thread_local! {
                static INNER: RefCell<$of> = const { $value };
            }
            $crate::sync::LocalKey(&INNER)
        };
    };
}

pub(crate) use thread_cell;

/// As `parking_lot::Mutex`.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

/// As `parking_lot::MutexGuard`.
#[derive(Debug)]
pub(crate) struct MutexGuard<'a, T> {
    of: &'a Mutex<T>,
    /// `None` only inside [`MutexGuard::unlocked`] and while a [`Condvar`] waits.
    guard: Option<shuttle::sync::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Mutex(shuttle::sync::Mutex::new(value))
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    fn guard(&self) -> shuttle::sync::MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard {
            of: self,
            guard: Some(self.guard()),
        }
    }
}

/// As `parking_lot::RwLock`.
#[derive(Debug, Default)]
pub(crate) struct RwLock<T>(shuttle::sync::RwLock<T>);

impl<T> RwLock<T> {
    pub(crate) fn read(&self) -> shuttle::sync::RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> shuttle::sync::RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> MutexGuard<'_, T> {
    pub(crate) fn unlocked<R>(this: &mut Self, body: impl FnOnce() -> R) -> R {
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

/// As `parking_lot::Condvar`.
#[derive(Debug, Default)]
pub(crate) struct Condvar(shuttle::sync::Condvar);

/// As `parking_lot::WaitTimeoutResult`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    pub(crate) fn timed_out(self) -> bool {
        self.0
    }
}

impl Condvar {
    pub(crate) fn new() -> Self {
        Condvar(shuttle::sync::Condvar::new())
    }

    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let inner = guard.guard.take().expect("locked");
        let inner = self.0.wait(inner);
        guard.guard = Some(inner.unwrap_or_else(PoisonError::into_inner));
    }

    /// The scheduler knows no time: others go on for a while, and the time is over or not.
    pub(crate) fn wait_for<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        _time: Duration,
    ) -> WaitTimeoutResult {
        MutexGuard::unlocked(guard, thread::yield_now);
        WaitTimeoutResult(thread_rng().gen_bool(0.5))
    }

    pub(crate) fn wait_until<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        _until: Instant,
    ) -> WaitTimeoutResult {
        self.wait_for(guard, Duration::ZERO)
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}

//! Memory for one future of any type after the other.
//!
//! A future of a file system operation has 1 to 4 KiB. To allocate and free as much takes about 700
//! instructions each time, and to move it into a box another 200, so that the memory stays with its task,
//! and futures are made where they stay.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::ptr::NonNull;

type Erased = dyn Future<Output = ()> + Send;

/// Memory is allocated in multiples of this, and aligned to it, in bytes.
const UNIT: usize = 64;

/// Memory, and the future in it, if there is one.
#[derive(Default)]
pub(crate) struct Place {
    memory: Option<(NonNull<u8>, Layout)>,
    /// Points to the beginning of the memory.
    future: Option<NonNull<Erased>>,
}

// SAFETY: it owns the future, which can be sent, and the memory.
unsafe impl Send for Place {}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place")
            .field("is_empty", &self.is_empty())
            .finish_non_exhaustive()
    }
}

impl Place {
    pub(crate) fn is_empty(&self) -> bool {
        self.future.is_none()
    }

    /// Puts the future that `make` returns here, in place of the one that is there.
    #[inline]
    pub(crate) fn put<F>(&mut self, make: impl FnOnce() -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        const {
            assert!(align_of::<F>() <= UNIT, "the memory is not aligned for it");
        }
        self.clear();
        let to = self.room(size_of::<F>()).cast::<F>();
        // SAFETY: the memory is large enough and aligned for the type, and nothing is in it.
        unsafe { to.write(make()) };
        let future: NonNull<Erased> = to;
        self.future = Some(future);
    }

    /// Memory of at least `size` bytes. There must be no future.
    #[inline]
    fn room(&mut self, size: usize) -> NonNull<u8> {
        match self.memory {
            Some((memory, layout)) if layout.size() >= size => memory,
            _ => self.enlarge(size),
        }
    }

    #[cold]
    fn enlarge(&mut self, size: usize) -> NonNull<u8> {
        self.free();
        let size = size.max(1).next_multiple_of(UNIT);
        let layout = Layout::from_size_align(size, UNIT).expect("a future is smaller than memory");
        // SAFETY: the size is not zero.
        let memory = NonNull::new(unsafe { alloc(layout) });
        let memory = memory.unwrap_or_else(|| handle_alloc_error(layout));
        self.memory = Some((memory, layout));
        memory
    }

    fn free(&mut self) {
        if let Some((memory, layout)) = self.memory.take() {
            // SAFETY: it was allocated with this layout, and there is no future in it.
            unsafe { dealloc(memory.as_ptr(), layout) };
        }
    }

    /// The future, if there is one.
    #[inline]
    pub(crate) fn future(&mut self) -> Option<Pin<&mut Erased>> {
        let mut future = self.future?;
        // SAFETY: it points to a future that this owns, which stays where it is until it is dropped.
        Some(unsafe { Pin::new_unchecked(future.as_mut()) })
    }

    /// Drops the future, if there is one, and keeps the memory.
    pub(crate) fn clear(&mut self) {
        if let Some(future) = self.future.take() {
            // SAFETY: it points to a future that this owned, and that nothing else drops.
            unsafe { future.drop_in_place() };
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.clear();
        self.free();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::task::{Context, Poll};

    /// A future of `N` bytes and more.
    async fn future<const N: usize>(held: Arc<()>) {
        let bytes = [1u8; N];
        std::future::ready(()).await;
        tokio::task::yield_now().await;
        std::hint::black_box((&held, &bytes));
    }

    fn poll(place: &mut Place) -> Option<Poll<()>> {
        let mut context = Context::from_waker(std::task::Waker::noop());
        Some(place.future()?.poll(&mut context))
    }

    #[test]
    fn futures_of_several_sizes_follow_each_other_and_each_is_dropped_once() {
        let held = Arc::new(());
        let mut place = Place::default();
        assert!(place.is_empty() && poll(&mut place).is_none());
        place.put(|| future::<100>(held.clone()));
        assert!(!place.is_empty());
        assert_eq!(poll(&mut place), Some(Poll::Pending));
        place.put(|| future::<3000>(held.clone()));
        assert_eq!(Arc::strong_count(&held), 2);
        assert_eq!(poll(&mut place), Some(Poll::Pending));
        assert_eq!(poll(&mut place), Some(Poll::Ready(())));
        place.clear();
        assert!(place.is_empty() && Arc::strong_count(&held) == 1);
        let before = place.memory;
        place.put(|| future::<200>(held.clone()));
        assert_eq!(place.memory, before, "the memory is used again");
        assert_eq!(poll(&mut place), Some(Poll::Pending));
        drop(place);
        assert_eq!(Arc::strong_count(&held), 1);
    }
}

//! The sequence window of a context (RFC 2203 section 5.3.3.1), as Linux's server keeps it.

/// How many sequence numbers up to the highest are accepted.
pub(super) const SIZE: u32 = 128;

/// The sequence numbers that came.
#[derive(Debug, Default)]
pub(super) struct Window {
    highest: u32,
    /// Bit N is for the number that is N below the highest.
    seen: u128,
}

impl Window {
    /// Whether a number is new and not too old: it counts as seen then. Without that the call is
    /// neither executed nor answered.
    pub(super) fn take(&mut self, number: u32) -> bool {
        if number > self.highest {
            let ahead = number - self.highest;
            self.seen = self.seen.checked_shl(ahead).unwrap_or(0);
            self.highest = number;
        }
        let behind = self.highest - number;
        if behind >= SIZE || self.seen >> behind & 1 == 1 {
            return false;
        }
        self.seen |= 1 << behind;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    #[test]
    fn each_number_within_the_window_is_taken_once() {
        let mut window = Window::default();
        for number in [0, 1, 5, 3] {
            assert!(window.take(number), "{number}");
            assert!(!window.take(number), "{number} again");
        }
        assert!(window.take(1000), "a jump");
        assert!(!window.take(1000 - 128));
        assert!(window.take(1000 - 127));
        assert!(!window.take(1000 - 127));
        assert!(!window.take(5));
        assert!(window.take(0x8000_0000));
        assert!(!window.take(1000));
    }

    proptest! {
        #[test]
        fn it_is_as_a_set_of_all_numbers_would_have_it(numbers in proptest::collection::vec(0u32..400, 0..200)) {
            let (mut window, mut seen, mut highest) = (Window::default(), HashSet::new(), 0);
            for number in numbers {
                highest = highest.max(number);
                let new = number + SIZE > highest && seen.insert(number);
                prop_assert_eq!(window.take(number), new, "{}", number);
            }
        }
    }
}

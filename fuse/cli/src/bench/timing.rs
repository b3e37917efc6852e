//! Times of single operations.

use serde::Serialize;
use std::time::Duration;

/// How long operations took.
#[derive(Debug, Clone, Default)]
pub(super) struct Times(Vec<Duration>);

/// A summary of [`Times`], in microseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(super) struct Percentiles {
    pub(super) count: usize,
    pub(super) mean_us: f64,
    pub(super) p50_us: f64,
    pub(super) p99_us: f64,
    pub(super) max_us: f64,
}

impl Times {
    pub(super) fn add(&mut self, time: Duration) {
        self.0.push(time);
    }

    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// `None` without operations.
    pub(super) fn percentiles(&self) -> Option<Percentiles> {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let micros = |time: &Duration| time.as_secs_f64() * 1e6;
        let at = |part: f64| {
            // The least time that this part of the operations did not exceed.
            let place = (part * sorted.len() as f64).ceil() as usize;
            sorted.get(place.saturating_sub(1)).map(micros)
        };
        Some(Percentiles {
            count: sorted.len(),
            mean_us: sorted.iter().map(micros).sum::<f64>() / sorted.len() as f64,
            p50_us: at(0.5)?,
            p99_us: at(0.99)?,
            max_us: sorted.last().map(micros)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_times() {
        let mut times = Times::default();
        assert_eq!(times.percentiles(), None);
        for micros in (1..=100).rev() {
            times.add(Duration::from_micros(micros));
        }
        let found = times.percentiles().unwrap();
        assert_eq!(
            (found.count, found.p50_us.round(), found.p99_us.round()),
            (100, 50.0, 99.0)
        );
        assert_eq!((found.max_us.round(), found.mean_us), (100.0, 50.5));
    }
}
